// Shared by the tests of SharedLimiter: real tabs of a real browser, each with its own renderer process, and in real
// time. Nothing here depends on the speed of the machine.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { launch, serve } from "./pages.mjs";

const folder = mkdtempSync(join(tmpdir(), "tollgate-tabs-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
for (const page of ["tab.html", "other.html"])
  writeFileSync(join(folder, page), `<!doctype html><link rel="icon" href="data:,">`);
await build({
  stdin: {
    contents: `export * from "./index.js"; export * from "./shared.js"`,
    resolveDir: fileURLToPath(new URL("../../build/package", import.meta.url)),
  },
  bundle: true,
  format: "esm",
  outfile: join(folder, "tollgate.js"),
});
// A frame without an origin imports from it, too.
export const { url } = await serve(folder, { "access-control-allow-origin": "*" });
let browser, context;

before(async () => (browser = await launch()));
after(() => browser.close());
afterEach(async () => {
  await context?.close();
  context = undefined;
});

/** A budget that never refills, so that its level is exact at any speed. */
export const budget = (capacity) => ({ rate: 0, periodMs: 1000, capacity });

/**
 * Opens a tab and makes a limiter in it. The tabs of one test share an origin. `before` runs in the tab before anything
 * else.
 */
export async function open(
  limits,
  { name = "a", before = () => {}, argument, aheadMs = 0, waits = true, options = {} } = {},
) {
  context ??= await browser.newContext();
  const tab = await context.newPage();
  tab.warnings = [];
  tab.on("console", (message) => tab.warnings.push(message.text()));
  tab.on("pageerror", (error) => tab.warnings.push(error.stack));
  await tab.addInitScript(before, argument);
  await tab.addInitScript((aheadMs) => {
    const { now } = Date;
    Date.now = () => now() + aheadMs;
  }, aheadMs);
  tab.make = (limits, more = {}) =>
    tab.evaluate(
      async ([name, limits, options, waits]) => {
        globalThis.tollgate = await import("/tollgate.js");
        globalThis.limiter = new tollgate.SharedLimiter(name, limits, options);
        if (waits) await limiter.ready;
      },
      [more.name ?? name, limits, options, waits],
    );
  await tab.goto(`${url}/tab.html`);
  await tab.make(limits);
  return tab;
}

export const consume = (tab, cost = 1) => tab.evaluate((cost) => limiter.decide({ cost }), cost);
export const remaining = (tab) => tab.evaluate(() => limiter.remaining());
/** Resolves when a tab knows that this much is left. */
export const knows = (tab, expected) =>
  tab.waitForFunction((expected) => limiter.remaining() === expected, expected, { polling: 5, timeout: 10_000 });
/**
 * Calls `acquire` and resolves when it waits in the queue, or has ended. Its outcome is in `landed`, with the moment of
 * the decision, not when a busy tab learned of it.
 */
export const queue = (tab, id, options = {}) =>
  tab.evaluate(
    async ([id, options]) => {
      globalThis.landed ??= {};
      globalThis.ends ??= {};
      ends[id] = new AbortController();
      const before = limiter.waiting;
      limiter.acquire({ ...options, signal: ends[id].signal }).then(
        (decision) => (landed[id] = { decision, at: decision.readyAt }),
        (error) =>
          (landed[id] = {
            error: error.name === "TollgateError" ? error.code : error.name,
            retryAt: error.retryAt,
            at: limiter.clock.now(),
          }),
      );
      while (limiter.waiting === before && !landed[id]) await new Promise((resolve) => setTimeout(resolve, 1));
      await limiter.charge(0); // its place in the queue has been stored before this
    },
    [id, options],
  );
export const landed = (tab, id) =>
  tab
    .waitForFunction((id) => globalThis.landed?.[id], id, { polling: 5, timeout: 20_000 })
    .then((handle) => handle.jsonValue());
export const hasLanded = (tab, id) => tab.evaluate((id) => id in (globalThis.landed ?? {}), id);
/** Consumes as fast as possible until {@link relax}, and records the moments of the grants, as decided, and of the last refusal. */
export const hammer = (tab, cost = 1) =>
  tab.evaluate((cost) => {
    globalThis.hammered = { granted: [], refusedAt: 0 };
    const loop = async () => {
      while (!hammered.isOver) {
        const now = limiter.clock.now();
        const { allowed, readyAt } = await limiter.decide({ cost });
        if (allowed) hammered.granted.push(readyAt);
        else hammered.refusedAt = now;
      }
    };
    hammered.ended = loop();
  }, cost);
/** Ends {@link hammer} once its record `isEnough`, and returns that. */
export const relax = async (tab, isEnough, argument) => {
  await tab.waitForFunction(isEnough, argument, { polling: 5, timeout: 20_000 });
  return await tab.evaluate(async () => {
    hammered.isOver = true;
    await hammered.ended;
    const { granted, refusedAt } = hammered;
    return { granted, refusedAt };
  });
};
/** What a laptop's sleep does: the wall clock is ahead by `ms` when the page is visible again. */
export const sleep = (tab, ms) =>
  tab.evaluate((ms) => {
    const { now } = Date;
    Date.now = () => now() + ms;
    document.dispatchEvent(new Event("visibilitychange"));
  }, ms);
/**
 * Blocks the page's only thread, like a suspended process, as soon as it has no open transaction: a tab with one
 * makes the others limit alone, which is another test.
 */
export const suspend = (tab, ms) =>
  tab.evaluate(async (ms) => {
    const { transaction } = IDBDatabase.prototype;
    let open = 0;
    IDBDatabase.prototype.transaction = function (...args) {
      const opened = transaction.apply(this, args);
      open++;
      for (const end of ["complete", "abort"]) opened.addEventListener(end, () => open--);
      return opened;
    };
    await limiter.charge(0); // those before have ended
    const block = () => {
      if (open > 0) return setTimeout(block);
      for (const end = performance.now() + ms; performance.now() < end; );
    };
    setTimeout(block);
  }, ms);
/** Tells a page that it will be frozen: Chromium itself freezes only hidden pages, and headless ones are all visible. */
export async function freeze(tab) {
  const tell = (type) => tab.evaluate((type) => void document.dispatchEvent(new Event(type)), type);
  await tell("freeze");
  return () => tell("resume");
}
export async function crash(tab) {
  const gone = new Promise((resolve) => tab.on("crash", resolve));
  const session = await context.newCDPSession(tab);
  session.send("Page.crash").catch(() => {});
  await gone;
}
export const claimed = (tab) =>
  tab.waitForFunction(() => !limiter.peek().allowed, null, { polling: 5, timeout: 10_000 });
