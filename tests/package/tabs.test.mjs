// SharedLimiter in real tabs of a real browser, each with its own renderer process, and in real time. Nothing here depends on
// the speed of the machine.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { build } from "esbuild";
import { launch, serve } from "./pages.mjs";

const index = fileURLToPath(new URL("../../build/package/index.js", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "tollgate-tabs-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
writeFileSync(join(folder, "tab.html"), `<!doctype html><link rel="icon" href="data:,">`);
await build({ entryPoints: [index], bundle: true, format: "esm", outfile: join(folder, "tollgate.js") });
const { url } = await serve(folder, { "access-control-allow-origin": "*" }); // a frame without an origin imports from it, too
let browser, context;

before(async () => (browser = await launch()));
after(() => browser.close());
afterEach(async () => {
  await context?.close();
  context = undefined;
});

/** A budget that never refills, so that its level is exact at any speed. */
const budget = (capacity) => ({ rate: 0, periodMs: 1000, capacity });

/** Opens a tab and makes a limiter in it. The tabs of one test share an origin. `before` runs in the tab before anything else. */
async function open(limits, { name = "a", before = () => {}, argument, aheadMs = 0, options = {} } = {}) {
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
      async ([name, limits, options]) => {
        globalThis.tollgate = await import("/tollgate.js");
        globalThis.limiter = new tollgate.SharedLimiter(name, limits, options);
        await limiter.ready;
      },
      [more.name ?? name, limits, options],
    );
  await tab.goto(`${url}/tab.html`);
  await tab.make(limits);
  return tab;
}

const consume = (tab, cost = 1) => tab.evaluate((cost) => limiter.consume(cost), cost);
const remaining = (tab) => tab.evaluate(() => limiter.remaining());
/** Resolves when a tab knows that so much is left. */
const knows = (tab, expected) =>
  tab.waitForFunction((expected) => limiter.remaining() === expected, expected, { polling: 5, timeout: 10_000 });
/** Calls `acquire` and resolves when it waits in the queue, or has ended. Its outcome is in `landed`. */
const queue = (tab, id, options = {}) =>
  tab.evaluate(
    async ([id, options]) => {
      globalThis.landed ??= {};
      globalThis.ends ??= {};
      ends[id] = new AbortController();
      const before = limiter.waiting;
      limiter.acquire({ ...options, signal: ends[id].signal }).then(
        (decision) => (landed[id] = { decision, at: limiter.clock.now() }),
        (error) =>
          (landed[id] = {
            error: error.name === "TollgateError" ? error.code : error.name,
            retryAt: error.retryAt,
            at: limiter.clock.now(),
          }),
      );
      while (limiter.waiting === before && !landed[id]) await new Promise((resolve) => setTimeout(resolve, 1));
      await navigator.locks?.query(); // a lock requested from now on queues behind it
    },
    [id, options],
  );
const landed = (tab, id) =>
  tab
    .waitForFunction((id) => globalThis.landed?.[id], id, { polling: 5, timeout: 20_000 })
    .then((handle) => handle.jsonValue());
const hasLanded = (tab, id) => tab.evaluate((id) => id in (globalThis.landed ?? {}), id);
/** Consumes as fast as possible for `ms`; returns the moments of the grants and of the last refusal. */
const hammer = (tab, ms, cost = 1) =>
  tab.evaluate(
    async ([ms, cost]) => {
      const end = performance.now() + ms,
        granted = [];
      let refusedAt;
      while (performance.now() < end) {
        const now = limiter.clock.now();
        if ((await limiter.consume(cost)).allowed) granted.push(limiter.clock.now());
        else refusedAt = now;
      }
      return { granted, refusedAt };
    },
    [ms, cost],
  );
async function crash(tab) {
  const gone = new Promise((resolve) => tab.on("crash", resolve));
  const session = await context.newCDPSession(tab);
  session.send("Page.crash").catch(() => {});
  await gone;
}
const claimed = (tab) => tab.waitForFunction(() => !limiter.peek().allowed, null, { polling: 5, timeout: 10_000 });

describe("one budget", () => {
  test("many simultaneous calls in two tabs take exactly what is there, and both know it", async () => {
    const tabs = [await open(budget(100)), await open(budget(100))];
    const many = (tab) =>
      tab.evaluate(
        async () =>
          (await Promise.all(Array.from({ length: 60 }, () => limiter.consume()))).filter(({ allowed }) => allowed)
            .length,
      );
    const [a, b] = await Promise.all(tabs.map(many));
    assert.equal(a + b, 100);
    for (const tab of tabs) await knows(tab, 0);
  });

  test("the refill is shared, and no more than there is", async () => {
    const limit = { rate: 40, periodMs: 1000, capacity: 40 };
    const tabs = [await open(limit), await open(limit)];
    const began = Date.now();
    const outcomes = await Promise.all(tabs.map((tab) => hammer(tab, 700)));
    const most = 40 + Math.floor((40 * (Date.now() - began)) / 1000);
    const granted = outcomes.flatMap(({ granted }) => granted);
    assert.ok(granted.length <= most, `${granted.length} of at most ${most}`);
    // The bucket was full until the first grant and empty at the last refusal, so all that was refilled in between was granted.
    const first = Math.min(...granted),
      refusedAt = Math.max(...outcomes.map(({ refusedAt }) => refusedAt ?? 0));
    assert.ok(refusedAt > 0, "a call was refused");
    const least = 40 + Math.floor((40 * (refusedAt - first)) / 1000) - 1;
    assert.ok(granted.length >= least, `${granted.length} of at least ${least}`);
  });

  test("messages that overtake each other leave the newest state", async () => {
    const tabs = [await open(budget(1000)), await open(budget(1000)), await open(budget(1000))];
    const outcomes = await Promise.all(tabs.map((tab) => hammer(tab, 300)));
    const left = 1000 - outcomes.reduce((sum, { granted }) => sum + granted.length, 0);
    assert.ok(left > 0);
    for (const tab of tabs) await knows(tab, left);
    await new Promise((resolve) => setTimeout(resolve, 100)); // a late message must change nothing
    assert.deepEqual(await Promise.all(tabs.map(remaining)), [left, left, left]);
  });

  test("every verb acts on all tabs", async () => {
    const limit = { ...budget(10), maxDebt: 5 };
    const [a, b] = [await open(limit), await open(limit)];
    await a.evaluate(() => limiter.charge(4));
    await knows(b, 6);
    await b.evaluate(() => limiter.refund(1));
    await knows(a, 7);
    await a.evaluate(() => limiter.charge(9));
    await knows(b, 0);
    await b.evaluate(() => limiter.reset());
    await knows(a, 10);
    assert.equal((await a.evaluate(() => limiter.reserve(3))).allowed, true);
    await knows(b, 7);
    assert.equal(await b.evaluate(() => limiter.consume(1.5).catch(({ code }) => code)), "cost_not_whole");
    assert.equal(await remaining(b), 7);
  });

  test("a store in another tab reports changes", async () => {
    const [a, b] = [await open(budget(2)), await open(budget(2))];
    await b.evaluate(() => {
      const store = tollgate.watch(limiter);
      globalThis.seen = [];
      store.get();
      store.subscribe(() => seen.push(store.get()));
    });
    await consume(a, 2);
    await b.waitForFunction(() => seen.length > 0, null, { polling: 5 });
    await consume(a);
    await consume(a);
    await a.evaluate(() => limiter.refund());
    await b.waitForFunction(() => seen.at(-1).ok, null, { polling: 5 });
    assert.deepEqual(await b.evaluate(() => seen.map(({ ok, remaining }) => [ok, remaining])), [
      [false, 0],
      [true, 1],
    ]);
  });

  test("a reload forgets nothing, and a new tab knows the budget at once", async () => {
    const a = await open(budget(5));
    await consume(a, 3);
    await a.reload();
    await a.make(budget(5));
    assert.equal(await remaining(a), 2);
    await a.close();
    const b = await open(budget(5));
    assert.equal(await remaining(b), 2);
    assert.deepEqual([(await consume(b, 3)).allowed, (await consume(b, 2)).allowed], [false, true]);
  });

  test("names are independent", async () => {
    const [a, b] = [await open(budget(5)), await open(budget(5), { name: "b" })];
    await consume(a, 5);
    assert.deepEqual([await remaining(b), (await consume(b, 5)).allowed], [5, true]);
  });

  test("new numbers after a reload keep the tokens", async () => {
    const table = [
      // old limits, consumed, new limits, left
      [budget(10), 4, budget(20), 6],
      [budget(10), 4, budget(3), 3],
      [[budget(10), budget(100)], 4, [budget(11), budget(100)], 6],
      [[budget(100), budget(10)], 4, [budget(110), budget(11)], 6],
      [{ ...budget(10), maxDebt: 5 }, 13, { ...budget(20), maxDebt: 5 }, 0],
      [{ ...budget(10), name: "x" }, 4, { ...budget(20), name: "y" }, 20],
      [{ ...budget(10), kind: "fixed_window" }, 4, { ...budget(20), kind: "fixed_window" }, 6],
      [budget(10), 4, { ...budget(20), kind: "fixed_window" }, 20],
    ];
    const tab = await open(budget(1));
    for (const [i, [was, cost, is, left]] of table.entries()) {
      await tab.make(was, { name: `row ${i}` });
      await tab.evaluate((cost) => limiter.charge(cost), cost);
      await tab.make(is, { name: `row ${i}` });
      assert.equal(await remaining(tab), left, `row ${i}`);
    }
    await tab.make({ ...budget(30), maxDebt: 5 }, { name: "row 4" });
    await tab.evaluate(() => limiter.refund(4));
    assert.equal(await remaining(tab), 1, "a debt of 3 was kept");
  });

  test("a pause in one tab holds in the others", async () => {
    const [a, b] = [await open(budget(5)), await open(budget(5))];
    const until = await a.evaluate(() => {
      const until = limiter.clock.now() + 300;
      return limiter.pause(until).then(() => until);
    });
    await claimed(b);
    assert.deepEqual(await consume(b), { allowed: false, retryAt: until });
    await queue(b, 1);
    assert.ok((await landed(b, 1)).at >= until);
  });
});

describe("one queue", () => {
  test("tabs are served in order of arrival", async () => {
    const limit = { rate: 1, periodMs: 50, capacity: 10 };
    const [a, b] = [await open(limit), await open(limit)];
    const emptiedAt = await a.evaluate(() => {
      const now = limiter.clock.now();
      return limiter.charge(10).then(() => now);
    });
    // The first one asks for so much that all six wait.
    const order = [a, a, b, a, b, b];
    for (const [i, tab] of order.entries()) await queue(tab, i, { cost: i === 0 ? 10 : 1 });
    const moments = [];
    for (const [i, tab] of order.entries()) moments.push((await landed(tab, i)).at);
    for (const [i, moment] of moments.entries())
      assert.ok(moment >= emptiedAt + (10 + i) * 50, `${moments}, empty at ${emptiedAt}`);
    assert.deepEqual(
      moments,
      moments.toSorted((x, y) => x - y),
    );
  });

  test("a large request is not starved by small ones from another tab", async () => {
    const limit = { rate: 10, periodMs: 400, initial: 0 };
    const [a, b] = [await open(limit), await open(limit)];
    const hammering = hammer(b, 1500);
    await queue(a, "large", { cost: 10 });
    await claimed(a);
    const claimedAt = await a.evaluate(() => limiter.clock.now());
    const { at } = await landed(a, "large");
    const { granted } = await hammering;
    assert.deepEqual(
      granted.filter((moment) => moment > claimedAt && moment < at),
      [],
    );
    assert.ok(
      granted.some((moment) => moment > at),
      "and then the small ones have their turn",
    );
  });

  for (const [what, leave] of [
    ["closed", (tab) => tab.close()],
    ["reloaded", (tab) => tab.reload()],
    ["crashed", crash],
  ]) {
    test(`a tab that is ${what} at the head of the queue blocks no other`, async () => {
      const hour = { rate: 10, periodMs: 3_600_000, initial: 5 };
      const [a, b, c] = [await open(hour), await open(hour), await open(hour)];
      await queue(a, "first", { cost: 10 });
      await claimed(b);
      await queue(b, "second", { cost: 2 });
      await claimed(c);
      assert.equal((await consume(c)).allowed, false);
      await leave(a);
      assert.equal((await landed(b, "second")).decision.allowed, true);
      await c.waitForFunction(() => limiter.peek(3).allowed && !limiter.peek(4).allowed, null, {
        polling: 5,
        timeout: 10_000,
      });
      assert.equal((await consume(c, 3)).allowed, true);
    });

    test(`the claim of a tab that is ${what} ends, even if no other waits`, async () => {
      const hour = { rate: 10, periodMs: 3_600_000, initial: 5 };
      const [a, b, c] = [await open(hour), await open(hour), await open(hour)];
      await queue(a, "first", { cost: 10 });
      for (const tab of [b, c]) await claimed(tab);
      await leave(a);
      // Both a tab that only looks and a new one notice.
      for (const tab of [c, await open(hour)])
        await tab.waitForFunction(() => limiter.peek(5).allowed, null, { polling: 5, timeout: 10_000 });
      assert.equal((await consume(b, 5)).allowed, true);
    });
  }

  test("within a tab higher priorities are first", async () => {
    const tab = await open({ rate: 1, periodMs: 50, capacity: 10 });
    await tab.evaluate(() => limiter.charge(10));
    await queue(tab, "usual", { cost: 10 });
    await queue(tab, "later", { cost: 1, priority: -1 });
    await queue(tab, "urgent", { cost: 1, priority: 1 });
    const moments = [];
    for (const id of ["urgent", "usual", "later"]) moments.push((await landed(tab, id)).at);
    assert.deepEqual(
      moments,
      moments.toSorted((x, y) => x - y),
    );
  });

  test("an aborted waiter takes nothing and makes way for the next", async () => {
    const limit = { rate: 10, periodMs: 3_600_000, initial: 5 };
    const [a, b] = [await open(limit), await open(limit)];
    await queue(a, "large", { cost: 6 });
    await queue(a, "small", { cost: 2 });
    await queue(b, "other", { cost: 1 });
    assert.deepEqual([await hasLanded(a, "small"), await hasLanded(b, "other")], [false, false]);
    await a.evaluate(() => ends.large.abort());
    assert.equal((await landed(a, "large")).error, "AbortError");
    assert.equal((await landed(a, "small")).decision.allowed, true);
    assert.equal((await landed(b, "other")).decision.allowed, true);
    for (const tab of [a, b]) await knows(tab, 2);
    assert.equal(await a.evaluate(() => limiter.waiting), 0);
  });

  test("nothing is lost when many waiters abort at any time", async () => {
    const [a, b] = [await open(budget(400)), await open(budget(400))];
    const some = (tab) =>
      tab.evaluate(async () => {
        const calls = Array.from({ length: 100 }, async (_, i) => {
          const end = new AbortController();
          const admitted = limiter.acquire({ signal: end.signal }).then(
            () => 1,
            () => 0,
          );
          setTimeout(() => end.abort(), (i * 7) % 60);
          return admitted;
        });
        return (await Promise.all(calls)).reduce((sum, one) => sum + one, 0);
      });
    const [x, y] = await Promise.all([some(a), some(b)]);
    for (const tab of [a, b]) await knows(tab, 400 - x - y);
    await queue(a, "last", { cost: 400 - x - y });
    assert.equal((await landed(a, "last")).decision.allowed, true);
  });

  test("a waiter that would wait too long is rejected: the first at once, others when the time is up", async () => {
    const hour = { rate: 10, periodMs: 3_600_000, initial: 0 };
    const [a, b] = [await open(hour), await open(hour)];
    const told = await a.evaluate(async () => {
      const began = limiter.clock.now();
      const error = await limiter.acquire({ maxWaitMs: 359_000 }).catch((error) => error);
      return { code: error.code, afterMs: limiter.clock.now() - began, waitMs: error.retryAt - began };
    });
    assert.equal(told.code, "wait_too_long");
    assert.ok(told.waitMs <= 360_000 && told.afterMs < 359_000, JSON.stringify(told));
    await queue(a, "first", { cost: 10 });
    await claimed(b);
    const began = await b.evaluate(() => limiter.clock.now());
    await queue(b, "second", { maxWaitMs: 200 });
    const { error, at } = await landed(b, "second");
    assert.equal(error, "wait_too_long");
    assert.ok(at > began + 200);
    assert.equal(await hasLanded(a, "first"), false);
    assert.equal(await a.evaluate(() => limiter.acquire({ cost: 11 }).catch(({ code }) => code)), "cost_never_granted");
  });

  test("tokens returned in another tab admit a waiter", async () => {
    const hour = { rate: 5, periodMs: 3_600_000 };
    const [a, b] = [await open(hour), await open(hour)];
    await consume(b, 5);
    await queue(a, 1, { cost: 2 });
    await b.evaluate(() => limiter.refund(2));
    assert.equal((await landed(a, 1)).decision.allowed, true);
    await knows(b, 0);
  });

  test("a waiter that can never be admitted is rejected and delays no other", async () => {
    const [a, b] = [await open({ ...budget(5), maxDebt: 5 }), await open({ ...budget(5), maxDebt: 5 })];
    await a.evaluate(() => limiter.pause(limiter.clock.now() + 300));
    await claimed(b);
    await queue(a, "large", { cost: 4 });
    await queue(b, "small", { cost: 2 });
    await b.evaluate(() => limiter.charge(2));
    assert.equal((await landed(a, "large")).error, "cost_never_granted");
    assert.equal((await landed(b, "small")).decision.allowed, true);
    for (const tab of [a, b]) await knows(tab, 1);
  });

  test("a full queue rejects", async () => {
    const tab = await open({ rate: 5, periodMs: 3_600_000 }, { options: { maxQueue: 1 } });
    await consume(tab, 5);
    await queue(tab, 1);
    await queue(tab, 2);
    assert.equal((await landed(tab, 2)).error, "queue_full");
    assert.equal(await hasLanded(tab, 1), false);
  });
});

describe("clocks", () => {
  for (const aheadMs of [-600_000, -30_000, 30_000, 600_000]) {
    test(`a tab whose clock is ${aheadMs / 1000} s ahead creates no tokens`, async () => {
      const limit = { rate: 10, periodMs: 60_000 };
      const [a, b] = [await open(limit), await open(limit, { aheadMs })];
      const began = Date.now();
      let granted = 0;
      for (let i = 0; i < 10; i++) for (const tab of [a, b]) granted += (await consume(tab)).allowed;
      const most = 10 + Math.floor((10 * (Date.now() - began)) / 60_000);
      assert.ok(granted >= 10 && granted <= most, `${granted} of ${most}`);
    });
  }

  test("a clock that was ahead yesterday locks no one out today", async () => {
    const limit = { rate: 10, periodMs: 100 };
    const a = await open(limit, { aheadMs: 86_400_000 });
    await consume(a, 10);
    await a.close();
    const b = await open(limit);
    await b.waitForFunction(() => limiter.peek(10).allowed, null, { polling: 5, timeout: 10_000 });
    assert.ok(await b.evaluate(() => Math.abs(limiter.clock.now() - Date.now()) < 60_000));
  });
});

describe("if something is missing, the tab limits alone and says so once", () => {
  const WARNING = /^tollgate: limits are for this tab alone: /;
  const table = {
    "no IndexedDB": () => Object.defineProperty(globalThis, "indexedDB", { value: undefined }),
    "no Web Locks": () => Object.defineProperty(navigator, "locks", { value: undefined }),
    "no BroadcastChannel": () => delete globalThis.BroadcastChannel,
    "a database that does not open": () => {
      IDBFactory.prototype.open = () => {
        throw new DOMException("denied", "SecurityError");
      };
    },
    "a database that fails later": () => {
      const { open } = IDBFactory.prototype;
      IDBFactory.prototype.open = function (name) {
        return open.call(this, name, name === "tollgate" ? 1 : 2);
      };
      indexedDB.deleteDatabase("tollgate");
      open.call(indexedDB, "tollgate", 5);
    },
    "a database of another version": () => indexedDB.open("tollgate", 7),
    "a disk that is full": () => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("full", "QuotaExceededError");
      };
    },
    "a state that cannot be read": () => {
      const request = indexedDB.open("tollgate");
      request.onupgradeneeded = () => request.result.createObjectStore("limits").put("nonsense", "a");
    },
  };
  for (const [what, before] of Object.entries(table)) {
    test(what, async () => {
      const other =
        /BroadcastChannel|Locks|no IndexedDB|open|full/.test(what) && (await open({ rate: 7, periodMs: 3_600_000 }));
      const tab = await open({ rate: 5, periodMs: 3_600_000 }, { before });
      const got = [];
      for (let i = 0; i < 4; i++) {
        got.push((await consume(tab)).allowed);
        if (other) await consume(other);
      }
      got.push(await remaining(tab));
      await queue(tab, "large", { cost: 2 });
      await queue(tab, "small", { cost: 1 });
      got.push((await consume(tab)).allowed, await hasLanded(tab, "small"), await tab.evaluate(() => limiter.waiting));
      await tab.evaluate(() => limiter.refund(2));
      got.push(
        (await landed(tab, "large")).decision.allowed,
        (await landed(tab, "small")).decision.allowed,
        await remaining(tab),
      );
      assert.deepEqual(got, [true, true, true, true, 1, false, false, 2, true, true, 0]);
      await tab.make(budget(5), { name: "b" });
      assert.equal((await consume(tab, 5)).allowed, true);
      assert.equal(tab.warnings.length, 1, tab.warnings.join("\n"));
      assert.match(tab.warnings[0], WARNING);
      if (other) assert.deepEqual([await remaining(other), other.warnings], [3, []]);
    });
  }

  test("a frame without an origin", async () => {
    const tab = await open(budget(1));
    const text = `<script type="module">
      import { SharedLimiter } from "${url}/tollgate.js";
      const warnings = [];
      console.warn = (...args) => warnings.push(args.join(" "));
      const limiter = new SharedLimiter("a", { rate: 0, periodMs: 1, capacity: 2 });
      const answers = [];
      for (let i = 0; i < 3; i++) answers.push((await limiter.consume()).allowed);
      parent.postMessage({ answers, warnings: warnings.length }, "*");
    </script>`;
    const outcome = await tab.evaluate(
      (text) =>
        new Promise((resolve) => {
          addEventListener("message", ({ data }) => resolve(data));
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts";
          frame.srcdoc = text;
          document.body.append(frame);
        }),
      text,
    );
    assert.deepEqual(outcome, { answers: [true, true, false], warnings: 1 });
  });

  test("Node, whose process may end", async () => {
    const program = `
      import { SharedLimiter } from ${JSON.stringify(pathToFileURL(index).href)};
      const limiters = ["a", "b"].map((name) => new SharedLimiter(name, { rate: 0, periodMs: 1000, capacity: 2 }));
      const answers = [];
      for (const limiter of limiters) for (let i = 0; i < 3; i++) answers.push((await limiter.consume()).allowed);
      console.log(JSON.stringify(answers));
    `;
    const { stdout, stderr } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], {
      timeout: 20_000,
    });
    assert.deepEqual(JSON.parse(stdout), [true, true, false, true, true, false]);
    assert.match(stderr, WARNING);
    assert.equal(stderr.match(/tollgate:/g).length, 1);
  });
});

test("there is no warning if nothing is missing", async () => {
  const tab = await open(budget(5));
  await consume(tab);
  await queue(tab, 1);
  await landed(tab, 1);
  assert.deepEqual(tab.warnings, []);
});
