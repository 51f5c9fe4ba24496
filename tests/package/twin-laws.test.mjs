// Twin: that it predicts exactly when alone on a key, and otherwise errs only by asking.
import assert from "node:assert/strict";
import { Budget } from "../../build/package/index.js";
import { start } from "../http/workerd.mjs";
import { count, law } from "../random.mjs";
import { DAY, HOUR, statuses, synced } from "./twins.mjs";
import { Wire } from "./wire.mjs";

law(
  "alone on a key, predicts every answer and every retryAt exactly",
  { seed: 7, cases: 5 },
  async (random, seen) => {
    const policies = Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`p${i}`, policyOf(random)]));
    const tollgate = await start({ policies });
    for (const [policy, { limits, ...only }] of Object.entries(policies)) {
      const upMs = random.below(200);
      const wire = new Wire(tollgate, { upMs, theirsMs: random.below(2 * HOUR) - HOUR });
      wire.travel = () => ({ upMs, downMs: random.below(400) }); // responses may overtake each other
      const ask = { policy, key: "alice" };
      const twin = wire.twin({ ...ask, trustMs: Infinity });
      const other = wire.client();
      await wire.until(twin.sync());
      const aheadMs = wire.theirsMs + upMs;
      const most = Math.max(...(limits ?? [only]).map(({ rate, capacity = rate }) => capacity));
      const checks = [];
      for (let step = 0; step < 40; step++) {
        await wire.pass(
          random.pick([
            0,
            1,
            random.below(30),
            random.below(1_000),
            random.below(20_000),
            random.chance(0.1) ? HOUR : 0,
          ]),
        );
        if (random.chance(0.05)) {
          // another client takes, into debt too, and the twin syncs
          other.charge({ ...ask, cost: random.below(most + 1) });
          await wire.until(twin.sync());
        }
        const each = () => random.below(random.pick([2, 4, most + 1]));
        const cost = random.chance(0.02)
          ? most + 1
          : limits && random.chance(0.5)
            ? Object.fromEntries(limits.map(({ name }) => [name, each()]))
            : each();
        const peeked = other.peek({ ...ask, cost });
        const prediction = twin.peek(cost);
        const place = `${JSON.stringify({ policy: policies[policy], step, cost })} ${wire.now}`;
        const answer = twin.consume(cost);
        checks.push(async () => {
          const { status, retry_at, max_cost } = await peeked;
          const { allowed, retryAt, maxCost } = prediction;
          const expected =
            status === 200 ? [true] : status === 429 ? [false, (retry_at ?? Infinity) - aheadMs] : [false, Infinity];
          assert.deepEqual([allowed, retryAt].slice(0, expected.length), expected, place);
          if (status === 400 && only.rate) assert.equal(maxCost, max_cost, place);
          assert.deepEqual(
            [(await answer).status, (await answer).predicted],
            status === 429 ? [429, true] : [status, undefined],
            place,
          );
          count(seen, status === 200 ? "granted" : status === 400 ? "never" : retry_at ? "refused" : "neverAgain");
        });
      }
      await wire.pass(1_000);
      for (const check of checks) await check();
      assert.ok(statuses(wire).every((status) => status !== 429));
    }
    await tollgate.stop();
  },
  ({ granted, refused, never, neverAgain }) => assert.ok(granted > 200 && refused > 200 && never > 5 && neverAgain > 5),
);

/** A policy of one to three limits. */
function policyOf(random) {
  const limit = () => {
    const rate = random.chance(0.1) ? 0 : 1 + random.below(20);
    const capacity = Math.max(1, rate, random.below(60));
    const limit = {
      rate,
      capacity,
      period: random.pick(["7ms", "100ms", "999ms", "3s", "1m", "1h"]),
      max_debt: random.pick([0, 0, 5, 40]),
    };
    if (random.chance(0.3)) limit.initial = random.below(capacity + 1);
    if (random.chance(0.4)) limit.kind = "fixed_window";
    if (limit.kind && random.chance(0.5)) limit.offset = "5ms";
    return limit;
  };
  if (random.chance(0.5)) return limit();
  return { limits: ["a", "b", "c"].slice(0, 1 + random.below(3)).map((name) => ({ name, ...limit() })) };
}

law(
  "under any network and competition, withholds only what would be refused if everything in flight is granted",
  { seed: 7, cases: 24 },
  async (random, seen) => {
    const upMs = 5; // the quickest way up
    const policy = random.pick(["api", "debt"]);
    const limit = { rate: 10, periodMs: 10_000, maxDebt: policy === "debt" ? 20 : 0 };
    const { wire, twin, ask, other } = await synced({ policy, upMs, theirsMs: random.below(DAY) });
    const began = wire.now;
    const [slowest, slowestBack] = [random.pick([1, 50, 500]), random.pick([1, 50, 1_000])];
    wire.travel = () => ({ upMs: upMs + random.below(slowest), downMs: random.below(slowestBack) });
    const withheld = [];
    for (let step = 0; step < 50; step++) {
      await wire.pass(random.pick([0, random.below(20), random.below(500), random.below(3_000)]));
      const cost = 1 + random.below(4);
      if (random.chance(0.2)) {
        other[random.pick(["consume", "charge"])]({ ...ask, cost });
        continue;
      }
      const sent = wire.sent.length;
      const answer = twin.consume(cost);
      const [request] = wire.sent.slice(sent);
      if (request) answer.then(() => (request.heardAt = wire.now));
      else withheld.push({ cost, now: wire.now, sent });
    }
    await wire.pass(3_000);
    for (const { cost, now, sent } of withheld) {
      const budget = new Budget(began, limit);
      const arrivesAt = now + upMs;
      const isThere = ({ arrivedAt }) => arrivedAt <= arrivesAt;
      for (const { path, arrivedAt, body } of wire.arrived.filter(isThere)) {
        if (path !== "/v1/inspect") budget.decide(arrivedAt, { cost: body.cost, verb: path.slice("/v1/".length) });
      }
      const own = wire.sent.slice(0, sent).filter(({ body }) => body.snapshot && body.cost);
      for (const request of own) {
        const isInFlight = !isThere(request) || (request.status === 429 && request.heardAt > now);
        if (isInFlight) budget.decide(arrivesAt, { cost: request.body.cost, verb: "charge" });
      }
      assert.equal(budget.decide(arrivesAt, { cost }).allowed, false, `${cost} at ${now - began}`);
    }
    count(seen, "withheld", withheld.length);
    for (const status of statuses(wire)) count(seen, status);
  },
  (seen) => assert.ok(Math.min(seen[200], seen[429], seen.withheld) > 50),
);
