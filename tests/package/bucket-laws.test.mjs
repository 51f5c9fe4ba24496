// Bucket: that it is exact.
import assert from "node:assert/strict";
import { Bucket } from "../../build/package/index.js";
import { count, law } from "../random.mjs";
import { assertRefused, checked, describe, MOMENT, VERBS } from "./buckets.mjs";
import { START } from "./clock.mjs";
import { Model } from "./model.mjs";

law(
  "agrees with the naive model that counts each millisecond",
  { seed: 7, cases: 700 },
  ({ below, pick, chance }, seen) => {
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
      const options = {
        cost: below(capacity + limit.maxDebt + 2),
        verb: pick(VERBS),
        maxWaitMs: pick([0, 1, 4, 9, Infinity]),
      };
      const place = describe([limit, step, now, options]);
      const answer = checked(bucket).peek(now, options);
      count(seen, answer.allowed ? "allow" : answer.retryAt === Infinity ? "never" : "wait");
      assert.deepEqual(answer, model.decide(now, options, false), place);
      const apply = chance(0.8);
      assert.deepEqual(
        checked(bucket)[apply ? "decide" : "peek"](now, options),
        model.decide(now, options, apply),
        place,
      );
      assert.deepEqual(
        [bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)],
        [model.remaining(now), model.owed(now), model.fullAt(now)],
        place,
      );
    }
  },
  ({ allow, wait, never }) => assert.ok(Math.min(allow, wait, never) > 500),
);

law(
  "is exact to the millisecond with the largest numbers",
  { seed: 11, cases: 4000 },
  ({ below, pick }, seen) => {
    const large = () =>
      pick([1, 2 ** below(52), 2 ** below(52) - 1, 10 ** below(15), below(2 ** 52), below(2 ** 30)]) || 1;
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
      return;
    }
    count(seen, "accepted");
    const model = new Model(START, limit);
    let now = START;
    for (let step = 0; step < 12; step++) {
      const cost = Math.min(limit.capacity, pick([1, large(), limit.capacity, Math.floor(limit.capacity / 2)]));
      const answer = checked(bucket).decide(now, { cost });
      model.consume(now, cost);
      assert.equal(bucket.remaining(now), model.remaining(now), describe([limit, step]));
      if (!answer.allowed && answer.retryAt <= MOMENT) {
        assert.equal(model.grants(answer.retryAt - 1, cost), false, describe([limit, step, cost, answer]));
        assert.equal(model.grants(answer.retryAt, cost), true, describe([limit, step, cost, answer]));
        assert.equal(bucket.peek(answer.retryAt - 1, { cost }).allowed, false, describe([limit, step, cost, answer]));
        assert.equal(bucket.peek(answer.retryAt, { cost }).allowed, true, describe([limit, step, cost, answer]));
        now = answer.retryAt - pick([0, 1]);
      } else now = Math.min(MOMENT, now + large());
    }
  },
  ({ accepted }) => assert.ok(accepted > 300),
);

law(
  "over any interval admits at most the capacity plus the refill, and refuses nothing that would fit",
  { seed: 3, cases: 10 },
  ({ below, pick }) => {
    const limits = [
      { rate: 3, periodMs: 1000, capacity: 3 },
      { rate: 7, periodMs: 60_000, capacity: 20 },
      { rate: 1000, periodMs: 7, capacity: 50 },
      { rate: 1, periodMs: 1, capacity: 1 },
      { rate: 2, periodMs: 3, capacity: 9 },
    ];
    const limit = pick(limits);
    const { rate, periodMs, capacity } = limit;
    const bucket = new Bucket(START, limit);
    const model = new Model(START, limit);
    const admitted = [];
    let now = START;
    for (let step = 0; step < 600; step++) {
      now += below(pick([2, 50, periodMs]));
      const cost = 1 + below(capacity);
      const granted = bucket.tryConsume(now, cost);
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
  },
);
