// Limiter: what changes its answers besides time and tokens taken: pauses, debts, returned tokens, restored states.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { TollgateError } from "../../build/package/index.js";
import { checked } from "./buckets.mjs";
import { START } from "./clock.mjs";
import { allow, make, never, SECOND, wait } from "./limiters.mjs";

test("a pause admits nothing until it ends", async () => {
  const { clock, limiter, events, acquire, admitted, to } = make({ rate: 3, periodMs: 1000 });
  limiter.pause(START + 5000);
  assert.deepEqual(events, [{ type: "change" }]);
  assert.deepEqual(
    [checked(limiter).peek(), checked(limiter).decide(), checked(limiter).reserve()],
    [wait(5000), wait(5000), wait(5000)],
  );
  assert.deepEqual([checked(limiter).peek(4), checked(limiter).decide({ cost: 4 })], [never(3), never(3)]);
  assert.equal(limiter.remaining(), 3, "the tokens are there, but on hold");
  acquire({ cost: 2 });
  acquire({ cost: 2 });
  acquire({ maxWaitMs: 4999 });
  await to(4999);
  assert.deepEqual(admitted(), [undefined, undefined, "wait_too_long"]);
  assert.deepEqual(checked(limiter).peek(), wait(5667));
  limiter.pause(START + 4999); // a later pause is never shortened
  limiter.pause(0);
  await setImmediate();
  assert.deepEqual([admitted()[0], clock.timers], [undefined, [START + 5000]]);
  limiter.pause(START + 6000);
  await to(5999);
  assert.deepEqual([admitted()[0], clock.timers], [undefined, [START + 6000]]);
  await to(6000);
  assert.deepEqual(admitted().slice(0, 2), [6000, undefined]);
  await to(6334);
  assert.deepEqual(admitted().slice(0, 2), [6000, 6334]);
  assert.deepEqual(checked(limiter).decide(), wait(6667));
  await to(7000);
  assert.deepEqual([limiter.tryConsume(), limiter.peek(2).retryAt], [true, START + 7334]);
});

test("a pause in the past has no effect", () => {
  const { limiter } = make(SECOND);
  for (const moment of [START, START - 1, 0, -(2 ** 52)]) {
    limiter.pause(moment);
    assert.deepEqual(checked(limiter).peek(), allow(1, 0), `${moment}`);
  }
  limiter.pause(START + 1);
  assert.deepEqual(checked(limiter).peek(), wait(1));
});

test("rejects a pause until anything but a moment", async () => {
  for (const not of [NaN, 1.5, "soon", undefined, Infinity, -Infinity, 2 ** 53, START + 0.5]) {
    const { limiter, acquire, admitted, to } = make(SECOND);
    assert.throws(() => limiter.pause(not), TollgateError, String(not));
    assert.deepEqual(checked(limiter).peek(), allow(1, 0), String(not));
    acquire({ maxWaitMs: 5 });
    await to(1);
    assert.deepEqual(admitted(), [0], String(not));
  }
});

test("a pause only delays a reservation of more than the capacity", async () => {
  for (const limit of [
    { ...SECOND, capacity: 0, maxDebt: 5 },
    { ...SECOND, capacity: 1, maxDebt: 5 },
  ]) {
    const { limiter, to } = make(limit);
    limiter.pause(START + 500);
    const { retryAt } = checked(limiter).reserve({ cost: 2 });
    assert.equal(retryAt, START + 500);
    await to(500);
    assert.equal(limiter.reserve({ cost: 2 }).allowed, true);
  }
});

test("a reservation refused because of the queue has the moment of the grant", async () => {
  const { limiter, acquire, to } = make({ ...SECOND, initial: 0, maxDebt: 5 });
  acquire();
  const { retryAt } = checked(limiter).reserve({ cost: 1 });
  assert.equal(retryAt, START + 1000);
  await to(1000);
  assert.deepEqual(checked(limiter).reserve({ cost: 1 }), allow(1, 2000));
});

test("returned tokens wake the waiters", async () => {
  const table = [
    ["refund", (limiter) => limiter.refund(2), [500, 500, 1000]],
    ["refund of less than they wait for", (limiter) => limiter.refund(1), [500, 1000, 2000]],
    ["reset", (limiter) => limiter.reset(), [500, 500, 500]],
    ["another state", (limiter) => limiter.restore([{ tokens: 2, drops: 0, at: START + 500 }]), [500, 500, 1500]],
    ["nothing", () => {}, [1000, 2000, 3000]],
  ];
  for (const [what, happens, expected] of table) {
    const { clock, limiter, events, acquire, admitted, to } = make({
      rate: 1,
      periodMs: 1000,
      capacity: 3,
      initial: 0,
    });
    for (let i = 0; i < 3; i++) acquire();
    await to(500);
    happens(limiter);
    assert.equal(limiter.waiting, expected.filter((at) => at > 500).length, `${what}: at once`);
    assert.equal(events[3]?.type, what === "nothing" ? undefined : "change", what);
    await to(9000);
    assert.deepEqual([admitted(), clock.timers], [expected, []], what);
  }
});

test("verbs that are never refused return what they took or gave back", () => {
  const { limiter } = make({ rate: 1, periodMs: 1000, capacity: 5, maxDebt: 2 });
  assert.deepEqual(
    [limiter.charge(9), limiter.refund(3), limiter.reset()].map(({ allowed, tokens, remaining }) => [
      allowed,
      tokens,
      remaining,
    ]),
    [
      [true, 7, 0],
      [true, 3, 1],
      [true, 4, 5],
    ],
  );
});

test("verbs that are never refused work while others wait", () => {
  const { limiter, acquire } = make({ rate: 1, periodMs: 1000, capacity: 3, initial: 0, maxDebt: 2 });
  acquire();
  limiter.charge(1);
  assert.deepEqual([limiter.save()[0].tokens, limiter.peek().retryAt], [-1, START + 3000]);
  limiter.charge(5);
  assert.deepEqual([limiter.save()[0].tokens, limiter.peek().retryAt], [-2, START + 4000]);
  assert.deepEqual([limiter.remaining(), limiter.fullAt()], [0, START + 5000]);
});

test("a restored state continues in another limiter and serves its waiters", async () => {
  const one = make({ rate: 3, periodMs: 1000 });
  one.limiter.tryConsume(2);
  const other = make({ rate: 3, periodMs: 1000 });
  other.limiter.restore(JSON.parse(JSON.stringify(one.limiter.save())));
  assert.deepEqual([other.limiter.remaining(), other.limiter.fullAt()], [1, START + 667]);
  other.acquire({ cost: 3 });
  assert.throws(() => other.limiter.restore([{ tokens: 4, drops: 0, at: START }]), { code: "snapshot_mismatched" });
  assert.equal(other.limiter.waiting, 1, "a rejected snapshot changes nothing");
  other.limiter.restore([{ tokens: 3, drops: 0, at: START }]);
  await setImmediate();
  assert.deepEqual(other.admitted(), [0]);
});
