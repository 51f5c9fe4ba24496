// Bucket: what it refuses, what it keeps, and that it answers as exact arithmetic does.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Bucket, TollgateError } from "../../build/package/index.js";
import { random } from "../random.mjs";
import { START } from "./clock.mjs";
import { Model } from "./model.mjs";

const MAX = Number.MAX_SAFE_INTEGER;
const MOMENT = 2 ** 52;
const SPAN = 2 ** 51;
const VERBS = ["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"];

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
    assert.deepEqual(bucket.decide(now, cost, verb, maxWaitMs), answer, row);
    assert.deepEqual([bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)], [remaining, owed, fullAt], row);
  }
});

test("an omitted value is not zero", () => {
  const bucket = new Bucket(0, { rate: 5, periodMs: 1000 });
  assert.equal(bucket.remaining(0), 5, "capacity is the rate, initial is the capacity");
  assert.equal(new Bucket(0, { rate: 5, periodMs: 1000, capacity: undefined, initial: undefined }).remaining(0), 5);
  assert.equal(bucket.consume(0), true);
  assert.equal(bucket.remaining(0), 4, "a cost is 1");
  assert.equal(bucket.consume(0, 0), true);
  assert.equal(bucket.remaining(0), 4, "a cost of 0 is 0");
  assert.deepEqual(bucket.decide(0), { allowed: true, tokens: 1, readyAt: 0 }, "a verb is consume, and it is kept");
  assert.equal(bucket.remaining(0), 3);
  assert.equal(new Bucket(0, { rate: 5, periodMs: 1000, initial: 0 }).remaining(0), 0, "initial 0");
  const empty = new Bucket(0, { rate: 5, periodMs: 1000, capacity: 0, maxDebt: 5 });
  assert.deepEqual(
    empty.decide(0),
    { allowed: false, retryAt: Infinity, maxCost: 0 },
    "a largest cost of 0 is not none",
  );
  assert.equal(empty.decide(0, 1, "reserve", 0).allowed, false, "a wait of 0 is now or never");
  assert.equal(empty.decide(0, 1, "reserve").allowed, true, "no longest wait");
  const budget = new Bucket(0, { rate: 0, periodMs: 1000, capacity: 5 });
  assert.equal(budget.fullAt(7), 7, "full now");
  budget.consume(0);
  assert.equal(budget.fullAt(7), Infinity, "never full again");
  const early = new Bucket(-1, { kind: "fixed_window", rate: 1, periodMs: 1000 });
  assert.deepEqual(early.decide(-1), { allowed: true, tokens: 1, readyAt: -1 });
  assert.deepEqual(early.decide(-1), { allowed: false, retryAt: 0 }, "a moment of 0 is a moment");
});

test("every number has its own error codes and exact bounds, and an error changes nothing", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const token = (limit) => new Bucket(0, { rate: 3, periodMs: 1000, ...limit });
  const fixed = (limit) => token({ kind: "fixed_window", ...limit });
  // biome-ignore format: a table
  const table = [
    // parameter     with                                                  lowest   highest
    ["now",          (now) => bucket.consume(now, 0),                      -MOMENT, MOMENT],
    ["now",          (now) => bucket.peek(now, 0),                         -MOMENT, MOMENT],
    ["now",          (now) => bucket.decide(now, 0, "consume", 0, false),  -MOMENT, MOMENT],
    ["now",          (now) => bucket.remaining(now),                       -MOMENT, MOMENT],
    ["now",          (now) => bucket.owed(now),                            -MOMENT, MOMENT],
    ["now",          (now) => bucket.fullAt(now),                          -MOMENT, MOMENT],
    ["now",          (now) => bucket.save(now),                            -MOMENT, MOMENT],
    ["now",          (now) => new Bucket(now, { rate: 3, periodMs: 1000 }), -MOMENT, MOMENT],
    ["cost",         (cost) => token().consume(0, cost),                   0,       MAX],
    ["cost",         (cost) => token().peek(0, cost),                      0,       MAX],
    ...VERBS.map((verb) => ["cost", (cost) => token().decide(0, cost, verb), 0,     MAX]),
    ["maxWaitMs",    (ms) => token().decide(0, 1, "reserve", ms),          0,       Infinity],
    ["maxWaitMs",    (ms) => token().decide(0, 1, "consume", ms),          0,       Infinity],
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
    ["offsetMs",     (offsetMs) => fixed({ offsetMs }),                    0,       999],
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
  for (const method of ["consume", "peek", "decide", "remaining", "owed", "fullAt", "save"]) {
    assertRefused(() => bucket[method](), "now_not_whole", method);
  }
});

test("any wait is Infinity, or no maxWaitMs", () => {
  for (const ms of [undefined, Infinity]) {
    const bucket = new Bucket(0, { rate: 1, periodMs: SPAN / 2, capacity: 0, maxDebt: 1 });
    assert.deepEqual(bucket.decide(0, 1, "reserve", ms), { allowed: true, tokens: 1, readyAt: SPAN / 2 });
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
    [{ kind: "fixed_window", rate: 3, periodMs: 1000, offsetMs: 1000 }, "offsetMs_too_large", 0, 999],
  ];
  for (const [limit, code, min, max] of table) {
    const error = assertRefused(() => new Bucket(0, limit), code);
    assert.deepEqual([error.min, error.max], [min, max], code);
  }
  const error = assertRefused(() => new Bucket(0, { rate: 3, periodMs: 1 }).consume(0, 1.5), "cost_not_whole");
  assert.equal(error.message, "cost must be a whole number from 0 to 9007199254740991, not 1.5");
});

test("an error for a long period reports the shortest one too", () => {
  const { min, max } = assertRefused(() => new Bucket(0, { rate: 3, periodMs: SPAN + 1 }), "periodMs_too_large");
  assert.deepEqual([min, max], [1, SPAN]);
});

test("an offset moves windows and means nothing to a token bucket", () => {
  assert.equal(new Bucket(5, { rate: 1, periodMs: 10, offsetMs: 3 }).save(5).at, 5);
  assert.equal(new Bucket(5, { kind: "fixed_window", rate: 1, periodMs: 10, offsetMs: 3 }).save(5).at, 3);
  assert.equal(new Bucket(5, { kind: "fixed_window", rate: 1, periodMs: 10, offsetMs: 6 }).save(5).at, -4);
});

test("rejects an unknown verb", () => {
  for (const verb of ["peek", "consume_up_to", "Consume", "", "toString", "__proto__", 0, null, {}]) {
    const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
    assertRefused(() => bucket.decide(0, 1, verb), "verb_unknown", String(verb));
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
  for (const method of ["consume", "decide", "peek", "remaining", "owed", "fullAt", "save"]) {
    assert.throws(() => Bucket.prototype[method].call({}, 0), TypeError, method);
  }
  assert.throws(() => Bucket.prototype.restore.call({}, { tokens: 0, drops: 0, at: 0 }), TypeError);
});

test("any argument to any method gets an answer, or an error that changes nothing", () => {
  const { pick, chance } = random(20261120);
  // biome-ignore format: a table
  const NUMBERS = [
    0, -0, 1, 2, 3, 7, 100, 333, 334, 1000, 59_999, 60_001, 1e6, 1e12, 1.7e12, 2 ** 31, 2 ** 32, 2 ** 51, 2 ** 52, MAX,
  ];
  // biome-ignore format: a table
  const HOSTILE = [
    NaN, Infinity, -Infinity, -1, -60_001, -(2 ** 52), 2 ** 53, -(2 ** 53), 2 ** 63, 2 ** 64, 1e300, 5e-324, 1.5, -0.5,
    undefined, null, "", "7", "x", true, false, [], [3], {}, () => {}, new Date(5), 1n, 2n ** 70n, Symbol("x"), /x/,
    Object.create(null), new Proxy({}, {}), { valueOf: () => 3 }, { toString: () => "3" }, new Map(), new Uint8Array(8),
  ];
  const any = () => (chance(0.7) ? pick(NUMBERS) : pick(HOSTILE));
  let made = 0;
  let refused = 0;
  const calls = { answered: 0, refused: 0 };
  for (let round = 0; round < 2000; round++) {
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
      refused += 1;
      continue;
    }
    made += 1;
    const capacity = limit.capacity ?? limit.rate;
    for (let call = 0; call < 20; call++) {
      const method = pick(["consume", "peek", "decide", "remaining", "owed", "fullAt", "save", "restore"]);
      const args = [likely(pick([0, 1, START])), any(), pick(VERBS), any(), pick([true, false])];
      if (method === "restore")
        args.splice(0, 5, chance(0.3) ? any() : { tokens: any(), drops: any(), at: any() }, args[4]);
      // Its state at the last moment, from which no clock steps back.
      const before = JSON.stringify(bucket.save(MOMENT));
      if (args[0] === undefined) continue; // tested above
      const row = [limit, method, args];
      const answer = assertSafe(() => ({ was: bucket[method](...args) }), row);
      if (!answer) {
        calls.refused += 1;
        assert.equal(JSON.stringify(bucket.save(MOMENT)), before, describe(row));
        continue;
      }
      calls.answered += 1;
      if (method === "restore") continue;
      const now = args[0];
      if (method === "consume") assert.equal(typeof answer.was, "boolean", describe(row));
      if (method === "peek" || method === "decide") assertDecision(answer.was, now, describe(row));
      if (method === "remaining" || method === "owed")
        assert.ok(Number.isSafeInteger(answer.was) && answer.was >= 0, describe(row));
      if (method === "fullAt") assert.ok(answer.was === Infinity || answer.was >= now, describe(row));
      const left = bucket.remaining(now);
      assert.ok(left <= capacity, `${left} left after ${describe(row)}`);
      assert.ok(left === 0 || bucket.owed(now) === 0, describe(row));
    }
  }
  assert.ok(Math.min(made, refused, calls.answered, calls.refused) > 100, JSON.stringify({ made, refused, calls }));
});

test("an argument may call the bucket while it is being read", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const asking = (value) => () => {
    bucket.consume(0);
    return value;
  };
  const asks = { valueOf: asking(1), toString: asking("1") };
  assert.throws(() => bucket.consume(0, asks), TollgateError);
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
        bucket.decide(0, 0, "reset");
        return 3;
      },
    }).remaining(0),
    3,
  );
  assert.deepEqual([bucket.remaining(0), bucket.consume(0, 3), bucket.consume(0)], [3, true, false]);
});

test("any saved state continues where it was saved", () => {
  const { below, pick, chance } = random(1);
  for (let round = 0; round < 500; round++) {
    const limit = randomLimit({ below, pick, chance });
    const bucket = new Bucket(START, limit);
    let now = START;
    for (let i = below(10); i > 0; i--) {
      now += below(1500);
      bucket.decide(now, below(8), pick(VERBS));
    }
    now += below(1500) - (chance(0.2) ? 30_000 : 0);
    const snapshot = bucket.save(now);
    assert.deepEqual(Object.keys(snapshot), ["tokens", "drops", "at"]);
    const other = new Bucket(now + pick([-1e9, 0, 1e9]), limit);
    other.restore(JSON.parse(JSON.stringify(snapshot)));
    assert.deepEqual(other.save(now), snapshot, describe(limit));
    for (let i = 0; i < 10; i++) {
      now += below(700);
      const ask = [now, below(8), pick(VERBS), pick([0, 500, Infinity])];
      assert.deepEqual(other.decide(...ask), bucket.decide(...ask), describe([limit, ask]));
      assert.deepEqual(other.save(now), bucket.save(now), describe([limit, ask]));
      assert.deepEqual(
        [other.owed(now), other.fullAt(now)],
        [bucket.owed(now), bucket.fullAt(now)],
        describe([limit, ask]),
      );
    }
  }
});

test("the snapshot format is pinned", () => {
  const bucket = new Bucket(START, { rate: 3, periodMs: 1000, maxDebt: 2 });
  bucket.decide(START, 4, "reserve");
  assert.equal(JSON.stringify(bucket.save(START)), '{"tokens":-1,"drops":0,"at":1700000000000}');
  assert.equal(JSON.stringify(bucket.save(START + 1)), '{"tokens":-1,"drops":3,"at":1700000000001}');
});

test("rejects a snapshot that does not match the limit, and changes nothing", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  bucket.consume(0, 2);
  const good = bucket.save(0);
  // biome-ignore format: a table
  const table = [
    [{ drops: 999 }, { drops: 1000 }], // a whole token's worth
    [{ drops: 0 }, { drops: -1 }],
    [{ tokens: 3 }, { tokens: 4 }],
    [{ tokens: 2, drops: 999 }, { tokens: 3, drops: 1 }], // more than the capacity by a fraction of a token
    [{ at: MAX }, { at: MAX + 1 }],
    [{ at: -MAX }, { at: -MAX - 1 }],
    [{ at: 0 }, { at: 0.5 }],
  ];
  for (const [right, wrong] of table) {
    bucket.restore({ ...good, ...right }, false);
    assertRefused(() => bucket.restore({ ...good, ...wrong }), "snapshot_mismatched", describe(wrong));
    assertRefused(() => bucket.restore({ ...good, ...wrong }, false), "snapshot_mismatched", describe(wrong));
    assert.deepEqual(bucket.save(0), good);
  }
  for (const not of [NaN, Infinity, -Infinity, 1.5, "1", 1n, null, undefined, {}, [1], true, Symbol("x")]) {
    for (const field of ["tokens", "drops", "at"]) {
      assertRefused(() => bucket.restore({ ...good, [field]: not }), "snapshot_mismatched", `${field} ${String(not)}`);
    }
    assertRefused(() => bucket.restore(not), "snapshot_mismatched", String(not));
  }
  assertRefused(() => bucket.restore({ ...good, tokens: -(2 ** 53 - 1) }), "snapshot_mismatched");
  assertRefused(() => bucket.restore(), "snapshot_mismatched");
  assert.deepEqual(
    [bucket.save(0), bucket.consume(0), bucket.peek(0).retryAt],
    [good, true, 334],
    "and the bucket goes on",
  );
});

test("a snapshot from a clock that was far ahead locks no one out", () => {
  // biome-ignore format: a table
  const table = [
    // at          at START, the next token is there at
    [START - 1,    START],
    [START,        START + 334],
    [START + 1,    START + 335],
    [START + 60_000, START + 60_334], // a step back of up to a minute is waited for
    [START + 60_001, START + 334],
    [2 ** 52,      START + 334],
    [MAX,          START + 334],
  ];
  for (const [at, retryAt] of table) {
    const bucket = new Bucket(START, { rate: 3, periodMs: 1000 });
    bucket.restore({ tokens: at < START ? 1 : 0, drops: 0, at });
    const answer = bucket.decide(START);
    assert.equal(answer.allowed ? answer.readyAt : answer.retryAt, retryAt, `at ${at}`);
  }
});

test("agrees with the naive model that counts each millisecond", () => {
  const { below, pick, chance } = random(7);
  const seen = {};
  for (let round = 0; round < 700; round++) {
    const kind = pick(["token_bucket", "fixed_window"]);
    const periodMs = pick([1, 2, 3, 5, 7, 12]);
    const capacity = below(6);
    const limit = {
      kind,
      rate: pick([0, 1, 2, 3, 5]),
      periodMs,
      capacity,
      maxDebt: pick([0, 0, 1, 4]),
      initial: below(capacity + 1),
      offsetMs: kind === "fixed_window" ? below(periodMs) : 0,
    };
    let now = pick([0, -20, START]);
    const bucket = new Bucket(now, limit);
    const model = new Model(now, limit);
    for (let step = 0; step < 25; step++) {
      now += below(periodMs + 2) - (chance(0.05) ? pick([3, 20, 70_000]) : 0);
      const ask = [now, below(capacity + limit.maxDebt + 2), pick(VERBS), pick([0, 1, 4, 9, Infinity])];
      const place = describe([limit, step, ask]);
      const answer = bucket.decide(...ask, false);
      seen[answer.allowed ? "allow" : answer.retryAt === Infinity ? "never" : "wait"] = 1;
      assert.deepEqual(answer, model.decide(...ask, false), place);
      const keep = chance(0.8);
      assert.deepEqual(bucket.decide(...ask, keep), model.decide(...ask, keep), place);
      assert.deepEqual(
        [bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)],
        [model.remaining(now), model.owed(now), model.fullAt(now)],
        place,
      );
    }
  }
  assert.deepEqual(Object.keys(seen).sort(), ["allow", "never", "wait"]);
});

test("is exact to the millisecond with the largest numbers", () => {
  const { below, pick } = random(11);
  const large = () =>
    pick([1, 2 ** below(52), 2 ** below(52) - 1, 10 ** below(15), below(2 ** 52), below(2 ** 30)]) || 1;
  let counted = 0;
  for (let round = 0; round < 4000 && counted < 1500; round++) {
    const kind = pick(["token_bucket", "fixed_window"]);
    const limit = { kind, rate: large(), periodMs: large(), capacity: large(), offsetMs: 0 };
    let bucket;
    try {
      bucket = new Bucket(START, limit);
    } catch (error) {
      // The maximum that it reports is accepted, and one more is not.
      if (error.code === "capacity_too_large" && error.max >= 0) {
        new Bucket(START, { ...limit, capacity: error.max });
        assertRefused(
          () => new Bucket(START, { ...limit, capacity: error.max + 1 }),
          "capacity_too_large",
          describe(limit),
        );
      }
      continue;
    }
    counted += 1;
    const model = new Model(START, limit);
    let now = START;
    for (let step = 0; step < 12; step++) {
      const cost = Math.min(limit.capacity, pick([1, large(), limit.capacity, Math.floor(limit.capacity / 2)]));
      const answer = bucket.decide(now, cost);
      model.consume(now, cost);
      assert.equal(bucket.remaining(now), model.remaining(now), describe([limit, step]));
      if (!answer.allowed && answer.retryAt <= MOMENT) {
        assert.equal(model.grants(answer.retryAt - 1, cost), false, describe([limit, step, cost, answer]));
        assert.equal(model.grants(answer.retryAt, cost), true, describe([limit, step, cost, answer]));
        assert.equal(bucket.peek(answer.retryAt - 1, cost).allowed, false, describe([limit, step, cost, answer]));
        assert.equal(bucket.peek(answer.retryAt, cost).allowed, true, describe([limit, step, cost, answer]));
        now = answer.retryAt - pick([0, 1]);
      } else now = Math.min(MOMENT, now + large());
    }
  }
  assert.ok(counted > 300, `${counted}`);
});

test("over any interval admits at most the capacity plus the refill, and refuses nothing that exact arithmetic would admit", () => {
  const { below, pick } = random(3);
  for (const [rate, periodMs, capacity] of [
    [3, 1000, 3],
    [7, 60_000, 20],
    [1000, 7, 50],
    [1, 1, 1],
    [2, 3, 9],
  ]) {
    const bucket = new Bucket(START, { rate, periodMs, capacity });
    const model = new Model(START, { rate, periodMs, capacity });
    const admitted = [];
    let now = START;
    for (let step = 0; step < 600; step++) {
      now += below(pick([2, 50, periodMs]));
      const cost = 1 + below(capacity);
      const granted = bucket.consume(now, cost);
      assert.equal(granted, model.consume(now, cost));
      if (granted) admitted.push([now, cost]);
    }
    for (let i = 0; i < admitted.length; i++) {
      let sum = 0;
      for (let j = i; j < admitted.length; j++) {
        sum += admitted[j][1];
        const most = capacity + Math.floor((rate * (admitted[j][0] - admitted[i][0])) / periodMs);
        assert.ok(sum <= most, `${sum} > ${most} of ${rate} per ${periodMs} ms`);
      }
    }
  }
});

test("errors leave nothing behind", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  for (let i = 0; i < 20_000; i++) assert.throws(() => bucket.consume(NaN));
  for (let i = 0; i < 5000; i++) assert.throws(() => new Bucket(0, { rate: 3, periodMs: 1000, initial: 4 }));
  assert.deepEqual([bucket.consume(0, 3), bucket.remaining(0)], [true, 0]);
});

test("the memory of 100 000 collected buckets is reused, and 1000 live ones keep theirs", () => {
  const url = (name) => new URL(`../../build/package/${name}`, import.meta.url).href;
  const script = `
    import { setImmediate } from "node:timers/promises";
    import { Bucket } from "${url("index.js")}";
    import { core } from "${url("core.js")}";
    const held = Array.from({ length: 1000 }, (_, i) => new Bucket(0, { rate: 1, periodMs: 1000, capacity: i }));
    for (let i = 0; i < 100; i++) {
      for (let j = 0; j < 1000; j++) new Bucket(0, { rate: 1, periodMs: 1000 }).consume(0);
      gc();
      await setImmediate();
    }
    const right = held.every((bucket, i) => bucket.remaining(0) === i);
    console.log(JSON.stringify({ right, bytes: core.memory.buffer.byteLength }));`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--expose-gc", "--input-type=module", "--eval", script], {
    encoding: "utf8",
    cwd: fileURLToPath(new URL(".", import.meta.url)),
  });
  assert.equal(stderr, "");
  const { right, bytes } = JSON.parse(stdout);
  assert.equal(right, true);
  assert.ok(bytes < 3 * 2 ** 20, `${bytes} bytes: 100 000 buckets at once are 16 MB`);
});

/** A random limit with numbers small enough to matter. */
function randomLimit({ below, pick }) {
  const periodMs = pick([1, 7, 333, 1000]);
  const kind = pick(["token_bucket", "fixed_window"]);
  return {
    kind,
    rate: pick([0, 1, 3, 7]),
    periodMs,
    capacity: below(12),
    maxDebt: pick([0, 5]),
    offsetMs: kind === "fixed_window" ? below(periodMs) : 0,
  };
}

/** Asserts that `call` throws a TollgateError with this code, and returns it. */
function assertRefused(call, code, where = code) {
  try {
    call();
  } catch (error) {
    assert.equal(error.constructor, TollgateError, `${where}: ${error.stack}`);
    assert.equal(error.code, code, where);
    assert.deepEqual([error instanceof Error, error.name], [true, "TollgateError"], where);
    if (error.min !== undefined)
      assert.ok(error.min <= error.max && error.message.includes(`from ${error.min} to ${error.max}`), error.message);
    return error;
  }
  assert.fail(`${where} did not throw`);
}

/** Returns what `call` returns, or undefined if it throws a TollgateError, or the TypeError of a failed conversion. Any other error fails. */
function assertSafe(call, row) {
  try {
    return call();
  } catch (error) {
    assert.ok(
      error.constructor === TollgateError || error.constructor === TypeError,
      `${describe(row)}: ${error.stack}`,
    );
    if (error.constructor === TollgateError)
      assert.match(error.code, /^([a-zA-Z]+_(not_whole|too_small|too_large)|snapshot_mismatched)$/);
    return undefined;
  }
}

function assertDecision({ allowed, tokens, readyAt, retryAt, maxCost, ...others }, now, row) {
  assert.deepEqual(others, {}, row);
  if (allowed)
    assert.ok(
      Number.isSafeInteger(tokens) && tokens >= 0 && readyAt >= now && retryAt === undefined && maxCost === undefined,
      row,
    );
  else if (retryAt === Infinity)
    assert.ok(Number.isSafeInteger(maxCost) && maxCost >= 0 && tokens === undefined && readyAt === undefined, row);
  else assert.ok(retryAt > now && maxCost === undefined && tokens === undefined && readyAt === undefined, row);
}

function describe(value) {
  return JSON.stringify(value, (_, part) =>
    Object.is(part, -0)
      ? "-0"
      : ["object", "boolean", "string"].includes(typeof part) || Number.isFinite(part)
        ? part
        : String(part),
  );
}
