// LeasingLimiter: that no bound is ever exceeded, and no caller waits for ever, over many servers and a bad network.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LeasingLimiter } from "../../build/package/leases.js";
import { FakeClock } from "../../build/package/testing.js";
import { count, law } from "../random.mjs";
import { Reference, Server, Service } from "./leasing.mjs";

law(
  "whatever servers grant, one bucket would have granted at that moment",
  { seed: 20_261_123, cases: 120 },
  async ({ below, pick, chance }, seen) => {
    const world = new FakeClock();
    const numbers = {
      rate: pick([0, 3, 20, 200]),
      capacity: 1 + below(200),
      leaseMs: pick([500, 2_000, 10_000]),
      horizonMs: pick([0, 500]),
    };
    if (numbers.rate === 0) numbers.horizonMs = 0; // no refill
    const reference = new Reference(world, numbers);
    const service = new Service(world, numbers, (cost) => reference.take(cost));
    const isLossy = chance(0.5);
    const fate = () => (isLossy && chance(0.1) ? undefined : below(pick([1, 20, 20, 300])));
    const isTwice = () => isLossy && chance(0.1);
    const servers = Array.from(
      { length: 1 + below(5) },
      () => new Server(world, service, { ahead: below(10_000) - 5_000, fate, isTwice }),
    );
    let waiting = 0;
    let granted = 0;
    const consume = async ({ limiter }) => {
      waiting++;
      const cost = pick([0, 1, 1, 1, 2, 5]);
      try {
        const decision = await limiter.consume("k", cost);
        if (decision.allowed && decision.isLocal) reference.take(cost);
        if (decision.allowed) granted += cost;
        else assert.ok(decision.retryAfterMs > 0);
        count(seen, `${decision.allowed ? "granted" : "refused"}${decision.isLocal ? ", local" : ""}`);
      } catch (error) {
        assert.equal(error.message, "timeout");
        count(seen, "failed");
      }
      waiting--;
    };
    const all = [];
    for (let step = 0; step < 150; step++) {
      const server = chance(0.5) ? servers[0] : pick(servers);
      for (let times = below(8); times >= 0; times--) all.push(consume(server));
      await world.advance(pick([0, 1, 10, 50, 300]));
      // With no promised retry time, a clock may jump ahead: then leases end early.
      if (numbers.horizonMs === 0 && chance(0.02)) server.ahead += below(5_000);
    }
    await world.advance(10_000);
    assert.equal(waiting, 0, "all have their answers");
    await Promise.all(all);
    const closed = Promise.all(servers.map(({ limiter }) => limiter.close()));
    await world.advance(20_000);
    await closed;
    if (numbers.rate > 0) return;
    const left = numbers.capacity - granted;
    if (isLossy) assert.ok(service.remaining <= left);
    else assert.equal(service.remaining, left, "unspent tokens are back");
  },
  (seen) => assert.ok(seen["granted, local"] > 1_000 && seen["refused, local"] > 1_000, JSON.stringify(seen)),
);

law(
  "a lone server is granted at the retry time it was given",
  { seed: 20_261_124, cases: 60 },
  async ({ below, pick }, seen) => {
    const world = new FakeClock();
    const numbers = {
      rate: pick([3, 20, 200]),
      capacity: 5 + below(50),
      leaseMs: pick([500, 2_000]),
      horizonMs: pick([0, 500]),
    };
    const service = new Service(world, numbers, () => {});
    const { limiter } = new Server(world, service);
    for (let asked = 0; asked < 200; asked++) {
      const cost = 1 + below(pick([4, 4, numbers.capacity]));
      const consume = async () => {
        const decided = limiter.consume("k", cost);
        await world.advance(0);
        return decided;
      };
      const decision = await consume();
      count(seen, decision.allowed ? "granted" : "refused");
      if (decision.allowed) continue;
      // Or other costs are requested first, which may be refused, too.
      if (below(2) === 0) {
        await world.to(decision.retryAt);
        assert.equal((await consume()).allowed, true, "at the retry time it was given");
      }
      await world.advance(below(100));
    }
    const closed = limiter.close();
    await world.advance(5_000);
    await closed;
  },
);

/** A limiter that has a lease of two seconds since a request was sent, at `sent`; messages take 50 ms. */
async function leased() {
  const world = new FakeClock();
  const service = new Service(world, { rate: 1, capacity: 40, leaseMs: 2_000, horizonMs: 0 }, () => {});
  const { limiter } = new Server(world, service, { fate: () => 50 });
  const consume = async (cost) => {
    const decided = limiter.consume("k", cost);
    await world.advance(100);
    return decided;
  };
  await consume(1);
  const sent = world.now();
  assert.equal((await consume(5)).isLocal, false);
  return { world, consume, sent };
}

test("a lease's time counts from the sending of its request, whose arrival the limiter cannot know", async () => {
  for (const [at, isLocal] of [
    [1_999, true],
    [2_000, false],
  ]) {
    const { world, consume, sent } = await leased();
    world.set(sent + at);
    assert.equal((await consume(1)).isLocal, isLocal, `${at}`);
  }
});

test("a refusal is repeated for a second, with the service's retry time", async () => {
  const { world, consume } = await leased();
  const refused = await consume(39);
  assert.ok(refused.retryAfterMs > 1_000);
  for (const [ms, isLocal] of [
    [0, true],
    [700, true],
    [1_000, false],
  ]) {
    await world.advance(ms);
    const again = await consume(39);
    assert.deepEqual([again.allowed, again.isLocal], [false, isLocal], `${ms}`);
    if (isLocal) assert.equal(again.retryAt, refused.retryAt);
  }
});

test("a refusal is not repeated for a larger cost, nor after a grant: both would pass later", async () => {
  const { world, consume } = await leased();
  assert.equal((await consume(38)).isLocal, false);
  await world.advance(0);
  const larger = await consume(39);
  assert.deepEqual([larger.allowed, larger.isLocal], [false, false]);
  assert.equal((await consume(39)).isLocal, true);
  assert.equal((await consume(1)).allowed, true);
  const again = await consume(39);
  assert.deepEqual([again.allowed, again.isLocal], [false, false]);
});

test("a wait does not count on tokens of a lease that ends before it", async () => {
  const world = new FakeClock();
  const begin = world.now();
  const answers = [
    { allowed: true },
    { allowed: true, lease: "a", tokens: 3, from: 0, until: 500 },
    // Asked for in the background at 400, when the first is nearly over.
    { lease: "b", tokens: 3, from: 700, until: 1_200 },
    { allowed: false, retry_after_ms: 900 },
  ];
  const asked = [];
  const lease = async ({ policy, key, ...request }) => {
    asked.push(request);
    const { from, until, ...answer } = answers.shift();
    const moments = from === undefined ? {} : { from: begin + from, until: begin + until };
    return { status: 200, policy: "api", now: world.now(), tokens: 0, ...answer, ...moments };
  };
  const limiter = new LeasingLimiter({ lease }, { policy: "api", clock: world });
  for (const isLocal of [false, false]) assert.equal((await limiter.consume("k")).isLocal, isLocal);
  world.set(begin + 400);
  assert.equal((await limiter.consume("k")).isLocal, true);
  await world.advance(0);
  // Two tokens are left of the first lease, until 500, and three are in the second, from 700.
  const three = await limiter.consume("k", 3);
  assert.deepEqual([three.allowed, three.isLocal, three.retryAt - begin], [false, true, 700]);
  const four = await limiter.consume("k", 4);
  assert.deepEqual([four.allowed, four.isLocal, four.retryAt - begin], [false, false, 1_300]);
  assert.deepEqual(
    asked.map(({ cost }) => cost),
    [1, 1, undefined, 4],
  );
});

test("while a refusal is repeated no lease is requested, as it could take the tokens being waited for", async () => {
  const world = new FakeClock();
  const answers = [{ allowed: true }, { allowed: true }, { allowed: false, retry_after_ms: 100 }];
  let calls = 0;
  const lease = async () => ({ status: 200, policy: "api", now: world.now(), tokens: 0, ...answers[calls++] });
  const limiter = new LeasingLimiter({ lease }, { policy: "api", clock: world });
  await limiter.consume("k");
  await limiter.consume("k"); // no lease came with the answer: it may be requested again a quarter of a second later
  await world.advance(200);
  const { retryAt } = await limiter.consume("k");
  await world.advance(60);
  const again = await limiter.consume("k");
  assert.deepEqual([again.allowed, again.isLocal, again.retryAt], [false, true, retryAt]);
  assert.equal(calls, 3);
});
