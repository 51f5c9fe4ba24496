// Nothing reads a clock or draws a random number before its first use: `next build` rejects pages that do while they render.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { createElement } from "react";
import { renderToString } from "react-dom/server";
import { renewing } from "../../build/package/grants.js";
import { Client, countdown, Limiter, limitFetch, makeClock, Twin, watch } from "../../build/package/index.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { LeasingLimiter } from "../../build/package/leases.js";
import { useRateLimit } from "../../build/package/react.js";
import { SharedLimiter } from "../../build/package/shared.js";
import { FakeClock, START } from "./clock.mjs";

/** What a page must not do while it is rendered ahead of time. */
const FORBIDDEN = [
  [Date, "now"],
  [performance, "now"],
  [Math, "random"],
  [crypto, "getRandomValues"],
  [crypto, "randomUUID"],
  [globalThis, "setTimeout"],
  [console, "warn"],
];

test("importing the package reads no clock and draws no random number", async () => {
  const program = `
    for (const [of, name] of [[Date, "now"], [performance, "now"], [Math, "random"], [crypto, "getRandomValues"], [crypto, "randomUUID"]])
      Object.defineProperty(of, name, { value() { throw new Error(name); } });
    for (const name of ["index", "shared", "keyed", "kinds", "leases", "client", "grants", "node", "hono", "react", "rate", "testing", "slim"])
      await import(\`${new URL("../../build/package/", import.meta.url)}\${name}.js\`);
  `;
  await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
});

const LIMIT = { name: "requests", rate: 10, periodMs: 1000, initial: 3, kind: "fixed_window" };
const client = new Client({ url: "https://example.com", token: "token" });

/** One of each that can be watched. */
const makeAll = (options) => [
  new Limiter(LIMIT, options),
  new SharedLimiter("made", LIMIT, options),
  new Twin(client, { policy: "api", ...options }),
];

test("what is made reads no clock and draws no random number", (t) => {
  for (const [of, name] of FORBIDDEN) t.mock.method(of, name, () => assert.fail(name));
  for (const limiter of makeAll()) {
    limitFetch(limiter);
    watch(limiter);
    countdown(limiter);
    limiter.on(() => {});
    limiter.throttle?.(() => {});
    limiter.close?.();
  }
  new KeyedLimiter(LIMIT);
  new LeasingLimiter(client, { policy: "api" });
  new Client({ url: "https://example.com", token: null });
  makeClock();
  renewing(() => "grant");
});

test("rendering on a server reads no clock", () => {
  const never = () => assert.fail("read");
  for (const limiter of makeAll({ clock: { now: never, at: never } })) {
    const Standing = () => createElement("p", null, useRateLimit(limiter).remaining);
    assert.match(renderToString(createElement(Standing)), /^<p>[03]<\/p>$/);
  }
});

test("a limiter starts when it is first used", async () => {
  const limit = { rate: 1, periodMs: 1000, initial: 0 };
  for (const make of [
    (options) => new Limiter(limit, options),
    (options) => new SharedLimiter("first", limit, options),
    (options) => {
      const keyed = new KeyedLimiter(limit, options);
      return { tryConsume: () => keyed.tryConsume("a"), peek: () => keyed.peek("a") };
    },
  ]) {
    const clock = new FakeClock(0);
    const limiter = make({ clock });
    clock.set(START);
    assert.deepEqual([await limiter.tryConsume(), limiter.peek().retryAt], [false, START + 1000]);
    clock.set(START + 1000);
    assert.equal(await limiter.tryConsume(), true);
  }
  const clock = new FakeClock();
  const restored = new Limiter(limit, { clock });
  restored.restore([{ tokens: 1, drops: 0, at: START - 5000 }]);
  assert.equal(restored.tryConsume(), true, "a restored state counts");
  const windows = new Limiter({ kind: "fixed_window", rate: 1, periodMs: 86_400_000 }, { clock });
  assert.deepEqual([windows.tryConsume(), windows.nextTokenAt() % 86_400_000], [true, 0]);
});

test("wrong limits and options are rejected at once", () => {
  for (const limits of [{ rate: 1, periodMs: 0 }, [], { rate: 1, periodMs: 1000, offsetMs: -1 }]) {
    for (const make of [
      () => new Limiter(limits),
      () => new SharedLimiter("a", limits),
      () => new KeyedLimiter(limits),
    ])
      assert.throws(make, { name: "TollgateError" }, JSON.stringify(limits));
  }
});

test("a shared limiter that was closed before its first use rejects calls, and looks", async () => {
  const limiter = new SharedLimiter("closed", { rate: 2, periodMs: 1000 }, { clock: new FakeClock() });
  limiter.close();
  assert.equal(limiter.peek().remaining, 2);
  await assert.rejects(limiter.tryConsume(), { code: "closed" });
  await assert.rejects(limiter.ready, { code: "closed" });
});
