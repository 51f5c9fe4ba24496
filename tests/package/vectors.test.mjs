// The shared vectors, tests/vectors/*.json, through every class of the package that decides.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { KINDS } from "../../build/package/bucket.js";
import { Bucket, Budget, Limiter } from "../../build/package/index.js";
import { check, checked } from "./buckets.mjs";
import { FakeClock } from "./clock.mjs";

/** The package's names for them. */
// biome-ignore format: a table
const VERBS = {
  consume: "consume", peek: "consume", reserve: "reserve", borrow: "borrow",
  charge: "charge", consume_up_to: "consumeUpTo", refund: "refund", reset: "reset",
};

// Without `tollgate/kinds` there are neither windows from first use nor rolling ones: see kinds-vectors.test.mjs.
const hasKinds = KINDS.length > 2;
const kinds = hasKinds ? await import("../../build/package/kinds.js") : undefined;

const folder = new URL("../vectors/", import.meta.url);
const cases = readdirSync(folder)
  .filter((name) => name.endsWith(".json") && (hasKinds || !["first_use.json", "rolling.json"].includes(name)))
  .flatMap((file) => {
    const { about, cases, ...others } = JSON.parse(readFileSync(new URL(file, folder), "utf8"));
    assert.deepEqual([typeof about, others], ["string", {}], file);
    return cases.map((each) => read(file, each));
  });

for (const { name, limit, steps } of cases) {
  test(`Bucket: ${name}`, () => {
    const bucket = new Bucket(steps[0].now, limit);
    for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
      const before = bucket.save(now);
      assert.deepEqual(checked(bucket).peek(now, { cost, verb, maxWaitMs }), expected, `${place}, not applied`);
      if (verb === "consume") assert.deepEqual(checked(bucket).peek(now, { cost }), expected, `${place}, peek`);
      assert.deepEqual(bucket.save(now), before, `${place}, not applied`);
      if (applied) assert.deepEqual(checked(bucket).decide(now, { cost, verb, maxWaitMs }), expected, place);
      assert.equal(bucket.remaining(now), remaining, place);
    }
  });

  test(`Bucket.consume: ${name}`, () => {
    const bucket = new Bucket(steps[0].now, limit);
    for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
      if (verb === "consume" && applied) assert.equal(bucket.tryConsume(now, cost), expected.allowed, place);
      else checked(bucket)[applied ? "decide" : "peek"](now, { cost, verb, maxWaitMs });
      assert.equal(bucket.remaining(now), remaining, place);
    }
  });

  test(`a new Bucket for each step continues from the previous snapshot: ${name}`, () => {
    let bucket = new Bucket(steps[0].now, limit);
    for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
      const snapshot = JSON.parse(JSON.stringify(bucket.save(now)));
      bucket = new Bucket(now, limit);
      bucket.restore(snapshot);
      assert.deepEqual(checked(bucket)[applied ? "decide" : "peek"](now, { cost, verb, maxWaitMs }), expected, place);
      assert.equal(bucket.remaining(now), remaining, place);
    }
  });

  // The same limit twice changes no answer.
  for (const [what, limits] of [
    ["one limit", limit],
    ["a list of one limit", [limit]],
    ["the same limit twice", [limit, limit]],
  ]) {
    test(`Budget of ${what}: ${name}`, () => {
      const budget = new Budget(steps[0].now, limits);
      for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
        const before = budget.save(now);
        assert.deepEqual(checked(budget).peek(now, { cost, verb, maxWaitMs }), expected, `${place}, not applied`);
        assert.deepEqual(budget.save(now), before, `${place}, not applied`);
        if (applied) assert.deepEqual(checked(budget).decide(now, { cost, verb, maxWaitMs }), expected, place);
        assert.equal(budget.remaining(now), remaining, place);
      }
    });
  }

  if (steps.every(({ verb }) => verb !== "borrow" && verb !== "consumeUpTo")) {
    test(`Limiter: ${name}`, () => {
      const clock = new FakeClock(steps[0].now);
      const limiter = new Limiter(limit, { clock });
      for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
        clock.set(now);
        if (verb === "consume") assert.deepEqual(checked(limiter).peek(cost), expected, `${place}, peek`);
        if (verb === "consume" && applied) assert.deepEqual(checked(limiter).decide({ cost }), expected, place);
        if (verb === "reserve") assert.deepEqual(checked(limiter).reserve({ cost, maxWaitMs }), expected, place);
        if (verb === "charge" || verb === "refund")
          assert.deepEqual(check(limiter, limiter[verb](cost), now), expected, place);
        if (verb === "reset") assert.deepEqual(check(limiter, limiter.reset(), now), expected, place);
        assert.equal(limiter.remaining(), remaining, place);
      }
      assert.deepEqual(clock.timers, []);
    });

    test(`Limiter.acquire without waiting: ${name}`, async () => {
      const clock = new FakeClock(steps[0].now);
      const limiter = new Limiter(limit, { clock });
      for (const { place, now, verb, applied, cost, maxWaitMs, expected, remaining } of steps) {
        clock.set(now);
        if (verb === "consume" && applied) {
          const answer = await limiter.acquire({ cost, maxWaitMs: 0 }).then(
            (grant) => check(limiter, grant, now),
            ({ code, retryAt, maxCost }) => ({ code, retryAt, maxCost }),
          );
          const { maxCost, retryAt } = expected;
          if (expected.allowed) assert.deepEqual(answer, expected, place);
          else if (maxCost !== undefined)
            assert.deepEqual(answer, { code: "cost_never_granted", retryAt: undefined, maxCost }, place);
          else assert.deepEqual(answer, { code: "wait_too_long", retryAt, maxCost }, place);
        } else if (verb === "reserve") limiter.reserve({ cost, maxWaitMs });
        else if (verb === "reset") limiter.reset();
        else if (verb !== "consume") limiter[verb](cost);
        assert.equal(limiter.remaining(), remaining, place);
      }
      assert.deepEqual([limiter.waiting, clock.timers], [0, []]);
    });
  }
}

const several = JSON.parse(readFileSync(new URL("several/zero_cost.json", folder), "utf8")).cases;
for (const { name: title, limits, steps } of several) {
  test(`Budget of several limits: ${title}`, () => {
    const named = limits.map(({ name, ...limit }) => ({ name, ...read("several", { limit, steps: [] }).limit }));
    const budget = new Budget(steps[0].at, named);
    for (const [index, { costs, remaining, ...step }] of steps.entries()) {
      const each = { ...step, remaining: Math.min(...remaining), cost: 0 };
      const { place, now, verb, applied, maxWaitMs, expected } = readStep(`step ${index + 1}`, each);
      const cost = Object.fromEntries(named.map(({ name }, i) => [name, costs[i]]));
      const before = budget.save(now);
      const options = { cost, verb, ...(maxWaitMs !== undefined && { maxWaitMs }) };
      assert.deepEqual(checked(budget).peek(now, options), expected, `${place}, not applied`);
      assert.deepEqual(budget.save(now), before, `${place}, not applied`);
      assert.ok(applied);
      assert.deepEqual(checked(budget).decide(now, options), expected, place);
      assert.deepEqual(
        budget.buckets.map((bucket) => bucket.remaining(now)),
        remaining,
        place,
      );
    }
  });
}

test("the vectors have every verb and every kind of answer", () => {
  const steps = cases.flatMap(({ steps }) => steps);
  assert.deepEqual(new Set(steps.map(({ verb }) => verb)), new Set(Object.values(VERBS)));
  assert.deepEqual(
    new Set(steps.map(({ expected }) => Object.keys(expected).join())),
    new Set(["allowed,tokens,readyAt", "allowed,retryAt", "allowed,retryAt,maxCost"]),
  );
  console.log(`${cases.length} cases, ${steps.length} steps`);
});

/** A case in the package's terms. Unknown members are errors: they would go untested. */
function read(file, { name, why, limit, steps, ...others }) {
  assert.deepEqual(others, {}, `${file}: ${name}`);
  const { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, grains, ...otherNumbers } = limit;
  assert.deepEqual(otherNumbers, {}, `${file}: ${name}`);
  const isRolling = kind === "rolling_window";
  assert.ok(isRolling || KINDS.includes(kind), `${file}: ${name}`);
  const numbers = { kind, rate, periodMs: period_ms, capacity, maxDebt: max_debt, initial, offsetMs: offset_ms };
  return {
    name: `${file}: ${name}`,
    limit: isRolling ? kinds.rollingWindow({ rate, periodMs: period_ms, grains }) : numbers,
    steps: steps.map((step, index) => readStep(`step ${index + 1}`, step)),
  };
}

function readStep(place, { at, verb, cost, max_wait_ms, expect, remaining, why, ...others }) {
  assert.deepEqual(others, {}, place);
  assert.ok(Object.hasOwn(VERBS, verb), `${place}: ${verb}`);
  const { allow, wait, never, ...otherAnswers } = expect;
  assert.deepEqual([otherAnswers, Object.keys(expect).length], [{}, 1], place);
  const numbers = { ...allow, ...wait, ...never };
  assert.deepEqual(Object.keys(numbers), allow ? ["tokens", "ready_at"] : wait ? ["retry_at"] : ["max"], place);
  const expected = allow
    ? { allowed: true, tokens: allow.tokens, readyAt: allow.ready_at }
    : wait
      ? { allowed: false, retryAt: wait.retry_at }
      : { allowed: false, retryAt: Infinity, maxCost: never.max };
  return {
    place,
    now: at,
    verb: VERBS[verb],
    applied: verb !== "peek",
    cost,
    maxWaitMs: max_wait_ms,
    expected,
    remaining,
  };
}
