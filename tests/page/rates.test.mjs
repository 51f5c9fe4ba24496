// The operators' view of counters, without a page.
import assert from "node:assert/strict";
import { test } from "node:test";
import { stepsOf } from "../../www/page/src/operators/rates.ts";

/** Counters of `demo` that began at one moment, as read at another. Both are the service's: arrival times do not matter. */
const look = (now, began, allowed, refused = 0) => ({
  now,
  counts: new Map([
    ["tollgate_metrics_start_time_seconds{}", began / 1000],
    ['tollgate_decisions_total{policy="demo",outcome="allowed"}', allowed],
    ['tollgate_decisions_total{policy="demo",outcome="refused"}', refused],
  ]),
});

const steps = (...looks) =>
  stepsOf(looks).map(({ from, to, rates: [{ granted, refused }] }) => [from, to, granted, refused]);

test("rates start with the second reading, each over the time between two", () => {
  assert.deepEqual(steps(), []);
  assert.deepEqual(steps(look(5000, 0, 7)), []);
  assert.deepEqual(steps(look(5000, 0, 7), look(15_000, 0, 27, 5)), [[5000, 15_000, 2, 0.5]]);
  // A failed reading lengthens the interval.
  assert.deepEqual(steps(look(5000, 0, 7), look(15_000, 0, 27), look(45_000, 0, 57)), [
    [5000, 15_000, 2, 0],
    [15_000, 45_000, 1, 0],
  ]);
});

test("after counters are reset the rates cover the time since", () => {
  assert.deepEqual(steps(look(10_000, 0, 100), look(20_000, 16_000, 8), look(30_000, 16_000, 18)), [
    [16_000, 20_000, 2, 0],
    [20_000, 30_000, 1, 0],
  ]);
  // By a slightly different clock they may have begun before the last reading, or just now.
  assert.deepEqual(steps(look(10_000, 0, 100), look(20_000, 9000, 8)), [[10_000, 20_000, 0.8, 0]]);
  assert.deepEqual(steps(look(10_000, 0, 100), look(20_000, 20_001, 0)), [[20_000, 20_000, 0, 0]]);
});
