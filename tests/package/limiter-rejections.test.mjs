// Limiter: which calls are rejected, and when.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, TollgateError } from "../../build/package/index.js";
import { START } from "./clock.mjs";
import { allow, make, SECOND } from "./limiters.mjs";

test("maxWaitMs is exact to the millisecond", async () => {
  const { limiter, events, acquire, admitted, to } = make({ rate: 3, periodMs: 1000, initial: 0 });
  // biome-ignore format: a table
  const table = [
    // maxWaitMs  outcome
    [0,    "wait_too_long"],
    [333,  "wait_too_long"],
    [334,  334],
    [666,  "wait_too_long"],
    [667,  667],
    [Infinity, 1000],
    [undefined, 1334],
  ];
  for (const [maxWaitMs] of table) acquire({ maxWaitMs });
  await setImmediate();
  assert.deepEqual(
    admitted(),
    ["wait_too_long", "wait_too_long", undefined, "wait_too_long", undefined, undefined, undefined],
    "at once",
  );
  await to(2000);
  assert.deepEqual(
    admitted(),
    table.map(([, becomes]) => becomes),
  );
  const reasons = events
    .filter(({ type }) => type === "drop")
    .map(({ reason }) => [reason.constructor, reason.code, reason.retryAt]);
  assert.deepEqual(reasons, [
    [TollgateError, "wait_too_long", START + 334],
    [TollgateError, "wait_too_long", START + 334],
    [TollgateError, "wait_too_long", START + 667],
  ]);
  assert.equal(limiter.waiting, 0);
});

test("a waiter that can no longer be admitted in time is rejected at once", async () => {
  const restored = [{ tokens: 0, drops: 0, at: START + 1 }];
  // biome-ignore format: a table
  const table = [
    // what happens              outcomes
    ["a higher priority joins",  ({ acquire }) => acquire({ priority: 1 }),     ["wait_too_long", 2000, 1000]],
    ["a pause",                  ({ limiter }) => limiter.pause(START + 1001),  ["wait_too_long", 1001]],
    ["a charge",                 ({ limiter }) => limiter.charge(1),            ["wait_too_long", 2000]],
    ["an older state",           ({ limiter }) => limiter.restore(restored),    ["wait_too_long", 1001]],
    ["nothing",                  () => {},                                      [1000, 2000]],
    ["a pause that ends in time", ({ limiter }) => limiter.pause(START + 1000), [1000, 2000]],
  ];
  for (const [what, happens, expected] of table) {
    const it = make({ rate: 1, periodMs: 1000, capacity: 1, initial: 0, maxDebt: 5 });
    it.acquire({ maxWaitMs: 1000 });
    it.acquire();
    happens(it);
    await setImmediate();
    assert.equal(it.admitted()[0] !== undefined, expected[0] === "wait_too_long", `${what}: at once`);
    await it.to(5000);
    assert.deepEqual(it.admitted(), expected, what);
    assert.deepEqual([it.limiter.waiting, it.clock.timers], [0, []], what);
  }
});

test("a cost that can never be granted is rejected at once, with the largest that could", async () => {
  const { limiter, events, acquire, admitted } = make([
    { name: "a", rate: 3, periodMs: 1000 },
    { name: "b", rate: 5, periodMs: 1000 },
  ]);
  for (const cost of [4, { a: 1, b: 6 }, { a: 3, b: 5 }]) acquire({ cost });
  await setImmediate();
  assert.deepEqual(admitted(), ["cost_never_granted", "cost_never_granted", 0]);
  await assert.rejects(limiter.acquire({ cost: 4 }), { name: "TollgateError", code: "cost_never_granted", maxCost: 3 });
  await assert.rejects(limiter.acquire({ cost: { a: 1, b: 6 } }), { code: "cost_never_granted", maxCost: 5 });
  assert.deepEqual(
    events.map(({ type }) => type),
    ["allow"],
  );
});

test("rejects invalid options, which leave nothing in the queue", async () => {
  const { clock, limiter, events, acquire, to } = make([{ name: "a", rate: 3, periodMs: 1000 }]);
  const table = [
    [{ cost: -1 }, "cost_too_small"],
    [{ cost: 1.5 }, "cost_not_whole"],
    [{ cost: NaN }, "cost_not_whole"],
    [{ cost: { a: 1.5 } }, "cost_not_whole"],
    [{ maxWaitMs: -1 }, "maxWaitMs_too_small"],
    [{ maxWaitMs: 0.5 }, "maxWaitMs_not_whole"],
    [{ maxWaitMs: NaN }, "maxWaitMs_not_whole"],
    [{ maxWaitMs: "5" }, "maxWaitMs_not_whole"],
    [{ signal: {} }, undefined],
    [null, undefined],
  ];
  for (const state of ["now", "queued"]) {
    for (const [options, code] of table) {
      const before = [limiter.save(), limiter.waiting, events.length];
      await assert.rejects(
        limiter.acquire(options),
        (error) => (code ? error.code === code : error instanceof TypeError),
        `${state}: ${JSON.stringify(options)}`,
      );
      assert.deepEqual(
        [limiter.save(), limiter.waiting, events.length],
        before,
        `${state}: ${JSON.stringify(options)}`,
      );
    }
    acquire({ cost: 3 });
    acquire({ cost: 3 });
  }
  await to(10_000);
  assert.deepEqual([limiter.waiting, clock.timers], [0, []]);
  for (const options of [
    { maxQueue: -1 },
    { maxQueue: 0.5 },
    { maxQueue: NaN },
    { overflow: "drop" },
    { overflow: null },
  ]) {
    assert.throws(() => new Limiter(SECOND, { clock, ...options }), TollgateError, JSON.stringify(options));
  }
});

test("a cost in place of the options is rejected, not taken for 1", async () => {
  const { limiter, acquire, to } = make({ rate: 9, periodMs: 1000, maxDebt: 9 });
  const wrong = { name: "TollgateError", code: "options_unknown" };
  for (const state of ["free", "queued"]) {
    const before = [limiter.save(), limiter.waiting];
    assert.throws(() => limiter.decide(5), wrong, state);
    assert.throws(() => limiter.reserve(5), wrong, state);
    await assert.rejects(limiter.acquire(5), wrong, state);
    assert.deepEqual([limiter.save(), limiter.waiting], before, state);
    acquire({ cost: 9 });
    acquire({ cost: 9 });
  }
  await to(5000);
});

test("rejects a priority that is not a number", async () => {
  for (const priority of [NaN, "high", null, {}]) {
    const { limiter } = make(SECOND);
    await assert.rejects(limiter.acquire({ priority }), TollgateError, String(priority));
  }
});

test("an invalid cost changes nothing for the waiters", async () => {
  for (const wrong of [1.5, -1, NaN, { a: 1.5 }]) {
    const { limiter, acquire, admitted, to } = make([{ name: "a", rate: 1, periodMs: 1000, initial: 0 }]);
    acquire();
    acquire();
    const before = limiter.save();
    for (const ask of ["tryConsume", "peek"]) assert.throws(() => limiter[ask](wrong), TollgateError);
    for (const ask of ["decide", "reserve"]) assert.throws(() => limiter[ask]({ cost: wrong }), TollgateError);
    assert.deepEqual(limiter.save(), before, String(wrong));
    await to(5000);
    assert.deepEqual(admitted(), [1000, 2000], String(wrong));
  }
});

test("a signal aborts the wait and leaves nothing behind", async () => {
  const { clock, limiter, events, acquire, to } = make({ rate: 1, periodMs: 1000 });
  const reason = new Error("given up");
  const before = AbortSignal.abort(reason);
  const fate = acquire({ signal: before });
  await setImmediate();
  assert.equal(fate.error, reason, "before");
  assert.equal(limiter.remaining(), 1, "nothing was taken");
  const controller = new AbortController();
  acquire({ signal: controller.signal });
  assert.equal(getEventListeners(controller.signal, "abort").length, 0, "an admitted call does not listen");
  const waits = acquire({ signal: controller.signal, cost: 1 });
  assert.equal(getEventListeners(controller.signal, "abort").length, 1);
  await to(500);
  controller.abort(reason);
  assert.deepEqual([limiter.waiting, clock.timers, getEventListeners(controller.signal, "abort").length], [0, [], 0]);
  await setImmediate();
  assert.deepEqual(waits, { at: START + 500, error: reason });
  assert.deepEqual(events.at(-1), { type: "drop", cost: 1, reason });
  await to(1000);
  assert.equal(limiter.remaining(), 1);
  const after = new AbortController();
  const admitted = acquire({ signal: after.signal });
  await setImmediate();
  after.abort(reason);
  await setImmediate();
  assert.deepEqual(admitted.value, allow(1, 1000), "after");
  await assert.rejects(limiter.acquire({ signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(acquire({ signal: null }).error, undefined, "null is no signal");
});

test("an aborted waiter makes way for those behind it", async () => {
  const { limiter, acquire, admitted, to } = make({ rate: 1, periodMs: 1000, capacity: 3, initial: 0 });
  const first = new AbortController();
  acquire({ cost: 3, signal: first.signal });
  acquire({ cost: 1 });
  acquire({ cost: 1 });
  await to(2500);
  first.abort();
  assert.deepEqual([limiter.waiting, limiter.remaining()], [0, 0], "at once");
  await setImmediate();
  assert.deepEqual(admitted().slice(1), [2500, 2500]);
  const middle = new AbortController();
  acquire({ cost: 1 });
  acquire({ cost: 3, signal: middle.signal });
  acquire({ cost: 1 });
  middle.abort();
  await to(10_000);
  assert.deepEqual([admitted()[3], admitted()[5]], [3000, 4000]);
});

test("a waiter whose signal is aborted is never admitted", async () => {
  const { limiter, acquire, admitted } = make({ rate: 1, periodMs: 1000, capacity: 3, initial: 1 });
  const controller = new AbortController();
  acquire({ cost: 3, signal: controller.signal });
  acquire({ cost: 1, signal: controller.signal });
  controller.abort("over");
  await setImmediate();
  assert.deepEqual([admitted(), limiter.remaining(), limiter.waiting], [["over", "over"], 1, 0]);
});

test("a full queue rejects the new call or drops the oldest", async () => {
  // biome-ignore format: a table
  const table = [
    // overflow      maxQueue  priorities          outcomes
    [undefined,      2,        [0, 0, 0, 0],       [1000, 2000, "queue_full", "queue_full"]],
    ["reject",       2,        [0, 0, 9],          [1000, 2000, "queue_full"]],
    ["reject",       0,        [0, 9],             ["queue_full", "queue_full"]],
    ["drop_oldest",  2,        [0, 0, 0, 0],       ["queue_full", "queue_full", 1000, 2000]],
    ["drop_oldest",  2,        [1, 0, 0],          [1000, "queue_full", 2000]],
    ["drop_oldest",  2,        [0, 1, 2, 3],       ["queue_full", "queue_full", 2000, 1000]],
    ["drop_oldest",  2,        [1, 1, 0],          [1000, 2000, "queue_full"]], // it is the oldest of its own priority
    ["drop_oldest",  0,        [0, 9],             ["queue_full", "queue_full"]],
    ["drop_oldest",  1,        [0, 0],             ["queue_full", 1000]],
  ];
  for (const [overflow, maxQueue, priorities, expected] of table) {
    const row = `${overflow} ${maxQueue} ${priorities}`;
    const { clock, limiter, acquire, admitted, to } = make({ ...SECOND, initial: 0 }, { overflow, maxQueue });
    for (const priority of priorities) {
      acquire({ priority });
      assert.ok(limiter.waiting <= maxQueue, row);
    }
    await setImmediate();
    assert.deepEqual(
      admitted().map((then) => then === "queue_full"),
      expected.map((then) => then === "queue_full"),
      `${row}: at once`,
    );
    await to(10_000);
    assert.deepEqual([admitted(), limiter.waiting, clock.timers], [expected, 0, []], row);
  }
});

test("with a queue of 0, calls that need not wait are admitted", async () => {
  const { limiter, acquire, admitted } = make({ rate: 2, periodMs: 1000 }, { maxQueue: 0 });
  acquire();
  acquire();
  acquire();
  await setImmediate();
  assert.deepEqual([admitted(), limiter.waiting], [[0, 0, "queue_full"], 0]);
});

test("by default any number of calls may wait", async () => {
  const { limiter, acquire, admitted } = make({ rate: 10, periodMs: 1, initial: 0 });
  for (let i = 0; i < 5000; i++) acquire();
  await setImmediate();
  assert.deepEqual([limiter.waiting, admitted().filter(Boolean)], [5000, []]);
});

test("the deadline of a call that replaces the oldest counts without the oldest", async () => {
  const { acquire, admitted, to } = make({ ...SECOND, initial: 0 }, { maxQueue: 1, overflow: "drop_oldest" });
  acquire();
  acquire({ maxWaitMs: 1000 });
  await to(5000);
  assert.deepEqual(admitted(), ["queue_full", 1000]);
});
