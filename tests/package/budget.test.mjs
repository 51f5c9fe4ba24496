// Budget: several limits, all or none.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket, Budget, TollgateError } from "../../build/package/index.js";
import { count, law } from "../random.mjs";
import { checked } from "./buckets.mjs";
import { START } from "./clock.mjs";

const VERBS = ["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"];
const allow = (tokens, readyAt) => ({ allowed: true, tokens, readyAt });
const wait = (retryAt) => ({ allowed: false, retryAt });
const never = (maxCost) => ({ allowed: false, retryAt: Infinity, maxCost });

test("all limits grant or nothing is taken, and the longest wait is reported", () => {
  const budget = new Budget(0, [
    { rate: 10, periodMs: 1000 },
    { rate: 15, periodMs: 60_000 },
  ]);
  // biome-ignore format: a table
  const table = [
    // now   cost  answer           left  in each
    [0,      11,   never(10),       10,   [10, 15]],
    [0,      16,   never(10),       10,   [10, 15]], // the smaller of both
    [0,      10,   allow(10, 0),    0,    [0, 5]],
    [0,      1,    wait(100),       0,    [0, 5]],
    [1000,   10,   wait(20_000),    5,    [10, 5]], // the first limit would grant, the second has 5 left
    [1000,   5,    allow(5, 1000),  0,    [5, 0]],
    [1000,   1,    wait(4000),      0,    [5, 0]],
    [3999,   1,    wait(4000),      0,    [10, 0]],
    [4000,   1,    allow(1, 4000),  0,    [9, 0]],
  ];
  for (const [now, cost, answer, remaining, each] of table) {
    assert.deepEqual(checked(budget).peek(now, { cost }), answer, `${now} ${cost}`);
    assert.deepEqual(checked(budget).decide(now, { cost }), answer, `${now} ${cost}`);
    assert.equal(budget.remaining(now), remaining, `${now} ${cost}`);
    assert.deepEqual(
      budget.save(now).map(({ tokens }) => tokens),
      each,
      `${now} ${cost}`,
    );
  }
  assert.equal(budget.fullAt(4000), 64_000, "when the last limit is full");
  assert.equal(budget.fullAt(70_000), 70_000);
});

test("has every method of a bucket", () => {
  // Each limit has its own number of drops.
  const names = Object.getOwnPropertyNames(Bucket.prototype).filter((name) => name !== "dropsPerToken");
  for (const name of names) assert.equal(typeof Budget.prototype[name], "function", name);
});

test("is full when all limits are, and never if one never is", () => {
  const budget = new Budget(0, [
    { rate: 1, periodMs: 1000 },
    { rate: 0, periodMs: 1000, capacity: 3 },
  ]);
  assert.equal(budget.fullAt(7), 7);
  budget.decide(7, { cost: 1 });
  assert.equal(budget.fullAt(7), Infinity);
});

test("a single limit is a budget of one", () => {
  const budget = new Budget(0, { rate: 3, periodMs: 1000 });
  assert.deepEqual(
    [budget.limits, checked(budget).decide(0, { cost: 3 }), checked(budget).decide(0)],
    [[{ rate: 3, periodMs: 1000 }], allow(3, 0), wait(334)],
  );
  assert.deepEqual(budget.save(0), [{ tokens: 0, drops: 0, at: 0 }]);
});

test("the constructor rejects an empty list of limits", () => {
  assert.throws(() => new Budget(0, []), TollgateError);
});

test("the constructor rejects an invalid limit", () => {
  assert.throws(
    () =>
      new Budget(0, [
        { rate: 1, periodMs: 1 },
        { rate: -1, periodMs: 1 },
      ]),
    { code: "rate_too_small" },
  );
  assert.throws(() => new Budget(0.5, [{ rate: 1, periodMs: 1 }]), { code: "now_not_whole" });
});

test("a reservation starts when the last limit permits, and puts each in debt", () => {
  const limits = [
    { rate: 1, periodMs: 1000, maxDebt: 3 },
    { rate: 1, periodMs: 5000, maxDebt: 1 },
  ];
  const budget = new Budget(0, limits);
  // biome-ignore format: a table
  const table = [
    // verb      cost maxWaitMs  answer           tokens in each
    ["reserve",  1,   0,         allow(1, 0),     [0, 0]],
    ["reserve",  1,   4999,      wait(1),         [0, 0]],
    ["reserve",  1,   5000,      allow(1, 5000),  [-1, -1]],
    ["reserve",  1,   Infinity,  wait(5000),      [-1, -1]], // the second is at its maximum debt
    ["borrow",   1,   Infinity,  wait(5000),      [-1, -1]],
    ["charge",   5,   0,         allow(2, 0),     [-3, -1]], // each down to its maximum debt
    ["refund",   2,   0,         allow(2, 0),     [-1, 1]],
    ["consume",  0,   0,         wait(1000),      [-1, 1]],
    ["reset",    0,   0,         allow(2, 0),     [1, 1]],
  ];
  for (const [verb, cost, maxWaitMs, answer, each] of table) {
    assert.deepEqual(checked(budget).peek(0, { cost, verb, maxWaitMs }), answer, `${verb} ${cost}`);
    assert.deepEqual(checked(budget).decide(0, { cost, verb, maxWaitMs }), answer, `${verb} ${cost}`);
    assert.deepEqual(
      budget.save(0).map(({ tokens }) => tokens),
      each,
      `${verb} ${cost}`,
    );
  }
});

test("consumeUpTo takes what all limits have, and no more of each than was asked", () => {
  const limits = [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "tokens", rate: 100, periodMs: 1000, initial: 7 },
  ];
  // biome-ignore format: a table
  const table = [
    // cost                          answer       left in each
    [20,                             allow(7, 0), [3, 0]],
    [3,                              allow(3, 0), [7, 4]],
    [{ requests: 2, tokens: 50 },    allow(7, 0), [8, 0]], // the same from each, unless less was asked of it
    [{ requests: 50, tokens: 2 },    allow(7, 0), [3, 5]],
    [{ requests: 50, tokens: 0 },    allow(10, 0), [0, 7]], // a limit with a cost of 0 does not count
    [{ requests: 0, tokens: 50 },    allow(7, 0), [10, 0]],
    [{ requests: 0, tokens: 0 },     allow(0, 0), [10, 7]],
    [0,                              allow(0, 0), [10, 7]],
  ];
  for (const [cost, answer, each] of table) {
    const budget = new Budget(0, limits);
    const row = JSON.stringify(cost);
    assert.deepEqual(checked(budget).peek(0, { cost, verb: "consumeUpTo" }), answer, row);
    assert.deepEqual(checked(budget).decide(0, { cost, verb: "consumeUpTo" }), answer, row);
    assert.deepEqual(
      budget.save(0).map(({ tokens }) => tokens),
      each,
      row,
    );
  }
  const empty = new Budget(0, [limits[0], { ...limits[1], initial: 0 }]);
  assert.deepEqual(checked(empty).decide(0, { cost: 20, verb: "consumeUpTo" }), wait(10), "like a cost of 1");
  assert.deepEqual(
    empty.save(0).map(({ tokens }) => tokens),
    [10, 0],
  );
});

test("every verb rejects a cost that is not a number of tokens", () => {
  for (const limits of [
    [{ name: "a", rate: 1, periodMs: 1000 }],
    [
      { name: "a", rate: 1, periodMs: 1000 },
      { name: "b", rate: 9, periodMs: 1000 },
    ],
  ]) {
    for (const verb of VERBS) {
      for (const not of [1.5, NaN, Infinity, 2 ** 53, -1]) {
        const budget = new Budget(0, limits);
        assert.throws(() => checked(budget).decide(0, { cost: not, verb }), TollgateError, `${verb} ${not}`);
        assert.throws(
          () => budget.decide(0, { cost: Object.fromEntries(limits.map(({ name }) => [name, not])), verb }),
          TollgateError,
          `${verb} ${not} by name`,
        );
        assert.deepEqual(budget.save(0), new Budget(0, limits).save(0), `${verb} ${not}`);
      }
    }
  }
});

test("a cost by names must name each limit", () => {
  const budget = new Budget(0, [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "tokens", rate: 100, periodMs: 1000 },
  ]);
  const wrong = [{}, { requests: 1 }, { tokens: 1 }, { requests: 1, token: 1 }, { requests: 1, Tokens: 1 }];
  for (const cost of [...wrong, [1, 1], [], "1", "requests", true, () => {}, 1n, Symbol("x")]) {
    for (const verb of VERBS) {
      assert.throws(() => checked(budget).decide(0, { cost, verb }), TollgateError, `${verb} ${String(cost)}`);
    }
  }
});

test("a cost by names has whole numbers, and each limit takes its own", () => {
  const budget = new Budget(0, [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "tokens", rate: 100, periodMs: 1000 },
  ]);
  const before = budget.save(0);
  assert.throws(
    () => budget.decide(0, { cost: null }),
    (error) => error instanceof TypeError || error instanceof TollgateError,
  );
  for (const [cost, code] of [
    [{ requests: 1, tokens: 1.5 }, "cost_not_whole"],
    [{ requests: -1, tokens: 1 }, "cost_too_small"],
    [{ requests: 1, tokens: "1" }, "cost_not_whole"],
  ]) {
    assert.throws(() => checked(budget).decide(0, { cost }), { name: "TollgateError", code }, JSON.stringify(cost));
  }
  assert.deepEqual(budget.save(0), before, "nothing was taken");
  assert.deepEqual(checked(budget).decide(0, { cost: { tokens: 50, requests: 1 } }), allow(50, 0), "in any order");
  assert.deepEqual(checked(budget).decide(0, { cost: { tokens: 51, requests: 1 } }), wait(10));
  assert.deepEqual(checked(budget).decide(0, { cost: { tokens: 101, requests: 1 } }), never(100));
  assert.deepEqual(
    budget.save(0).map(({ tokens }) => tokens),
    [9, 50],
  );
});

test("a cost in place of the options is rejected, not taken for 1", () => {
  const budget = new Budget(0, [
    { rate: 10, periodMs: 1000 },
    { rate: 100, periodMs: 1000 },
  ]);
  for (const method of ["decide", "peek"])
    assert.throws(() => budget[method](0, 5), { name: "TollgateError", code: "options_unknown" }, method);
  assert.equal(budget.remaining(0), 10);
});

test("names that every object inherits are ordinary names", () => {
  const budget = new Budget(0, [
    { name: "constructor", rate: 10, periodMs: 1000 },
    { name: "length", rate: 10, periodMs: 1000 },
  ]);
  assert.deepEqual(checked(budget).decide(0, { cost: { constructor: 1, length: 2 } }), allow(2, 0));
  assert.throws(() => checked(budget).decide(0, { cost: { length: 2 } }), TollgateError);
  assert.deepEqual(
    budget.save(0).map(({ tokens }) => tokens),
    [9, 8],
  );
});

test("a refusal changes nothing, except a limit whose clock stepped back too far", () => {
  const limits = [
    { rate: 1, periodMs: 1000 },
    { rate: 3, periodMs: 1000 },
  ];
  const budget = new Budget(START, limits);
  budget.decide(START, { cost: 1 });
  const before = budget.save(START);
  for (const at of [0, 1, 500, 999]) {
    assert.equal(budget.decide(START + at, { cost: 1 }).allowed, false);
    assert.deepEqual(budget.save(START), before);
  }
  assert.deepEqual(
    checked(budget).decide(START - 60_000, { cost: 1 }),
    wait(START + 1000),
    "after a step back of a minute it waits",
  );
  assert.deepEqual(
    checked(budget).decide(START - 60_001, { cost: 1 }),
    wait(START - 59_001),
    "after a longer one it continues from the new time",
  );
  assert.deepEqual(checked(budget).decide(START - 59_001, { cost: 1 }), allow(1, START - 59_001));
});

test("restores all limits or none", () => {
  const limits = [
    { rate: 3, periodMs: 1000 },
    { rate: 5, periodMs: 1000 },
  ];
  const budget = new Budget(0, limits);
  budget.decide(0, { cost: 2 });
  const good = budget.save(0);
  const empty = { tokens: 0, drops: 0, at: 0 };
  const wrong = [
    [empty, { ...empty, tokens: 6 }],
    [{ ...empty, tokens: 4 }, empty],
    [empty],
    [],
    [empty, null],
    [empty, { ...empty, drops: 1000 }],
    Object.assign([], { 1: empty }),
    {},
    "xx",
  ];
  for (const snapshots of wrong) {
    assert.throws(
      () => budget.restore(snapshots),
      { name: "TollgateError", code: "snapshot_mismatched" },
      JSON.stringify(snapshots),
    );
    assert.deepEqual(budget.save(0), good, JSON.stringify(snapshots));
  }
  for (const not of [null, undefined])
    assert.throws(
      () => budget.restore(not),
      (error) => error instanceof TypeError || error instanceof TollgateError,
    );
  budget.restore([{ ...empty, tokens: 3 }, empty]);
  assert.deepEqual(budget.save(0), [{ ...empty, tokens: 3 }, empty]);
});

test("rejects a snapshot with too many limits", () => {
  const budget = new Budget(0, [{ rate: 3, periodMs: 1000 }]);
  const { 0: one } = budget.save(0);
  assert.throws(() => budget.restore([one, one]), { code: "snapshot_mismatched" });
});

test("a snapshot from a clock that was far ahead locks no one out", () => {
  const limits = [
    { rate: 3, periodMs: 1000 },
    { kind: "fixed_window", rate: 3, periodMs: 1000 },
  ];
  for (const aheadMs of [61_000, 1e9, 2 ** 52]) {
    const ahead = new Budget(Math.min(START + aheadMs, 2 ** 52), limits);
    ahead.decide(Math.min(START + aheadMs, 2 ** 52), { cost: 3 });
    const budget = new Budget(START, limits);
    budget.restore(ahead.save(Math.min(START + aheadMs, 2 ** 52)));
    const { allowed, retryAt } = checked(budget).decide(START, { cost: 3 });
    assert.equal(allowed, false);
    assert.ok(retryAt <= START + 1000, `${aheadMs}: ${retryAt - START}`);
    assert.deepEqual(checked(budget).decide(retryAt, { cost: 3 }), allow(3, retryAt));
  }
});

law(
  "answers as its buckets together do",
  { seed: 23, cases: 300 },
  ({ below, pick, chance }, seen) => {
    const limits = Array.from({ length: 1 + below(4) }, (_, i) => ({
      name: `limit ${i}`,
      kind: pick(["token_bucket", "fixed_window"]),
      rate: pick([0, 1, 3, 7]),
      periodMs: pick([1, 7, 1000]),
      capacity: below(9),
      maxDebt: pick([0, 5]),
    }));
    const budget = new Budget(START, limits);
    const buckets = limits.map((limit) => new Bucket(START, limit));
    let now = START;
    for (let step = 0; step < 20; step++) {
      now += below(900) - (chance(0.05) ? 70_000 : 0);
      const verb = pick(VERBS.filter((verb) => verb !== "consumeUpTo"));
      const maxWaitMs = pick([0, 300, Infinity]);
      const costs = limits.map(() => below(6));
      const same = chance(0.5);
      const cost = same ? costs[0] : Object.fromEntries(limits.map(({ name }, i) => [name, costs[i]]));
      // A cost of zero beside another does not decide, like giving nothing back; a reset takes no cost.
      const hasCost = verb !== "reset" && !same && costs.some((each) => each > 0);
      const askOf = (i) => {
        const own = same ? costs[0] : costs[i];
        return { cost: own, verb: hasCost && own === 0 ? "refund" : verb, maxWaitMs };
      };
      const each = buckets.map((bucket, i) => bucket.peek(now, askOf(i)));
      const row = JSON.stringify([limits, now, verb, cost, maxWaitMs]);
      const refused = each.filter(({ allowed }) => !allowed);
      const maxCosts = refused.flatMap(({ maxCost }) => maxCost ?? []);
      const expected =
        maxCosts.length > 0
          ? never(Math.min(...maxCosts))
          : refused.length > 0
            ? wait(Math.max(...refused.map(({ retryAt }) => retryAt)))
            : allow(Math.max(...each.map(({ tokens }) => tokens)), Math.max(...each.map(({ readyAt }) => readyAt)));
      assert.deepEqual(checked(budget).decide(now, { cost, verb, maxWaitMs }), expected, row);
      if (refused.length > 0) count(seen, "refusals");
      for (const [i, bucket] of buckets.entries()) {
        if (refused.length > 0) bucket.tryConsume(now, 0);
        else checked(bucket).decide(now, askOf(i));
      }
      assert.deepEqual(
        budget.save(now),
        buckets.map((bucket) => bucket.save(now)),
        row,
      );
      assert.equal(budget.owed(now), Math.max(...buckets.map((bucket) => bucket.owed(now))), row);
      if (verb === "consume" && expected.retryAt < Infinity) {
        const ask = (moment) => budget.peek(moment, { cost, verb, maxWaitMs }).allowed;
        assert.deepEqual([ask(expected.retryAt - 1), ask(expected.retryAt)], [false, true], row);
      }
    }
  },
  ({ refusals }) => assert.ok(refusals > 500),
);

test("limits may be proxies, and later changes to them have no effect", () => {
  const limit = { rate: 1, periodMs: 1000 };
  const { limits } = new Budget(0, new Proxy([new Proxy(limit, {})], {}));
  limit.rate = 2;
  assert.deepEqual(structuredClone(limits), [{ rate: 1, periodMs: 1000 }]);
  assert.throws(() => (limits[0].rate = 3), TypeError);
});
