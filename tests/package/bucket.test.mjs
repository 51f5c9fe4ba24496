// Bucket: what each verb does.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket } from "../../build/package/index.js";
import { checked } from "./buckets.mjs";

test("each verb does what it says", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000, maxDebt: 2 });
  const allow = (tokens, readyAt) => ({ allowed: true, tokens, readyAt });
  const wait = (retryAt) => ({ allowed: false, retryAt });
  const never = (maxCost) => ({ allowed: false, retryAt: Infinity, maxCost });
  // biome-ignore format: a table
  const table = [
    // now  cost  verb         answer            remaining owed fullAt  maxWaitMs
    [0,     2,    "consume",     allow(2, 0),      1, 0, 667],
    [0,     2,    "consume",     wait(334),        1, 0, 667],
    [0,     4,    "consume",     never(3),         1, 0, 667],
    [0,     2,    "consumeUpTo", allow(1, 0),      0, 0, 1000],
    [0,     2,    "consumeUpTo", wait(334),        0, 0, 1000],
    [0,     1,    "reserve",     wait(334),        0, 0, 1000, 0],
    [0,     1,    "reserve",     wait(1),          0, 0, 1000, 333],
    [0,     1,    "reserve",     allow(1, 334),    0, 1, 1334, 334],
    [0,     1,    "reserve",     allow(1, 667),    0, 2, 1667],
    [0,     1,    "reserve",     wait(334),        0, 2, 1667],
    [667,   2,    "borrow",      allow(2, 667),    0, 2, 2334],
    [667,   1,    "charge",      allow(0, 667),    0, 2, 2334],
    [667,   3,    "refund",      allow(3, 667),    1, 0, 1334],
    [667,   1,    "charge",      allow(1, 667),    0, 0, 1667],
    [667,   0,    "reset",       allow(3, 667),    3, 0, 667],
    [667,   3,    "consume",     allow(3, 667),    0, 0, 1667],
  ];
  for (const [now, cost, verb, answer, remaining, owed, fullAt, maxWaitMs] of table) {
    const row = `${now} ${verb} ${cost}`;
    assert.deepEqual(checked(bucket).decide(now, { cost, verb, maxWaitMs }), answer, row);
    assert.deepEqual([bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)], [remaining, owed, fullAt], row);
  }
});

test("an omitted value is not zero", () => {
  const bucket = new Bucket(0, { rate: 5, periodMs: 1000 });
  assert.equal(bucket.remaining(0), 5, "capacity defaults to rate, and initial to capacity");
  assert.equal(new Bucket(0, { rate: 5, periodMs: 1000, capacity: undefined, initial: undefined }).remaining(0), 5);
  assert.equal(bucket.tryConsume(0), true);
  assert.equal(bucket.remaining(0), 4, "the default cost is 1");
  assert.equal(bucket.tryConsume(0, 0), true);
  assert.equal(bucket.remaining(0), 4, "a cost of 0 is 0");
  assert.deepEqual(
    checked(bucket).decide(0),
    { allowed: true, tokens: 1, readyAt: 0 },
    "the default verb is consume, and it is applied",
  );
  assert.equal(bucket.remaining(0), 3);
  assert.equal(new Bucket(0, { rate: 5, periodMs: 1000, initial: 0 }).remaining(0), 0, "initial 0");
  const empty = new Bucket(0, { rate: 5, periodMs: 1000, capacity: 0, maxDebt: 5 });
  assert.deepEqual(
    checked(empty).decide(0),
    { allowed: false, retryAt: Infinity, maxCost: 0 },
    "a maxCost of 0 is not missing",
  );
  assert.equal(
    empty.decide(0, { cost: 1, verb: "reserve", maxWaitMs: 0 }).allowed,
    false,
    "a maxWaitMs of 0 is not any wait",
  );
  assert.equal(empty.decide(0, { cost: 1, verb: "reserve" }).allowed, true, "the default is any wait");
  const budget = new Bucket(0, { rate: 0, periodMs: 1000, capacity: 5 });
  assert.equal(budget.fullAt(7), 7, "full now");
  budget.tryConsume(0);
  assert.equal(budget.fullAt(7), Infinity, "a limit that never refills is never full again");
  const early = new Bucket(-1, { kind: "fixed_window", rate: 1, periodMs: 1000 });
  assert.deepEqual(checked(early).decide(-1), { allowed: true, tokens: 1, readyAt: -1 });
  assert.deepEqual(checked(early).decide(-1), { allowed: false, retryAt: 0 }, "a retryAt of 0 is not missing");
});

test("an offset moves windows and means nothing to a token bucket", () => {
  assert.equal(new Bucket(5, { rate: 1, periodMs: 10, offsetMs: 3 }).save(5).at, 5);
  assert.equal(new Bucket(5, { kind: "fixed_window", rate: 1, periodMs: 10, offsetMs: 3 }).save(5).at, 3);
  assert.equal(new Bucket(5, { kind: "fixed_window", rate: 1, periodMs: 10, offsetMs: 6 }).save(5).at, -4);
  // An offset counts modulo the period.
  for (const [offsetMs, at] of [
    [9, -1],
    [10, 0],
    [13, 3],
    [2 ** 53 - 1, 1],
  ])
    assert.equal(new Bucket(5, { kind: "fixed_window", rate: 1, periodMs: 10, offsetMs }).save(5).at, at);
});
