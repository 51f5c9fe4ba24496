// The page as visitors get it: the built Worker with its assets, served by Wrangler, in Chromium.
//
//   const { page, said } = await open("#playground", { colorScheme: "dark" });
//   // … and nothing but what was asked for is in `said`
//
// The server and the browser end with the test file.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { chromium } from "playwright-core";
import { unstable_readConfig } from "wrangler";

/** A token of the server with every scope, whose requests may bring their own limits. */
export const TOKEN = "the-bearer-token-of-the-tests";

/** Headers of a request with a JSON body and that token. */
export const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };

/** The grant keys of the server. */
export const GRANT_KEYS = JSON.stringify({ test: Buffer.alloc(32, "grants").toString("base64url") });

/** Where the server answers. It is started once, and its policies are those of wrangler.toml, and one with shards. */
export function served() {
  server ??= start();
  return server;
}

/** Stops the server and starts it at the same address, with what it has stored. */
export async function restart() {
  const { url } = await served();
  await stop();
  server = start(new URL(url).port);
  await server;
}

/**
 * Opens the page. `said` has what the console and uncaught errors have said, and requests that were refused or went elsewhere. Chromium
 * itself logs every answer of 400 and above to the console, and no page can prevent that: such a message is left out, and the answer is
 * there once. "The console is empty" means no other message.
 */
export async function open(hash = "", { viewport = { width: 1440, height: 900 }, ...settings } = {}) {
  const { url } = await served();
  browser ??= chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
  const context = await (await browser).newContext({ viewport, locale: "en-US", ...settings });
  const page = await context.newPage();
  const said = [];
  page.on("console", (message) => CHROMIUMS_OWN.test(message.text()) || said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("request", (request) => request.url().startsWith(url) || said.push(`a request to ${request.url()}`));
  page.on("response", (response) => response.status() < 400 || said.push(`${response.status()} ${response.url()}`));
  await page.goto(`${url}/${hash}`);
  return { page, said, url, close: () => context.close() };
}

export const press = (page, name) => page.getByRole("button", { name, exact: true }).click();

/** The playground's counts of grants and refusals. */
export async function counted(page) {
  const text = await page.locator(".counts").first().textContent();
  const [, granted, refused] = /^([\d,]+) granted, ([\d,]+) refused/.exec(text);
  return { granted: Number(granted.replaceAll(",", "")), refused: Number(refused.replaceAll(",", "")) };
}

/** The address, once the scene in it is as expected: it follows what is shown, somewhat later. */
export async function linkTo(page, isExpected) {
  await page.waitForURL(({ hash }) => {
    try {
      return isExpected(JSON.parse(Buffer.from(hash.slice("#playground?".length), "base64url").toString()));
    } catch {
      return false; // not of a scene, or of one without what is expected
    }
  });
  return page.url();
}

async function start(port = 0) {
  folder ??= mkdtempSync(join(tmpdir(), "tollgate-page-"));
  const { durable_objects, exports, vars, compatibility_date } = unstable_readConfig({ config: "wrangler.toml" });
  const sha256 = createHash("sha256").update(TOKEN).digest("hex");
  const settings = {
    name: "page",
    main: resolve("build/worker/entry.mjs"),
    compatibility_date,
    durable_objects,
    exports,
    assets: { directory: resolve("build/page") },
    vars: {
      POLICIES: { ...vars.POLICIES, divided: { rate: 100, period: "1h", shards: 4 } },
      TOLLGATE_TOKENS: { test: { sha256, scopes: ["consume", "adjust", "admin"], inline: true } },
      TOLLGATE_GRANT_KEYS: GRANT_KEYS,
      TOLLGATE_KEY_SECRET: "the-key-secret-of-the-tests",
    },
  };
  writeFileSync(join(folder, "wrangler.json"), JSON.stringify(settings));
  // Without a port for its inspector, two that start at once choose the same.
  const ports = ["--port", `${port}`, "--inspector-port", "0"];
  const child = spawn(
    "node_modules/.bin/wrangler",
    ["dev", "--config", join(folder, "wrangler.json"), ...ports, "--show-interactive-dev-session=false"],
    { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, WRANGLER_SEND_METRICS: "false" } },
  );
  stop = async () => {
    child.kill();
    if (child.exitCode === null) await once(child, "exit");
  };
  let log = "";
  const ready = new Promise((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr])
      createInterface({ input: stream }).on("line", (line) => {
        log += `${line}\n`;
        const [, url] = /Ready on (http:\S+)/.exec(line) ?? [];
        if (url) resolve({ url });
      });
    child.on("exit", () => reject(new Error(`Wrangler has ended:\n${log}`)));
  });
  return ready;
}

/** axe's accessibility findings. */
export async function violations(page) {
  await page.evaluate(AXE);
  // A colour on its way from one to another has too little contrast.
  await page.evaluate(async () => {
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
    await Promise.allSettled(document.getAnimations().map(({ finished }) => finished));
  });
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`);
}

/** By how many pixels the page is wider than the window. */
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

/** Checks that a view that starts with a token is accessible, at any width. */
export async function checkUsable(page) {
  assert.deepEqual(await violations(page), []);
  assert.ok((await overflow(page)) <= 0);
  const parts = page.locator(".playground > *");
  const [form, rest] = await parts.evaluateAll((all) => all.map((part) => part.getBoundingClientRect().top));
  assert.ok(form <= rest, "one begins with the token");
}

/** Delays the service's answers by this much, each path by some milliseconds more. */
export const slow = (page, ms) =>
  page.route("**/v1/**", async (route) => {
    await new Promise((done) => setTimeout(done, ms + (route.request().url().length % 10) * 30));
    await route.continue();
  });

/** Layout shifts within this many milliseconds from now, as browsers measure them. Shifts within half a second of a click do not count. */
export const shifts = (page, ms = 500) =>
  page.evaluate(
    (ms) =>
      new Promise((done) => {
        const text = ({ node }) => node?.outerHTML?.slice(0, 80) ?? node?.textContent;
        const shifts = [];
        new PerformanceObserver((list) => {
          for (const { value, hadRecentInput, sources } of list.getEntries())
            if (!hadRecentInput) shifts.push({ value, moved: sources.map(text) });
        }).observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done(shifts), ms);
      }),
    ms,
  );

/** The same as one sum. */
export const shift = async (page) => (await shifts(page)).reduce((sum, { value }) => sum + value, 0);

const CHROMIUMS_OWN = /^Failed to load resource: the server responded with a status of [45]\d\d /;

const AXE = readFileSync("node_modules/axe-core/axe.min.js", "utf8");

let folder;
let server;
let stop;
let browser;
// Not where they are started: that is within a test, which would end them.
after(async () => {
  await (await browser)?.close();
  await stop?.();
  if (folder) rmSync(folder, { recursive: true, force: true });
});
