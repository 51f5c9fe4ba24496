// Bucket: which arguments it rejects, and how.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket, TollgateError } from "../../build/package/index.js";
import { count, law } from "../random.mjs";
import { assertDecision, assertRefused, assertSafe, checked, describe, MAX, MOMENT, SPAN, VERBS } from "./buckets.mjs";
import { START } from "./clock.mjs";

test("every number has its own error codes and exact bounds, and an error changes nothing", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const token = (limit) => new Bucket(0, { rate: 3, periodMs: 1000, ...limit });
  const fixed = (limit) => token({ kind: "fixed_window", ...limit });
  // biome-ignore format: a table
  const table = [
    // parameter     with                                                  lowest   highest
    ["now",          (now) => bucket.tryConsume(now, 0),                      -MOMENT, MOMENT],
    ["now",          (now) => bucket.peek(now, { cost: 0 }),                         -MOMENT, MOMENT],
    ["now",          (now) => bucket.peek(now, { cost: 0, maxWaitMs: 0 }),  -MOMENT, MOMENT],
    ["now",          (now) => bucket.remaining(now),                       -MOMENT, MOMENT],
    ["now",          (now) => bucket.owed(now),                            -MOMENT, MOMENT],
    ["now",          (now) => bucket.fullAt(now),                          -MOMENT, MOMENT],
    ["now",          (now) => bucket.save(now),                            -MOMENT, MOMENT],
    ["now",          (now) => new Bucket(now, { rate: 3, periodMs: 1000 }), -MOMENT, MOMENT],
    ["cost",         (cost) => token().tryConsume(0, cost),                   0,       MAX],
    ["cost",         (cost) => token().peek(0, { cost }),                      0,       MAX],
    ...VERBS.map((verb) => ["cost", (cost) => token().decide(0, { cost, verb }), 0,     MAX]),
    ["maxWaitMs",    (ms) => token().decide(0, { cost: 1, verb: "reserve", maxWaitMs: ms }),          0,       Infinity],
    ["maxWaitMs",    (ms) => token().decide(0, { cost: 1, maxWaitMs: ms }),          0,       Infinity],
    ["rate",         (rate) => token({ rate, capacity: 1 }),               0,       MAX],
    ["rate",         (rate) => fixed({ rate, capacity: 1 }),               0,       MAX],
    ["periodMs",     (periodMs) => token({ periodMs, capacity: 1 }),       1,       SPAN],
    ["periodMs",     (periodMs) => fixed({ periodMs, capacity: 1 }),       1,       SPAN],
    ["capacity",     (capacity) => token({ capacity, rate: 1, periodMs: SPAN }), 0, 1],
    ["capacity",     (capacity) => token({ capacity, rate: 1, periodMs: 2 ** 50 }), 0, 2],
    ["capacity",     (capacity) => token({ capacity, rate: 0, periodMs: 1 }), 0,    MAX],
    ["maxDebt",      (maxDebt) => token({ maxDebt, rate: 1, periodMs: SPAN }), 0,   0],
    ["maxDebt",      (maxDebt) => token({ maxDebt, rate: 1, periodMs: 2 ** 50, capacity: 1 }), 0, 1],
    ["initial",      (initial) => token({ initial, capacity: 7 }),         0,       7],
    ["offsetMs",     (offsetMs) => fixed({ offsetMs }),                    0,       MAX],
  ];
  for (const [name, call, min, max] of table) {
    for (const right of [min, max]) assert.doesNotThrow(() => call(right), `${name} ${right} ${call}`);
    assertRefused(() => call(min - 1), `${name}_too_small`, `${call}`);
    if (max < Infinity) assertRefused(() => call(max + 1), `${name}_too_large`, `${call}`);
    assertRefused(() => call(-Infinity), `${name}_too_small`, `${call}`);
    if (max < Infinity) assertRefused(() => call(Infinity), `${name}_too_large`, `${call}`);
    for (const not of [NaN, 0.5, "5", "x", {}, [5], true, 1n, null, () => {}]) {
      if (min > 0 && not < min) continue; // true counts as 1, and is not too small
      assertRefused(() => call(not), `${name}_not_whole`, `${String(not)} for ${call}`);
    }
  }
  assert.deepEqual(bucket.save(0), { tokens: 3, drops: 0, at: 0 });
});

test("a missing moment is rejected", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  for (const method of ["tryConsume", "peek", "decide", "remaining", "owed", "fullAt", "save"]) {
    assertRefused(() => bucket[method](), "now_not_whole", method);
  }
});

test("an unlimited wait is Infinity, or no maxWaitMs", () => {
  for (const ms of [undefined, Infinity]) {
    const bucket = new Bucket(0, { rate: 1, periodMs: SPAN / 2, capacity: 0, maxDebt: 1 });
    assert.deepEqual(checked(bucket).decide(0, { cost: 1, verb: "reserve", maxWaitMs: ms }), {
      allowed: true,
      tokens: 1,
      readyAt: SPAN / 2,
    });
  }
});

test("the bounds that an error reports are accepted", () => {
  // biome-ignore format: a table
  const table = [
    // the limit                                               code                  min  max
    [{ rate: -1, periodMs: 1000 },                             "rate_too_small",     0, MAX],
    [{ rate: 3, periodMs: 0 },                                 "periodMs_too_small", 1, MAX],
    [{ rate: 1, periodMs: SPAN, capacity: 2 },                 "capacity_too_large", 0, 1],
    [{ rate: 1, periodMs: SPAN, capacity: 1, maxDebt: 1 },     "maxDebt_too_large", 0, 0],
    [{ rate: 3, periodMs: 1000, initial: 4 },                  "initial_too_large",  0, 3],
  ];
  for (const [limit, code, min, max] of table) {
    const error = assertRefused(() => new Bucket(0, limit), code);
    assert.deepEqual([error.min, error.max], [min, max], code);
  }
  const error = assertRefused(() => new Bucket(0, { rate: 3, periodMs: 1 }).tryConsume(0, 1.5), "cost_not_whole");
  assert.equal(error.message, "cost must be a whole number from 0 to 9007199254740991, not 1.5");
});

test("an error for a long period reports the shortest one too", () => {
  const { min, max } = assertRefused(() => new Bucket(0, { rate: 3, periodMs: SPAN + 1 }), "periodMs_too_large");
  assert.deepEqual([min, max], [1, SPAN]);
});

test("a cost in place of the options is rejected, not taken for 1", () => {
  for (const not of [5, 1, "5", true, () => 5]) {
    const bucket = new Bucket(0, { rate: 9, periodMs: 1000 });
    for (const method of ["decide", "peek"]) {
      const error = assertRefused(() => bucket[method](0, not), "options_unknown", `${method} ${String(not)}`);
      assert.equal(error.message, `options must be one of object, not ${typeof not}`);
    }
    assert.equal(bucket.remaining(0), 9, String(not));
  }
});

test("rejects an unknown verb", () => {
  for (const verb of ["peek", "consume_up_to", "Consume", "", "toString", "__proto__", 0, null, {}]) {
    const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
    assertRefused(() => checked(bucket).decide(0, { cost: 1, verb }), "verb_unknown", String(verb));
    assert.equal(bucket.remaining(0), 3, String(verb));
  }
});

test("rejects an unknown kind", () => {
  for (const kind of ["fixedWindow", "window", "", 1, null]) {
    assertRefused(() => new Bucket(0, { kind, rate: 3, periodMs: 1000 }), "kind_unknown", String(kind));
  }
});

test("rejects anything that is not a limit, with a TypeError or a TollgateError", () => {
  for (const limit of [undefined, null, 5, "x", {}, [], { rate: 3 }, { periodMs: 3 }, Symbol("x"), () => {}]) {
    assertSafe(() => new Bucket(0, limit), "Bucket");
  }
  assert.throws(() => Bucket(0, { rate: 3, periodMs: 1000 }), TypeError);
  for (const method of ["tryConsume", "decide", "peek", "remaining", "owed", "fullAt", "save"]) {
    assert.throws(() => Bucket.prototype[method].call({}, 0), TypeError, method);
  }
  assert.throws(() => Bucket.prototype.restore.call({}, { tokens: 0, drops: 0, at: 0 }), TypeError);
});

// biome-ignore format: a table
const ORDINARY = [
  0, -0, 1, 2, 3, 7, 100, 333, 334, 1000, 59_999, 60_001, 1e6, 1e12, 1.7e12, 2 ** 31, 2 ** 32, 2 ** 51, 2 ** 52, MAX,
];
// biome-ignore format: a table
const HOSTILE = [
  NaN, Infinity, -Infinity, -1, -60_001, -(2 ** 52), 2 ** 53, -(2 ** 53), 2 ** 63, 2 ** 64, 1e300, 5e-324, 1.5, -0.5,
  undefined, null, "", "7", "x", true, false, [], [3], {}, () => {}, new Date(5), 1n, 2n ** 70n, Symbol("x"), /x/,
  Object.create(null), new Proxy({}, {}), { valueOf: () => 3 }, { toString: () => "3" }, new Map(), new Uint8Array(8),
];

law(
  "any argument to any method gets an answer, or an error that changes nothing",
  { seed: 20_261_120, cases: 2000 },
  ({ pick, chance }, seen) => {
    const any = () => (chance(0.7) ? pick(ORDINARY) : pick(HOSTILE));
    const likely = (value) => (chance(0.8) ? value : any());
    const limit = {
      kind: pick(["token_bucket", "fixed_window"]),
      rate: likely(pick([0, 1, 3, 100])),
      periodMs: likely(pick([1, 1000, 60_000])),
      capacity: likely(pick([undefined, 0, 3, 100])),
      maxDebt: likely(pick([undefined, 0, 50])),
      initial: likely(undefined),
      offsetMs: likely(undefined),
    };
    const bucket = assertSafe(() => new Bucket(likely(pick([0, START])), limit), limit);
    if (!bucket) {
      count(seen, "rejected");
      return;
    }
    count(seen, "made");
    const capacity = limit.capacity ?? limit.rate;
    for (let call = 0; call < 20; call++) {
      const method = pick(["tryConsume", "peek", "decide", "remaining", "owed", "fullAt", "save", "restore"]);
      const now = likely(pick([0, 1, START]));
      const args =
        method === "restore"
          ? [chance(0.3) ? any() : { tokens: any(), drops: any(), at: any() }, pick([true, false])]
          : [now, method === "tryConsume" ? any() : { cost: any(), verb: pick(VERBS), maxWaitMs: any() }];
      // Its state at the last moment, from which no clock steps back.
      const before = JSON.stringify(bucket.save(MOMENT));
      if (args[0] === undefined) continue; // tested above
      const row = [limit, method, args];
      const answer = assertSafe(() => ({ was: bucket[method](...args) }), row);
      if (!answer) {
        count(seen, "refused");
        assert.equal(JSON.stringify(bucket.save(MOMENT)), before, describe(row));
        continue;
      }
      count(seen, "answered");
      if (method === "restore") continue;
      if (method === "tryConsume") assert.equal(typeof answer.was, "boolean", describe(row));
      if (method === "peek" || method === "decide") assertDecision(answer.was, now, describe(row));
      if (method === "remaining" || method === "owed")
        assert.ok(Number.isSafeInteger(answer.was) && answer.was >= 0, describe(row));
      if (method === "fullAt") assert.ok(answer.was === Infinity || answer.was >= now, describe(row));
      const left = bucket.remaining(now);
      assert.ok(left <= capacity, `${left} left after ${describe(row)}`);
      assert.ok(left === 0 || bucket.owed(now) === 0, describe(row));
    }
  },
  ({ made, rejected, answered, refused }) => assert.ok(Math.min(made, rejected, answered, refused) > 100),
);

test("an argument may call the bucket while it is being read", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const asking = (value) => () => {
    bucket.tryConsume(0);
    return value;
  };
  const asks = { valueOf: asking(1), toString: asking("1") };
  assert.throws(() => bucket.tryConsume(0, asks), TollgateError);
  assert.throws(
    () =>
      bucket.restore({
        get tokens() {
          throw new TypeError("no");
        },
      }),
    TypeError,
  );
  assert.deepEqual(
    new Bucket(0, {
      rate: 3,
      periodMs: 1000,
      get capacity() {
        bucket.decide(0, { cost: 0, verb: "reset" });
        return 3;
      },
    }).remaining(0),
    3,
  );
  assert.deepEqual([bucket.remaining(0), bucket.tryConsume(0, 3), bucket.tryConsume(0)], [3, true, false]);
});
