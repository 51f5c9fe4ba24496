// `tollgate/kinds`: rolling windows, beside a log of every take.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Answers } from "../../build/package/answers.js";
import { carry } from "../../build/package/carry.js";
import { Bucket, Limiter } from "../../build/package/index.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { rollingWindow } from "../../build/package/kinds.js";
import { rateLimit } from "../../build/package/node.js";
import { SharedBudget } from "../../build/package/shared-budget.js";
import { random } from "../random.mjs";
import { FakeClock } from "./clock.mjs";

/** Small rates, one by one, and larger ones in grains. */
const WINDOWS = [
  { rate: 1, periodMs: 1000 },
  { rate: 7, periodMs: 1000 },
  { rate: 20, periodMs: 997, grains: 10 },
  { rate: 12, periodMs: 3000, grains: 1 },
  { rate: 300, periodMs: 60_000, grains: 240 },
];

/** When what is taken then comes back. */
function backAt({ rate, periodMs, grains = 60 }, now) {
  const grain = rate <= grains ? 1 : Math.ceil(periodMs / grains);
  return Math.ceil(now / grain) * grain + periodMs;
}

test("a bucket and the keys of a limiter have what a log of all takes leaves", () => {
  const { below } = random(7);
  for (let round = 0; round < 300; round++) {
    const window = WINDOWS[round % WINDOWS.length];
    const clock = new FakeClock(1_800_000_000_007);
    const bucket = new Bucket(clock.now(), rollingWindow(window));
    const keyed = new KeyedLimiter([rollingWindow(window), { rate: 1e6, periodMs: 1 }], { clock, maxKeys: 5 });
    const logs = [[], [], []];
    for (let step = 0; step < 80; step++) {
      const now = clock.now() + (below(3) && below(window.periodMs / (1 + below(20))));
      clock.set(now);
      const [cost, key] = [below(2) ? below(4) : below(window.rate + 2), below(3)];
      const log = logs[key].filter(([at]) => at > now);
      const leftAt = (at) => window.rate - log.reduce((sum, [back, tokens]) => sum + (back > at ? tokens : 0), 0);
      const expected =
        leftAt(now) >= cost
          ? now
          : cost > window.rate
            ? Infinity
            : log.map(([at]) => at).find((at) => leftAt(at) >= cost);
      const answers = [keyed.peek(`${key}`, cost), keyed.decide(`${key}`, { cost })];
      if (key === 0) answers.push(bucket.peek(now, { cost }), bucket.decide(now, { cost }));
      for (const { allowed, retryAt = now } of answers)
        assert.deepEqual([allowed, retryAt], [expected === now, expected]);
      if (expected === now && cost > 0) log.push([backAt(window, now), cost]);
      logs[key] = log;
      assert.equal(keyed.remaining(`${key}`), leftAt(now));
      if (key > 0) continue;
      assert.equal(bucket.remaining(now), leftAt(now));
      assert.equal(bucket.fullAt(now), log.at(-1)?.[0] ?? now);
      const { tokens, drops, returns } = bucket.save(now);
      const together = new Map();
      for (const [at, taken] of log) together.set(at, (together.get(at) ?? 0) + taken);
      assert.deepEqual({ tokens, drops, returns }, { tokens: leftAt(now), drops: 0, returns: [...together] });
    }
  }
});

test("a snapshot without its moments, or with others, is refused and changes nothing", () => {
  const limit = rollingWindow({ rate: 5, periodMs: 1000 });
  const bucket = new Bucket(0, limit);
  bucket.tryConsume(0, 2);
  bucket.tryConsume(10, 2);
  const saved = bucket.save(10);
  assert.deepEqual(saved, { tokens: 1, drops: 0, at: 10, returns: [[1000, 2], [1010, 2]] }); // biome-ignore format: a row
  for (const wrong of [
    { returns: undefined },
    { returns: [] },
    { returns: [[1000, 2]] },
    { returns: [[1000, 4], [1000, 0]] }, // biome-ignore format: a row
    { returns: [[1010, 2], [1000, 2]] }, // biome-ignore format: a row
    { returns: [[1000, 2.5], [1010, 1.5]] }, // biome-ignore format: a row
    { returns: "returns" },
    { returns: [[1000, 2], [1011, 2]] }, // biome-ignore format: a row: later than what is taken now
    { tokens: 0 },
    { tokens: 6 },
    { tokens: -1 },
  ]) {
    const code = "snapshot_mismatched";
    assert.throws(() => bucket.restore({ ...saved, ...wrong }), { code }, JSON.stringify(wrong));
    assert.deepEqual(bucket.save(10), saved);
  }
  const other = new Bucket(0, limit);
  other.restore(saved, false);
  assert.equal(other.remaining(10), 5, "only checked");
  other.restore(saved);
  assert.deepEqual(other.save(10), saved);
  other.restore({ tokens: 5, drops: 0, at: 10 });
  assert.equal(other.remaining(10), 5);
});

test("a line waits for what comes back", async () => {
  const clock = new FakeClock(0);
  const limiter = new Limiter(rollingWindow({ rate: 2, periodMs: 1000 }), { clock });
  assert.ok(limiter.tryConsume());
  await clock.advance(300);
  assert.ok(limiter.tryConsume());
  const admitted = [];
  for (const cost of [1, 1, 2]) limiter.acquire({ cost }).then(() => admitted.push(clock.now()));
  await assert.rejects(limiter.acquire({ maxWaitMs: 1699 + 1000 }), { code: "wait_too_long", retryAt: 3300 });
  await clock.advance(4000);
  assert.deepEqual(admitted, [1000, 1300, 2300]);
});

test("other numbers take over what was taken", () => {
  const [before, after] = [5, 8].map((rate) => new Bucket(0, rollingWindow({ rate, periodMs: 1000 })));
  before.tryConsume(100, 4);
  carry(Bucket.addressOf(after), Bucket.addressOf(before), 500);
  assert.equal(after.remaining(500), 1);
  assert.deepEqual(after.save(500).returns, [[1100, 4], [1500, 3]]); // biome-ignore format: a row
});

test("whatever the numbers before were, a state fits in the memory of the new ones, is in their grains and can be stored", () => {
  const { below } = random(11);
  for (let round = 0; round < 200; round++) {
    const [was, is] = [below(WINDOWS.length), below(WINDOWS.length)].map((i) => WINDOWS[i]);
    const [before, after, next] = [was, is, is].map((window) => new Bucket(0, rollingWindow(window)));
    let now = 0;
    for (let step = 0; step < 300; step++) {
      now += below(1 + Math.floor(was.periodMs / 100));
      before.tryConsume(now, below(3));
    }
    const left = before.remaining(now);
    carry(Bucket.addressOf(after), Bucket.addressOf(before), now);
    const [has, least] = [after.remaining(now), Math.min(left, is.rate)];
    assert.ok(has === least || (has > least && is.periodMs < was.periodMs), "back sooner by a shorter period");
    assert.ok(after.fullAt(now) <= backAt(is, now));
    next.restore(after.save(now));
    assert.deepEqual(next.save(now), after.save(now));
    assert.equal(after.remaining(backAt(is, now)), is.rate);
  }
});

test("a clock that steps back locks no key out", () => {
  const { below } = random(13);
  for (let round = 0; round < 200; round++) {
    const window = WINDOWS[round % WINDOWS.length];
    const clock = new FakeClock(1_800_000_000_007);
    const bucket = new Bucket(clock.now(), rollingWindow(window));
    const keyed = new KeyedLimiter(rollingWindow(window), { clock, maxKeys: 3 });
    for (let step = 0; step < 100; step++) {
      const steps = [-60_000 - below(3), -60_001 - below(100_000), below(window.periodMs), below(2)];
      clock.set(clock.now() + steps[below(steps.length)]);
      const cost = 1 + below(3);
      keyed.tryConsume(`${below(3)}`, cost);
      bucket.tryConsume(clock.now(), cost);
    }
    bucket.tryConsume(clock.now(), 0); // follows the last step
    for (const key of "012") keyed.decide(key, { cost: 0 });
    clock.set(clock.now() + 60_000 + 3 * window.periodMs); // a step back leaves moments between grains
    assert.equal(bucket.remaining(clock.now()), window.rate);
    for (const key of "012") assert.equal(keyed.remaining(key), window.rate);
  }
});

test("tabs also lack what one of them took on its own", () => {
  const limits = [
    rollingWindow({ name: "rolling", rate: 5, periodMs: 1000 }),
    { name: "day", rate: 9, periodMs: 86_400_000 },
  ];
  const [alone, all] = [new SharedBudget(limits), new SharedBudget(limits)];
  const before = alone.begin(0);
  alone.decide(100, { cost: { rolling: 2, day: 1 } });
  all.begin(0);
  all.decide(50, { cost: { rolling: 1, day: 1 } });
  all.debit(before, alone.save(100), 200);
  const stored = all.save(200);
  const [, , , , [rolling, day]] = stored;
  assert.deepEqual(rolling, { tokens: 2, drops: 0, at: 200, returns: [[1050, 1], [1200, 2]] }); // biome-ignore format: a row
  assert.equal(day.tokens, 7);
  const other = new SharedBudget(limits);
  other.load(stored, 200);
  assert.deepEqual(other.budget.save(200), [rolling, day]);
});

test("numbers that no window can have are refused", () => {
  for (const grains of [0, 241, 1.5])
    assert.throws(() => rollingWindow({ rate: 1, periodMs: 1, grains }), { name: "TollgateError" }, `${grains}`);
  for (const field of ["kind", "initial", "offsetMs", "capacity", "maxDebt"])
    assert.throws(() => rollingWindow({ rate: 1, periodMs: 1, [field]: 1 }), { code: `${field}_unknown` });
  const limit = rollingWindow({ rate: 5, periodMs: 1000, grains: 7 });
  assert.throws(() => new Bucket(0, { ...limit, capacity: 6 }), { code: "capacity_too_large" });
  assert.throws(() => new Bucket(0, { ...limit, capacity: 4 }), { code: "rate_too_large" });
  assert.throws(() => new Bucket(0, { ...limit, initial: 4 }), { code: "capacity_too_large" });
  assert.throws(() => new Bucket(0, { ...limit, initial: 6 }), { code: "initial_too_large" });
  assert.throws(() => new Bucket(0, { ...limit, maxDebt: 1 }), { code: "maxDebt_too_large" });
});

test("a server's answers have this kind, and when it is full again", () => {
  const clock = new FakeClock(1000);
  const limiter = new KeyedLimiter(rollingWindow({ rate: 5, periodMs: 10_000, grains: 7 }), { clock });
  assert.equal(typeof rateLimit({ limiter }), "function");
  const answers = new Answers();
  answers.setLimits("p", limiter.limits);
  const ask = () => {
    const { now, limits } = limiter.consumeEach("a", 3);
    return answers.decided(3, now, limits);
  };
  assert.deepEqual([ask().status, ask().status], [200, 429]);
  clock.set(3500);
  const { headers, body } = ask();
  assert.deepEqual([headers["retry-after"], headers.ratelimit], ["8", '"p";r=2']);
  const { retry_at, reset_at } = JSON.parse(body);
  assert.deepEqual([retry_at, reset_at], [11_000, 11_000]);
});
