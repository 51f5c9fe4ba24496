// KeyedLimiter beside the obvious version: a map of exact budgets that forgets nothing.
import assert from "node:assert/strict";
import { Budget } from "../../build/package/index.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { count, law } from "../random.mjs";
import { describe, randomLimit, VERBS } from "./buckets.mjs";
import { START } from "./clock.mjs";

/** The current moment: the latest seen, unless the clock steps back by more than a minute. */
class Model {
  now = -Infinity;
  budgets = new Map();

  constructor(limits) {
    this.limits = limits;
  }

  to(moment) {
    const before = this.now;
    const isFarBack = before - moment > 60_000;
    if (isFarBack) {
      for (const [key, until] of this.neededUntil()) if (until <= before) this.budgets.delete(key);
      for (const budget of this.budgets.values()) {
        budget.restore(budget.save(before));
        budget.tryConsume(moment, 0);
      }
    }
    this.now = isFarBack ? moment : Math.max(before, moment);
    return isFarBack;
  }

  /** A budget that is only peeked at is not remembered. */
  budget(key, isKept = true) {
    const budget = this.budgets.get(key) ?? new Budget(this.now, this.limits);
    if (isKept) this.budgets.set(key, budget);
    return budget;
  }

  /** When each key that is in use may be forgotten. */
  neededUntil() {
    const isNeverNew = this.limits.some(({ rate, capacity = rate, initial = capacity }) => initial < capacity);
    return new Map(
      [...this.budgets].map(([key, budget]) => [
        key,
        isNeverNew ? Infinity : Math.max(budget.fullAt(this.now), ...budget.save(this.now).map(({ at }) => at)),
      ]),
    );
  }
}

/** One to three limits; some start with less than their capacity, and their keys are never forgotten. */
function limitsOf(random) {
  return Array.from({ length: 1 + random.below(3) }, (_, i) => {
    const limit = { ...randomLimit(random), name: `limit ${i}` };
    return random.chance(0.1) ? { ...limit, initial: random.below(limit.capacity + 1) } : limit;
  });
}

/** A call of `limiter`, and the same of a budget of the model. */
function randomCall({ below, pick, chance }, limits, now) {
  const cost = chance(0.7) ? below(4) : Object.fromEntries(limits.map(({ name }) => [name, below(4)]));
  const options = { cost, verb: pick([...Array(6).fill("consume"), ...VERBS]), maxWaitMs: pick([0, 500, Infinity]) };
  const told = (it, decision) => ({ ...decision, nextTokenAt: it.nextTokenAt(now) });
  return pick([
    { ask: (it, key) => it.tryConsume(key, cost), model: (it) => it.tryConsume(now, cost) },
    { ask: (it, key) => it.decide(key, options), model: (it) => told(it, it.decide(now, options)) },
    { ask: (it, key) => it.peek(key, cost), model: (it) => told(it, it.peek(now, { cost })), isLook: true },
    { ask: (it, key) => it.remaining(key), model: (it) => it.remaining(now), isLook: true },
    { ask: (it, key) => it.charge(key, cost), model: (it) => told(it, it.decide(now, { cost, verb: "charge" })) },
    { ask: (it, key) => it.refund(key, cost), model: (it) => void it.decide(now, { cost, verb: "refund" }) },
    { ask: (it, key) => it.reset(key), model: (it) => void it.decide(now, { cost: 0, verb: "reset" }) },
  ]);
}

const elapsed = ({ below, pick, chance }) =>
  chance(0.02) ? -60_000 - below(200_000) : pick([0, 0, 0, 1, below(5), below(2_000), -below(2_000), below(100_000)]);

law(
  "as long as there is room, forgetting changes no answer",
  { seed: 20_261_122, cases: 700 },
  (random, seen) => {
    const limits = limitsOf(random);
    let moment = START;
    const limiter = new KeyedLimiter(limits, { clock: { now: () => moment }, maxKeys: 200 });
    const model = new Model(limits);
    for (let step = 0; step < 120; step++) {
      moment += elapsed(random);
      if (model.to(moment)) count(seen, "far back");
      const key = `key ${random.below(random.pick([3, 200]))}`;
      const { ask, model: expect, isLook } = randomCall(random, limits, model.now);
      const kept = limiter.size;
      const where = describe({ limits, step });
      assert.deepEqual(ask(limiter, key), expect(model.budget(key, !isLook)), where);
      if (limiter.size < kept) count(seen, "forgets");
    }
  },
  (seen) => assert.ok(seen.forgets > 1000 && seen["far back"] > 500, describe(seen)),
);

law(
  "never keeps more than maxKeys keys, and refuses a new one only while as many others are in use",
  { seed: 1, cases: 700 },
  (random, seen) => {
    const limits = limitsOf(random);
    const maxKeys = 1 + random.below(9);
    let moment = START;
    const limiter = new KeyedLimiter(limits, { clock: { now: () => moment }, maxKeys });
    const model = new Model(limits);
    // Tokens given back make a key expire earlier, but it may be kept until the moment from before.
    const keptUntil = new Map();
    for (let step = 0; step < 80; step++) {
      moment += elapsed(random);
      if (model.to(moment)) keptUntil.clear();
      const key = `key ${random.below(12)}`;
      const where = describe({ limits, maxKeys, step });
      const options = { cost: random.below(4), verb: random.pick([...Array(6).fill("consume"), ...VERBS]) };
      for (const [key, until] of model.neededUntil()) {
        keptUntil.set(key, Math.max(until, keptUntil.get(key) ?? -Infinity));
      }
      const others = [...keptUntil].filter(([other, until]) => other !== key && until > model.now);
      const before = model.budget(key).save(model.now);
      const granted = model.budget(key).decide(model.now, options);
      const expected = { ...granted, nextTokenAt: model.budget(key).nextTokenAt(model.now) };
      const peeked = limiter.peek(key, options.cost);
      const answer = limiter.decide(key, options);
      assert.ok(limiter.size <= maxKeys, where);
      if (options.verb === "consume")
        assert.deepEqual([peeked.allowed, peeked.retryAt], [answer.allowed, answer.retryAt], where);
      try {
        assert.deepEqual(answer, expected, where);
      } catch (error) {
        // Without room the model takes nothing either.
        count(seen, "no room");
        if (answer.allowed || others.length < maxKeys) throw error;
        model.budget(key).restore(before);
        assert.equal(answer.remaining, 0, where);
        assert.equal(limiter.remaining(key), 0, where);
        assert.ok(answer.retryAt > model.now, where);
        assert.ok(answer.retryAt <= Math.max(...others.map(([, until]) => until)), where);
        assert.equal(answer.maxCost, answer.retryAt === Infinity ? 0 : undefined, where);
      }
    }
  },
  (seen) => assert.ok(seen["no room"] > 1000, describe(seen)),
);
