// SharedLimiter: no tab blocks another, whatever it does.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  budget,
  claimed,
  consume,
  freeze,
  hasLanded,
  knows,
  landed,
  open,
  queue,
  remaining,
  suspend,
  url,
} from "./tabs.mjs";

const hour = { rate: 10, periodMs: 3_600_000, initial: 5 };

describe("a page that cannot run leaves the queue, and joins it again at the end", () => {
  const table = {
    "in the back/forward cache": async (tab) => {
      await tab.evaluate(() => {
        addEventListener("pageshow", ({ persisted }) => (globalThis.wasPersisted = persisted));
      });
      await tab.goto(`${url}/other.html`);
      return async () => {
        await tab.goBack({ waitUntil: "commit" });
        assert.equal(await tab.evaluate(() => globalThis.wasPersisted), true);
      };
    },
    frozen: freeze,
  };
  for (const [what, leave] of Object.entries(table)) {
    test(what, async () => {
      const [a, b] = [await open(hour), await open(hour)];
      await queue(a, "first", { cost: 10 });
      await claimed(b);
      await queue(b, "second", { cost: 2 });
      const comeBack = await leave(a);
      assert.equal((await landed(b, "second")).decision.allowed, true);
      assert.equal((await consume(b, 2)).allowed, true);
      await queue(b, "third", { cost: 2 });
      await comeBack();
      // Now it is behind the third, which waits for one more token.
      await a.waitForFunction(() => limiter.remaining() === 1, null, { polling: 5, timeout: 10_000 });
      assert.equal(await hasLanded(a, "first"), false);
      await b.evaluate(() => limiter.refund(1));
      assert.equal((await landed(b, "third")).decision.allowed, true);
      await b.evaluate(() => limiter.refund(10));
      assert.equal((await landed(a, "first")).decision.allowed, true);
      await knows(b, 0);
    });
  }
});

describe("a tab that is suspended", () => {
  test("blocks no other for longer than a second after its turn, and joins the queue again", async () => {
    const [a, b] = [await open(hour), await open(hour)];
    await queue(a, "first", { cost: 10 });
    await claimed(b);
    await queue(b, "second", { cost: 2 });
    await suspend(a, 8000);
    const refundedAt = await b.evaluate(async () => {
      const now = limiter.clock.now();
      await limiter.refund(5); // enough for the first
      return now;
    });
    const { decision, at } = await landed(b, "second");
    assert.equal(decision.allowed, true);
    assert.ok(at >= refundedAt + 1000 && at < refundedAt + 7000, `${at - refundedAt} ms`);
    await knows(b, 8);
    await b.evaluate(() => limiter.refund(2));
    assert.equal((await landed(a, "first")).decision.allowed, true); // once it has woken up
  });

  test("does not block a tab that does not wait", async () => {
    const [a, b] = [await open(hour), await open(hour)];
    await queue(a, "first", { cost: 10 });
    await claimed(b);
    await suspend(a, 8000);
    await b.evaluate(() => limiter.refund(5));
    await b.waitForFunction(() => limiter.peek(10).allowed, null, { polling: 5, timeout: 5000 });
    assert.equal((await consume(b, 10)).allowed, true);
  });

  test("keeps its place if it only wakes up late, like background timers", async () => {
    const limit = { rate: 10, periodMs: 3000, initial: 0 };
    const late = () => {
      const { setTimeout } = globalThis;
      globalThis.setTimeout = (wake, ms) => setTimeout(wake, ms > 100 ? ms + 60_000 : ms);
    };
    const [a, b] = [await open(limit, { before: late }), await open(limit)];
    await queue(a, "first", { cost: 10 });
    await queue(b, "second", { cost: 1 });
    const [first, second] = [await landed(a, "first"), await landed(b, "second")];
    assert.ok(first.at <= second.at);
  });
});

describe("two versions of a page", () => {
  const [old, young] = [
    { rate: 2, periodMs: 1000, capacity: 2 },
    { rate: 3, periodMs: 1000, capacity: 3 },
  ];

  test("share the numbers of the one opened last, and no refill is lost between them", async () => {
    const [a, b] = [await open(old), await open(young)];
    await a.waitForFunction(() => limiter.limits[0].rate === 3, null, { polling: 5, timeout: 10_000 });
    for (const tab of [a, b]) {
      await tab.evaluate(() => {
        globalThis.tally = { granted: 0, polls: 0 };
        const poll = async () => {
          tally.granted += await limiter.tryConsume();
          tally.polls++;
        };
        setInterval(poll, 20);
      });
    }
    const began = Date.now();
    await new Promise((resolve) => setTimeout(resolve, 4000));
    const granted = (await Promise.all([a, b].map((tab) => tab.evaluate(() => tally.granted)))).reduce((x, y) => x + y);
    const elapsedMs = Date.now() - began;
    // The bucket is empty but for at most what refilled between two polls.
    assert.ok(
      granted >= Math.floor((3 * (elapsedMs - 1000)) / 1000) && granted <= 3 + (3 * (elapsedMs + 1000)) / 1000,
      `${granted}`,
    );
  });

  test("a debt beyond the new maximum is owed, and a fraction of a token is kept", async () => {
    const tab = await open({ ...budget(10), maxDebt: 5 });
    await tab.evaluate(() => limiter.charge(14));
    await tab.make({ ...budget(10), maxDebt: 1 });
    await tab.evaluate(() => limiter.refund(5));
    assert.equal(await remaining(tab), 1);
  });

  test("a cost by names counts the limits that a version knows", async () => {
    const [a, b] = [
      await open([{ ...budget(10), name: "x" }]),
      await open([
        { ...budget(10), name: "x" },
        { ...budget(5), name: "y" },
      ]),
    ];
    await a.waitForFunction(() => limiter.limits.length === 2, null, { polling: 5, timeout: 10_000 });
    assert.equal((await consume(a, { x: 8 })).allowed, true);
    assert.equal((await consume(b, { x: 2, y: 5 })).allowed, true);
    assert.equal(await a.evaluate(() => limiter.tryConsume({ z: 1 }).catch(({ code }) => code)), "cost_not_whole");
  });
});

describe("clocks", () => {
  test("two tabs, one with a clock two hours behind, create no tokens however often each is reloaded", async () => {
    const limit = { rate: 10, periodMs: 3_600_000 };
    const a = await open(limit);
    let granted = 0;
    const b = await open(limit, { aheadMs: -7_200_000 });
    for (let i = 0; i < 4; i++) {
      for (let j = 0; j < 11; j++) granted += (await consume(a)).allowed + (await consume(b)).allowed;
      for (const tab of [b, a]) {
        await tab.reload();
        await tab.make(limit);
      }
    }
    assert.equal(granted, 10);
  });

  test("open tabs follow one whose clock is set back, so no refill counts twice", async () => {
    const limit = { rate: 10, periodMs: 3_600_000 };
    const a = await open(limit);
    await consume(a, 10);
    await suspend(a, 3000); // so it does not answer
    const b = await open(limit, { aheadMs: -7_200_000 });
    assert.equal((await consume(b)).allowed, false);
    assert.equal((await consume(a)).allowed, false);
    assert.ok(await a.evaluate(() => Math.abs(limiter.clock.now() + 7_200_000 - Date.now()) < 60_000));
    await a.evaluate(() => limiter.refund(1));
    await knows(b, 1);
  });

  test("a pause under a clock that was years ahead ends when it would have, once that is corrected", async () => {
    const limit = { rate: 10, periodMs: 100 };
    const a = await open(limit, { aheadMs: 4 * 365 * 86_400_000 });
    await a.evaluate(() => limiter.pause(limiter.clock.now() + 2000));
    await a.close();
    const b = await open(limit);
    await b.waitForFunction(() => limiter.peek(10).allowed, null, { polling: 5, timeout: 5_000 });
    assert.equal((await consume(b, 10)).allowed, true);
  });

  test("a pause can be ended", async () => {
    const [a, b] = [await open(budget(5)), await open(budget(5))];
    for (const end of [() => limiter.resume(), () => limiter.reset()]) {
      await a.evaluate(() => limiter.pause(limiter.clock.now() + 3_600_000));
      await claimed(b);
      await a.evaluate(end);
      await b.waitForFunction(() => limiter.peek(5).allowed, null, { polling: 5, timeout: 5_000 });
    }
  });
});

describe("storage", () => {
  test("one failed write takes no tab out of the budget", async () => {
    const flaky = () => {
      const { put } = IDBObjectStore.prototype;
      globalThis.failNext = 0;
      IDBObjectStore.prototype.put = function (...args) {
        if (globalThis.failNext-- > 0) throw new DOMException("full", "QuotaExceededError");
        return put.apply(this, args);
      };
    };
    const [a, b] = [await open(budget(10), { before: flaky }), await open(budget(10))];
    let granted = 0;
    await a.evaluate(() => (globalThis.failNext = 1));
    for (let i = 0; i < 10; i++) granted += (await consume(a)).allowed + (await consume(b)).allowed;
    assert.deepEqual([granted, await a.evaluate(() => limiter.isShared), a.warnings], [10, true, []]);
    await a.evaluate(() => limiter.refund(1));
    await knows(b, 1);
  });

  test("what a tab took alone is taken from all, once the storage works again", async () => {
    const broken = () => {
      const { put } = IDBObjectStore.prototype;
      IDBObjectStore.prototype.put = function (...args) {
        if (globalThis.isBroken) throw new DOMException("full", "QuotaExceededError");
        return put.apply(this, args);
      };
    };
    const [a, b] = [await open(budget(10), { before: broken }), await open(budget(10))];
    await consume(a, 2);
    await a.evaluate(() => (globalThis.isBroken = true));
    assert.equal((await consume(a, 3)).allowed, true);
    assert.equal(await a.evaluate(() => limiter.isShared), false);
    assert.equal((await consume(b, 4)).allowed, true);
    await a.evaluate(() => (globalThis.isBroken = false));
    await a.waitForFunction(() => limiter.isShared, null, { polling: 5, timeout: 10_000 });
    for (const tab of [a, b]) await knows(tab, 1);
  });

  test("after the site's data was cleared, the tabs still share a budget", async () => {
    const [a, b] = [await open(budget(10)), await open(budget(10))];
    await consume(a, 2);
    await knows(b, 8);
    const session = await a.context().newCDPSession(a);
    await session.send("Storage.clearDataForOrigin", { origin: url, storageTypes: "all" });
    let granted = 0;
    for (let i = 0; i < 10; i++) granted += (await consume(a)).allowed + (await consume(b)).allowed;
    assert.equal(granted, 8);
    assert.deepEqual(await Promise.all([a, b].map((tab) => tab.evaluate(() => limiter.isShared))), [true, true]);
  });

  test("a database that hangs delays no signal and no deadline, and a call only for seconds", async () => {
    const mute = () => {
      IDBFactory.prototype.open = () => ({});
    };
    const tab = await open(budget(5))
      .then((tab) => tab.close())
      .then(() => open(budget(5), { before: mute, waits: false }));
    const outcome = await tab.evaluate(async () => {
      const began = performance.now();
      const after = async (promise) => [
        await promise.then(
          (grant) => grant.allowed ?? grant,
          (error) => (error.name === "TollgateError" ? error.code : error.name),
        ),
        performance.now() - began,
      ];
      const answers = await Promise.all([
        after(limiter.acquire({ signal: AbortSignal.timeout(100) })),
        after(limiter.acquire({ maxWaitMs: 100 })),
        after(limiter.acquire()),
        after(limiter.tryConsume(2)),
      ]);
      return { answers, isShared: limiter.isShared };
    });
    const [signal, deadline, acquired, consumed] = outcome.answers;
    assert.deepEqual(
      [signal[0], deadline[0], acquired[0], consumed[0], outcome.isShared],
      ["TimeoutError", "wait_too_long", true, true, false],
    );
    assert.ok(
      signal[1] < 2000 && deadline[1] < 2000 && acquired[1] < 5000 && consumed[1] < 5000,
      JSON.stringify(outcome),
    );
  });
});

describe("limits and the end", () => {
  test("limits and costs may be proxies of a framework, and explicit defaults start nothing anew", async () => {
    const limit = { ...budget(5), name: "x" };
    const tab = await open(limit);
    await consume(tab, 2);
    const outcome = await tab.evaluate(async (limit) => {
      const reactive = (object) =>
        new Proxy(object, { get: (o, key) => (typeof o[key] === "object" ? reactive(o[key]) : o[key]) });
      const second = new tollgate.SharedLimiter("a", reactive([{ ...limit, maxDebt: 0, kind: "token_bucket" }]));
      await second.pause(second.clock.now() + 3_600_000);
      const acquired = second.acquire({ cost: reactive({ x: 2 }) });
      await second.charge(0);
      const outcome = [second.remaining(), second.isShared];
      await second.resume();
      await acquired;
      return [...outcome, second.remaining()];
    }, limit);
    assert.deepEqual([outcome, tab.warnings], [[3, true, 1], []]);
  });

  test("a closed limiter leaves the queue, and rejects waiters and later calls", async () => {
    const [a, b] = [await open(hour), await open(hour)];
    await queue(a, "first", { cost: 10 });
    await claimed(b);
    await queue(b, "second", { cost: 2 });
    await a.evaluate(() => limiter[Symbol.dispose]());
    assert.equal((await landed(a, "first")).error, "closed");
    assert.equal((await landed(b, "second")).decision.allowed, true);
    for (const call of [() => limiter.tryConsume(), () => limiter.acquire()])
      assert.equal(await a.evaluate(call).catch(({ message }) => /closed/.test(message)), true);
  });
});
