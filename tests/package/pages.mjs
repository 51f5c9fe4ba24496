// Pages in Chromium, and servers for them.
//
//   const { url } = await serve(folder);
//   const { outcome } = await visit(`${url}/index.html`); // what the page has assigned to globalThis.outcome
//
// The browser and the servers end with the test file.
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { after } from "node:test";
import { chromium } from "playwright-core";

/** Starts a separate browser, which the caller closes. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox"],
    ignoreDefaultArgs: ["--disable-back-forward-cache"],
  });
}

/** Serves the files of a folder, each with `headers`. */
export async function serve(folder, headers = {}) {
  const server = createServer(async ({ url }, response) => {
    const path = new URL(url, "http://localhost").pathname;
    const bytes = await readFile(join(folder, path)).catch(() => undefined);
    response.writeHead(bytes ? 200 : 404, {
      ...headers,
      "content-type": TYPES[extname(path)] ?? "application/octet-stream",
    });
    response.end(bytes);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}` };
}

/** A page that runs a script. */
export const page = (script, type = "module") =>
  `<!doctype html><meta charset="utf-8"><body><script type="${type}" src="${script}" defer></script></body>`;

/**
 * Opens a page and waits for its outcome. `instances` counts how often it called the constructor of
 * WebAssembly.Instance. Rejects if the page throws an error that it does not catch.
 */
export async function visit(url) {
  browser ??= launch();
  const context = await (await browser).newContext();
  const shown = await context.newPage();
  const errors = [];
  const failed = new Promise((_, reject) => {
    shown.on("pageerror", (error) => reject(error));
    shown.on("console", (message) => errors.push(message.text()));
  });
  await shown.addInitScript(() => {
    globalThis.instances = 0;
    const construct = (target, args) => {
      globalThis.instances += 1;
      return Reflect.construct(target, args);
    };
    WebAssembly.Instance = new Proxy(WebAssembly.Instance, { construct });
  });
  try {
    const happened = shown
      .goto(url)
      .then(() => shown.waitForFunction(() => globalThis.outcome, null, { timeout: PAGE_TIMEOUT_MS }));
    await Promise.race([happened, failed]);
    return await shown.evaluate(() => ({ outcome: globalThis.outcome, instances: globalThis.instances }));
  } catch (error) {
    throw new Error(`${url}: ${error.message}\n${errors.join("\n")}`, { cause: error });
  } finally {
    await context.close();
  }
}

let browser;
after(async () => (await browser)?.close());

const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
};
/** A page takes a second with a cold cache. */
const PAGE_TIMEOUT_MS = 60_000;
