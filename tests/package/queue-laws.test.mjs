// Limiter's queue against a model of it that plays the whole queue ahead at every step.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Budget } from "../../build/package/index.js";
import { count, law } from "../random.mjs";
import { START } from "./clock.mjs";
import { make } from "./limiters.mjs";

/** The queue as documented. `fates` has the outcome of each call: `[moment]`, `[moment, code]` or undefined. */
class Model {
  fates = [];
  #queue = [];
  #pausedUntil = -Infinity;
  #wakeAt = Infinity;

  constructor(limits, { maxQueue = 1000, overflow }, lateMs) {
    Object.assign(this, { budget: new Budget(START, limits), limits, maxQueue, overflow, lateMs, now: START });
  }

  get waiting() {
    return this.#queue.length;
  }

  join(call) {
    this.#join(call);
    this.#notice();
  }

  #join({ cost, priority, maxWaitMs, group }) {
    const waiter = { id: this.fates.length, cost, priority, group, deadline: this.now + maxWaitMs };
    this.fates.push(undefined);
    const { maxCost } = this.budget.peek(this.now, { cost });
    if (maxCost !== undefined) return this.#end(waiter, "cost_never_granted");
    const behind = this.#queue.findIndex((other) => other.priority < priority);
    this.#queue.splice(behind < 0 ? this.#queue.length : behind, 0, waiter);
    // Only the first could pass at once, and so need not fit in the queue.
    if (this.#queue[0] === waiter) this.serve();
    else if (this.#makeRoom(waiter)) return;
    this.#makeRoom(waiter);
    this.serve();
  }

  abort(group) {
    const gone = this.#queue.filter((waiter) => waiter.group === group);
    for (const waiter of gone) this.#end(waiter, "aborted");
    if (gone.length > 0) this.serve();
  }

  change(verb, cost) {
    this.budget.decide(this.now, { verb, cost });
    if (verb === "reset") this.#pausedUntil = -Infinity;
    this.serve();
  }

  pause(moment) {
    this.#pausedUntil = Math.max(this.#pausedUntil, moment);
    this.serve();
  }

  resume() {
    this.#pausedUntil = -Infinity;
    this.serve();
  }

  /** When a cost would be granted behind all waiters. */
  peek(cost) {
    const { ahead, moment } = this.#play();
    const { allowed, retryAt } = ahead.peek(moment, { cost });
    const isFree = moment <= this.now && this.waiting === 0;
    this.#notice();
    if (!allowed) return retryAt;
    return isFree ? this.now : Math.max(moment, this.now + 1);
  }

  to(moment) {
    while (this.#wakeAt + this.lateMs <= moment) {
      this.now = Math.max(this.now, this.#wakeAt + this.lateMs);
      this.serve();
    }
    this.now = moment;
  }

  /** Any call notices that a timer is late. */
  #notice() {
    if (this.#wakeAt <= this.now) this.serve();
  }

  serve() {
    for (const [waiter] of this.#play().late) this.#end(waiter, "wait_too_long");
    this.#admit();
  }

  #admit() {
    this.#wakeAt = Infinity;
    for (let [first] = this.#queue; first; [first] = this.#queue) {
      const retryAt = this.#pausedUntil > this.now ? this.#pausedUntil : this.#ask(first);
      if (retryAt > this.now) {
        this.#wakeAt = retryAt;
        return;
      }
    }
  }

  /** Admits a waiter, drops it if it can never be admitted, or returns when to try again. */
  #ask(waiter) {
    const { allowed, retryAt, maxCost } = this.budget.decide(this.now, { cost: waiter.cost });
    if (allowed) this.#end(waiter);
    else if (maxCost !== undefined) this.#end(waiter, "cost_never_granted");
    else return retryAt;
    return this.now;
  }

  #play() {
    const ahead = new Budget(this.now, this.limits);
    ahead.restore(this.budget.save(this.now));
    let moment = Math.max(this.now, this.#pausedUntil);
    const late = [];
    for (const waiter of this.#queue) {
      const { allowed, retryAt } = ahead.peek(moment, { cost: waiter.cost });
      const at = allowed ? moment : retryAt;
      if (at === Infinity && waiter.deadline === Infinity) continue;
      if (at > Math.max(waiter.deadline, this.now)) late.push([waiter, at]);
      else {
        moment = at;
        ahead.decide(moment, { cost: waiter.cost });
      }
    }
    return { ahead, moment, late };
  }

  /** Returns whether this waiter was dropped. */
  #makeRoom(waiter) {
    if (this.waiting <= this.maxQueue || !this.#queue.includes(waiter)) return false;
    const lowest = this.#queue.at(-1).priority;
    const oldest = this.#queue.find((other) => other.priority === lowest);
    this.#end(this.overflow === "drop_oldest" ? oldest : waiter, "queue_full");
    return !this.#queue.includes(waiter);
  }

  #end(waiter, code) {
    this.#queue = this.#queue.filter((other) => other !== waiter);
    this.fates[waiter.id] = code ? [this.now - START, code] : [this.now - START];
  }
}

for (const lateMs of [0, 7]) {
  law(
    `admits, drops and forecasts as the model does${lateMs ? ", with late timers" : ""}`,
    { seed: 20_261_122, cases: 150 },
    async (random, seen) => {
      const { below, pick, chance } = random;
      const limits = Array.from({ length: 1 + below(3) }, () => ({
        kind: pick(["token_bucket", "fixed_window"]),
        rate: pick([1, 2, 3, 7]),
        periodMs: pick([10, 100, 333, 1000]),
        capacity: 4 + below(4),
        initial: below(5),
        maxDebt: 3,
      }));
      const options = { maxQueue: pick([0, 2, 5, 1000]), overflow: pick(["reject", "drop_oldest"]) };
      const { clock, limiter, acquire } = make(limits, options, lateMs);
      limiter.peek(0); // it starts with its first use
      const model = new Model(limits, options, lateMs);
      const hasPriorities = chance(0.5);
      const fates = [];
      const groups = new Map();
      const steps = [JSON.stringify([limits, options])];
      for (let step = 0; step < 60; step++) {
        const what = below(20);
        if (what < 12) {
          const group = below(3) + 3 * Math.floor(step / 10);
          if (!groups.has(group)) groups.set(group, new AbortController());
          const priority = hasPriorities ? below(3) : 0;
          const call = { cost: below(5), priority, maxWaitMs: pick([0, 50, 300, 1000, Infinity]), group };
          steps.push(`join ${JSON.stringify(call)}`);
          const { signal } = groups.get(group);
          if (signal.aborted) continue;
          fates.push(acquire({ ...call, signal }));
          model.join(call);
        } else if (what < 15) {
          const group = below(3) + 3 * Math.floor(step / 10);
          steps.push(`abort ${group}`);
          groups.get(group)?.abort("aborted");
          model.abort(group);
        } else if (what < 16) {
          const moment = clock.now() + below(300);
          steps.push(`pause ${moment - START}`);
          limiter.pause(moment);
          model.pause(moment);
        } else if (what < 17) {
          steps.push("resume");
          limiter.resume();
          model.resume();
        } else if (what < 19) {
          const verb = pick(["charge", "refund", "reset"]);
          const cost = below(3);
          steps.push(`${verb} ${cost}`);
          limiter.decide({ verb, cost });
          model.change(verb, cost);
        }
        await setImmediate();
        const to = clock.now() + (chance(0.6) ? below(chance(0.5) ? 20 : 300) : 0);
        steps.push(`to ${to - START}`);
        await clock.to(to);
        await setImmediate();
        model.to(to);
        const row = steps.join("\n");
        assert.deepEqual(outcomes(fates), model.fates, row);
        assert.equal(limiter.waiting, model.waiting, row);
        if (chance(0.3)) {
          const cost = below(5);
          const { allowed, retryAt } = limiter.peek(cost);
          assert.equal(allowed ? clock.now() : retryAt, model.peek(cost), row);
          await setImmediate();
        }
      }
      await clock.toTheEnd();
      model.to(clock.now());
      assert.deepEqual(outcomes(fates), model.fates, steps.join("\n"));
      assert.deepEqual([limiter.waiting, clock.timers], [0, []], "no caller waits for ever");
      for (const [, code = "admitted"] of model.fates) count(seen, code);
    },
    ({ admitted, wait_too_long, queue_full, aborted }) =>
      assert.ok(Math.min(admitted, wait_too_long, queue_full, aborted) > 100),
  );
}

law(
  "calls that join together are admitted by priority and then by arrival, and none is late",
  { seed: 3, cases: 30 },
  async ({ below, pick }) => {
    const { clock, limiter, acquire } = make({ rate: 1, periodMs: 10, initial: 0 });
    const calls = Array.from({ length: 200 }, (_, id) => {
      const call = { id, priority: below(5), maxWaitMs: pick([500, 1000, Infinity]) };
      return { ...call, fate: acquire(call) };
    });
    await setImmediate();
    await clock.toTheEnd();
    const admitted = calls.filter(({ fate }) => fate.value).sort((a, b) => a.fate.at - b.fate.at);
    const order = admitted.toSorted((a, b) => b.priority - a.priority || a.id - b.id);
    assert.deepEqual(
      admitted.map(({ id }) => id),
      order.map(({ id }) => id),
    );
    assert.deepEqual(
      admitted.map(({ fate }) => fate.at - START),
      admitted.map((_, i) => 10 * (i + 1)),
      "no token is wasted",
    );
    for (const { maxWaitMs, fate } of calls) {
      if (fate.value) assert.ok(fate.at - START <= maxWaitMs);
      else assert.deepEqual([fate.at, fate.error.code], [START, "wait_too_long"], "at once");
    }
    assert.equal(limiter.waiting, 0);
  },
);

test("tens of thousands of calls join, give up and are admitted concurrently", { timeout: 60_000 }, async () => {
  const N = 30_000;
  const one = new AbortController();
  const each = Array.from({ length: N }, () => new AbortController());
  // biome-ignore format: a table
  const table = [
    // what                        options of each call                              admitted in the end
    ["nothing",                    () => ({}),                                       N],
    ["maxWaitMs",                  () => ({ maxWaitMs: 1e9 }),                       N],
    ["one signal",                 () => ({ signal: one.signal }),                   0],
    ["a signal each",              (i) => ({ signal: each[i].signal, maxWaitMs: 1e9 }), N / 2],
    ["priorities",                 (i) => ({ priority: (i * 7919) % 1000 }),         N],
    ["priorities and maxWaitMs",   (i) => ({ priority: (i * 7919) % 10, maxWaitMs: 1e9 }), N],
  ];
  for (const [what, optionsOf, expected] of table) {
    const { limiter, clock } = make({ rate: 1, periodMs: 1, capacity: N, initial: 0 }, { maxQueue: N });
    let admitted = 0;
    const calls = Array.from({ length: N }, (_, i) =>
      limiter.acquire(optionsOf(i)).then(
        () => (admitted += 1),
        () => {},
      ),
    );
    assert.equal(limiter.waiting, N, what);
    if (what === "one signal") one.abort();
    if (what === "a signal each") for (let i = 0; i < N; i += 2) each[(i * 7) % N].abort();
    clock.set(START + N);
    limiter.refund(0); // wakes it
    await Promise.all(calls);
    assert.deepEqual([admitted, limiter.waiting], [expected, 0], what);
  }
});

test("thousands with deadlines wait, timers are late, some give up and others join", { timeout: 60_000 }, async () => {
  const slack = { rate: 1_000_000, periodMs: 3_600_000 };
  const { limiter, clock } = make([{ rate: 1, periodMs: 10, initial: 0 }, slack], { maxQueue: 30_000 }, 3);
  const ends = [];
  let admitted = 0;
  const join = () => {
    const end = new AbortController();
    ends.push(end);
    limiter.acquire({ maxWaitMs: 1e9, signal: end.signal }).then(
      () => (admitted += 1),
      () => {},
    );
  };
  for (let i = 0; i < 20_000; i++) join();
  for (let i = 0; i < 1000; i++) {
    await clock.advance(13);
    ends[10_000 + i].abort();
    join();
  }
  assert.equal(limiter.waiting, 20_000 - admitted);
  assert.ok(admitted > 900);
});

test("a limiter keeps nothing that has left its queue", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const { limiter, clock } = make({ rate: 1, periodMs: 10, initial: 0 });
  const kept = [];
  await (async () => {
    const calls = Array.from({ length: 20 }, () => {
      const mark = {};
      kept.push(new WeakRef(mark));
      return limiter.acquire({ maxWaitMs: 5000, signal: signalKeeping(mark) });
    });
    await setImmediate();
    await clock.toTheEnd();
    await Promise.all(calls);
  })();
  for (let i = 0; i < 20 && kept.some((ref) => ref.deref()); i++) {
    await setImmediate();
    collect();
  }
  assert.equal(kept.filter((ref) => ref.deref()).length, 0);
});

/** A signal that keeps `what` alive. */
function signalKeeping(what) {
  return Object.assign(new AbortController().signal, { what });
}

const outcomes = (fates) =>
  fates.map(({ at, value, error }) =>
    at === undefined ? undefined : value ? [at - START] : [at - START, error.code ?? error],
  );
