// Limiter: that its forecasts are exact, and that it never admits too much.
import assert from "node:assert/strict";
import { setImmediate } from "node:timers/promises";
import { count, law } from "../random.mjs";
import { checked } from "./buckets.mjs";
import { START } from "./clock.mjs";
import { make } from "./limiters.mjs";

/** Random limits, each of which grants costs up to `most`. */
function limitsOf({ pick, below }, most) {
  return Array.from({ length: 1 + below(3) }, (_, i) => ({
    name: `limit ${i}`,
    kind: pick(["token_bucket", "fixed_window"]),
    rate: pick([1, 2, 3, 7]),
    periodMs: pick([10, 100, 333, 1000]),
    capacity: most + below(4),
  }));
}

law(
  "with the forecast wait as maxWaitMs a call is admitted on time, and with a millisecond less rejected at once",
  { seed: 20_261_122, cases: 60 },
  async (random, seen) => {
    const { below, chance } = random;
    const limits = limitsOf(random, 4);
    const { clock, limiter, acquire } = make(limits);
    const asked = [];
    for (let i = 0; i < 12; i++) {
      if (chance(0.3)) await clock.advance(below(300));
      if (limiter.waiting === 0 && chance(0.3)) limiter.pause(clock.now() + below(500));
      const some = () => below(5);
      const cost = chance(0.5) ? some() : Object.fromEntries(limits.map(({ name }) => [name, some()]));
      const answer = checked(limiter).peek(cost);
      const at = answer.allowed ? clock.now() : answer.retryAt;
      const row = JSON.stringify([limits, asked, cost]);
      if (at > clock.now()) {
        count(seen, "waits");
        const waiting = limiter.waiting;
        const early = acquire({ cost, maxWaitMs: at - clock.now() - 1 });
        await setImmediate();
        assert.deepEqual(
          [early.error?.code, early.error?.retryAt, limiter.waiting],
          ["wait_too_long", at, waiting],
          row,
        );
      }
      asked.push({ cost, at, fate: acquire({ cost, maxWaitMs: at - clock.now() }) });
    }
    await clock.toTheEnd();
    assert.deepEqual(
      asked.map(({ fate }) => [fate.value?.allowed, fate.at]),
      asked.map(({ at }) => [true, at]),
      JSON.stringify([limits, asked]),
    );
    assert.deepEqual([limiter.waiting, clock.timers], [0, []]);
  },
  ({ waits }) => assert.ok(waits > 200),
);

law(
  "the retryAt of a consume refused because of the queue is exact",
  { seed: 20_261_122, cases: 150 },
  async (random) => {
    const { below, pick } = random;
    const { clock, limiter, acquire } = make(limitsOf(random, 4));
    for (let i = below(8); i >= 0; i--) acquire({ cost: below(5), priority: below(3) });
    const cost = below(5);
    const { allowed, retryAt } = checked(limiter).decide({ cost });
    if (allowed) return;
    const moments = () => pick([retryAt - 1, START + below(retryAt - START)]);
    for (let moment = moments(); moment > clock.now(); moment = moments()) {
      await clock.to(moment);
      assert.deepEqual(checked(limiter).decide({ cost }), { allowed: false, retryAt });
      if (moment === retryAt - 1) break;
    }
    await clock.to(retryAt);
    assert.equal(limiter.tryConsume(cost), true);
  },
);

for (const lateMs of [0, 7]) {
  const timers = lateMs ? ", with late timers" : "";
  law(
    `over any interval admits at most the capacity plus the refill, by any mix of calls${timers}`,
    { seed: 20_261_122, cases: 40 },
    async (random) => {
      const { below, pick, chance } = random;
      const limits = limitsOf(random, 3).map((limit) => ({ ...limit, kind: "token_bucket" }));
      const { clock, limiter, events, acquire } = make(
        limits,
        { maxQueue: pick([2, 1000]), overflow: pick(["reject", "drop_oldest"]) },
        lateMs,
      );
      const admitted = [];
      limiter.on(({ type, cost }) => type === "allow" && admitted.push([clock.now(), cost]));
      const pending = [];
      for (let i = 0; i < 60; i++) {
        const controller = new AbortController();
        const cost = below(4);
        const ask = below(6);
        if (ask < 3)
          pending.push(
            acquire({ cost, priority: below(2), maxWaitMs: pick([0, 200, Infinity]), signal: controller.signal }),
          );
        else if (ask < 5) limiter.tryConsume(cost);
        else if (chance(0.2)) limiter.pause(clock.now() + below(100));
        if (chance(0.1)) controller.abort("given up");
        if (chance(0.4)) await clock.advance(below(200));
      }
      await clock.toTheEnd();
      assert.ok(
        pending.every(({ at }) => at !== undefined),
        "every call is settled",
      );
      assert.equal(limiter.waiting, 0);
      for (const { rate, periodMs, capacity } of limits) {
        for (let i = 0; i < admitted.length; i++) {
          let sum = 0;
          for (let j = i; j < admitted.length; j++) {
            sum += admitted[j][1];
            const most = capacity + Math.floor((rate * (admitted[j][0] - admitted[i][0])) / periodMs);
            assert.ok(sum <= most, `${sum} > ${most}`);
          }
        }
      }
      // Every rejected call had its event.
      const count = (wanted) => events.filter(({ type }) => type === wanted).length;
      assert.ok(count("drop") >= pending.filter(({ error }) => error && error !== "given up").length);
      assert.equal(new Set(pending).size, pending.length);
    },
  );
}
