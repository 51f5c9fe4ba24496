// The runtimes: the same bundle of speed.mjs, in this Node and on a page in Chromium.
import { chromium } from "playwright-core";

/** `{ version, groups }`: the result of the bundle's `measure`. */
export async function inNode(source, options) {
  const { measure } = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
  return { version: process.versions.node, groups: await measure(options) };
}

export async function inChromium(source, options) {
  if (!process.env.CHROMIUM) throw new Error("There is no Chromium: npm run setup, or set CHROMIUM to yours");
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage();
    await page.route(`${ORIGIN}/**`, (route) => {
      const isScript = route.request().url().endsWith(".mjs");
      return route.fulfill({
        headers: ISOLATED,
        contentType: isScript ? "text/javascript" : "text/html",
        body: isScript ? source : "",
      });
    });
    await page.goto(`${ORIGIN}/`);
    const groups = await page.evaluate(async (options) => (await import("/speed.mjs")).measure(options), options);
    return { version: browser.version(), groups };
  } finally {
    await browser.close();
  }
}

/** Nothing listens there: every request is intercepted here. */
const ORIGIN = "http://localhost:1";
/** On a cross-origin isolated page `performance.now()` has a resolution of 5 µs, on others 100. */
const ISOLATED = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };
