// SharedLimiter: one budget for all tabs.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { budget, claimed, consume, hammer, knows, landed, open, queue, relax, remaining, sleep } from "./tabs.mjs";

describe("one budget", () => {
  test("many simultaneous calls in two tabs take exactly what is available, and both know it", async () => {
    const tabs = [await open(budget(100)), await open(budget(100))];
    const many = (tab) =>
      tab.evaluate(
        async () => (await Promise.all(Array.from({ length: 60 }, () => limiter.tryConsume()))).filter(Boolean).length,
      );
    const [a, b] = await Promise.all(tabs.map(many));
    assert.equal(a + b, 100);
    for (const tab of tabs) await knows(tab, 0);
  });

  test("the refill is shared, and granted once", async () => {
    const limit = { rate: 10, periodMs: 500, capacity: 10 };
    const tabs = [await open(limit), await open(limit)];
    const began = Date.now();
    for (const tab of tabs) await hammer(tab);
    const isRefilled = () => hammered.refusedAt > 0 && hammered.granted.length > 15;
    const outcomes = await Promise.all(tabs.map((tab) => relax(tab, isRefilled)));
    const most = 10 + Math.floor((10 * (Date.now() - began)) / 500);
    const granted = outcomes.flatMap(({ granted }) => granted);
    assert.ok(granted.length <= most, `${granted.length} of at most ${most}`);
    // The bucket was full until the first grant and empty at the last refusal, so all refill in between was
    // granted.
    const first = Math.min(...granted);
    const refusedAt = Math.max(...outcomes.map(({ refusedAt }) => refusedAt));
    const least = 10 + Math.floor((10 * (refusedAt - first)) / 500) - 1;
    assert.ok(granted.length >= least, `${granted.length} of at least ${least}`);
  });

  test("messages that overtake each other leave the newest state", async () => {
    const limit = budget(1e6);
    const tabs = [await open(limit), await open(limit), await open(limit)];
    for (const tab of tabs) await hammer(tab);
    const outcomes = await Promise.all(tabs.map((tab) => relax(tab, () => hammered.granted.length >= 50)));
    const left = 1e6 - outcomes.reduce((sum, { granted }) => sum + granted.length, 0);
    for (const tab of tabs) await knows(tab, left);
    await new Promise((resolve) => setTimeout(resolve, 100)); // a late message must change nothing
    assert.deepEqual(await Promise.all(tabs.map(remaining)), [left, left, left]);
  });

  test("of two messages during a transaction the newer counts, even if the older arrives last", async () => {
    const [a, b] = [await open(budget(10)), await open(budget(10))];
    await a.evaluate(async () => {
      const { transaction } = IDBDatabase.prototype;
      const held = new Promise((resolve) => (globalThis.letGo = resolve));
      const committed = new Promise((resolve) => {
        IDBDatabase.prototype.transaction = function (...args) {
          const opened = transaction.apply(this, args);
          opened.addEventListener("complete", resolve);
          return Object.defineProperty(opened, "oncomplete", { set: (end) => void held.then(end) });
        };
      });
      globalThis.heard = 0;
      new BroadcastChannel("tollgate:1:a").onmessage = () => heard++;
      globalThis.charged = limiter.charge(1);
      await committed;
    });
    await b.evaluate(async () => {
      const { postMessage } = BroadcastChannel.prototype;
      const sent = [];
      BroadcastChannel.prototype.postMessage = function (state) {
        sent.unshift(() => postMessage.call(this, state));
      };
      await limiter.charge(2);
      await limiter.charge(4);
      for (const send of sent) send();
    });
    await a.waitForFunction(() => heard === 2, null, { polling: 5 });
    await a.evaluate(() => {
      letGo();
      return charged;
    });
    await knows(a, 3);
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
    assert.equal((await a.evaluate(() => limiter.reserve({ cost: 3 }))).allowed, true);
    await knows(b, 7);
    assert.equal(await b.evaluate(() => limiter.tryConsume(1.5).catch(({ code }) => code)), "cost_not_whole");
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
    assert.equal(await remaining(tab), 1, "the debt of 3 was carried over");
  });

  test("a pause in one tab holds in the others", async () => {
    const [a, b] = [await open(budget(5)), await open(budget(5))];
    const until = await a.evaluate(() => {
      const until = limiter.clock.now() + 3_600_000;
      return limiter.pause(until).then(() => until);
    });
    await claimed(b);
    const { retryAfterMs, ...refusal } = await consume(b);
    assert.deepEqual(refusal, { allowed: false, retryAt: until, remaining: 5 });
    assert.ok(retryAfterMs > 3_500_000 && retryAfterMs <= 3_600_000, `${retryAfterMs}`);
    await queue(b, 1);
    await sleep(b, 3_600_000);
    assert.ok((await landed(b, 1)).at >= until);
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
