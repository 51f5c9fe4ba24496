// SharedLimiter: one queue for all tabs.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  budget,
  claimed,
  consume,
  crash,
  hammer,
  hasLanded,
  knows,
  landed,
  open,
  queue,
  relax,
  sleep,
} from "./tabs.mjs";

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
    await hammer(b);
    await queue(a, "large", { cost: 10 });
    await claimed(a);
    const claimedAt = await a.evaluate(() => limiter.clock.now());
    const { at } = await landed(a, "large");
    // Then the small ones have their turn.
    const { granted } = await relax(b, (at) => hammered.granted.some((moment) => moment > at), at);
    const between = granted.filter((moment) => moment > claimedAt && moment < at);
    assert.deepEqual(between, []);
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
      // Both a tab that only peeks and a new one notice.
      for (const tab of [c, await open(hour)])
        await tab.waitForFunction(() => limiter.peek(5).allowed, null, { polling: 5, timeout: 10_000 });
      assert.equal((await consume(b, 5)).allowed, true);
    });
  }

  test("within a tab higher priorities are first", async () => {
    const hour = { rate: 10, periodMs: 3_600_000, initial: 0 };
    const tab = await open(hour);
    await queue(tab, "usual", { cost: 10 });
    await queue(tab, "later", { cost: 10, priority: -1 });
    await queue(tab, "urgent", { cost: 10, priority: 1 });
    const ids = ["urgent", "usual", "later"];
    for (const [i, id] of ids.entries()) {
      await sleep(tab, 3_600_000);
      assert.equal((await landed(tab, id)).decision.allowed, true);
      for (const other of ids.slice(i + 1)) assert.equal(await hasLanded(tab, other), false);
    }
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

  test("nothing is lost when many waiters abort at random times", async () => {
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

  test("a waiter that would wait too long is rejected at once, in any tab", async () => {
    const hour = { rate: 10, periodMs: 3_600_000, initial: 0 };
    const [a, b] = [await open(hour), await open(hour)];
    const outcome = (tab, options) =>
      tab.evaluate(async (options) => {
        const began = limiter.clock.now();
        const error = await limiter.acquire(options).catch((error) => error);
        return { code: error.code, afterMs: limiter.clock.now() - began, waitMs: error.retryAt - began };
      }, options);
    const first = await outcome(a, { maxWaitMs: 300_000 });
    assert.equal(first.code, "wait_too_long");
    assert.ok(first.waitMs <= 360_000 && first.afterMs < 300_000, JSON.stringify(first));
    await queue(a, "first", { cost: 5 });
    await claimed(b);
    // It would be admitted after the other tab's: with six tokens, in 36 minutes.
    const second = await outcome(b, { maxWaitMs: 2_000_000 });
    assert.equal(second.code, "wait_too_long");
    assert.ok(second.waitMs > 2_100_000 && second.waitMs <= 2_160_000, JSON.stringify(second));
    await queue(b, "third", { maxWaitMs: 2_200_000 });
    assert.deepEqual([await hasLanded(a, "first"), await hasLanded(b, "third")], [false, false]);
    // It also learns at once when the tokens it waits for are taken.
    await a.evaluate(() => limiter.pause(limiter.clock.now() + 3_000_000));
    assert.equal((await landed(b, "third")).error, "wait_too_long");
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
    await a.evaluate(() => limiter.pause(limiter.clock.now() + 3_600_000));
    await claimed(b);
    await queue(a, "large", { cost: 4 });
    await queue(b, "small", { cost: 2 });
    await b.evaluate(() => limiter.charge(2));
    assert.equal((await landed(a, "large")).error, "cost_never_granted");
    await sleep(b, 3_600_000);
    assert.equal((await landed(b, "small")).decision.allowed, true);
    for (const tab of [a, b]) await knows(tab, 1);
  });

  test("a full queue admits those who can pass at once", async () => {
    const tab = await open({ rate: 5, periodMs: 3_600_000 }, { options: { maxQueue: 0 } });
    const outcomes = await tab.evaluate(() =>
      Promise.all(
        Array.from({ length: 7 }, () =>
          limiter.acquire().then(
            ({ allowed }) => allowed,
            ({ code }) => code,
          ),
        ),
      ),
    );
    assert.deepEqual(outcomes, [true, true, true, true, true, "queue_full", "queue_full"]);
  });

  test("a full queue rejects", async () => {
    const tab = await open({ rate: 5, periodMs: 3_600_000 }, { options: { maxQueue: 1 } });
    await consume(tab, 5);
    await queue(tab, 1);
    await queue(tab, 2);
    assert.equal((await landed(tab, 2)).error, "queue_full");
    assert.equal(await hasLanded(tab, 1), false);
  });

  test("of calls made together the first have room in it", async () => {
    const tab = await open({ rate: 5, periodMs: 3_600_000 }, { options: { maxQueue: 2 } });
    await consume(tab, 4);
    const outcomes = await tab.evaluate(async () => {
      const outcomes = Array(5).fill("waiting");
      const calls = outcomes.map((_, i) =>
        limiter.acquire().then(
          () => (outcomes[i] = "admitted"),
          ({ code }) => (outcomes[i] = code),
        ),
      );
      await Promise.all([calls[0], calls[3], calls[4]]);
      return outcomes;
    });
    assert.deepEqual(outcomes, ["admitted", "waiting", "waiting", "queue_full", "queue_full"]);
  });
});
