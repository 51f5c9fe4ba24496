// A snapshot: the numbers of limits and the exact states of their buckets, from which a copy predicts the next answer.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { random as randomOf, seedOf } from "../random.mjs";
import { allowed, assertAnswer, refused } from "./answers.mjs";
import { parseBucket, readRows } from "./rows.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  api: { rate: 3, period: "1s", max_debt: 2 },
  ahead: { rate: 30, period: "7s", capacity: 50, max_debt: 40, write_ahead: 20 },
  window: { kind: "fixed_window", rate: 7, period: "5s", capacity: 20, offset: "1s", max_debt: 5 },
  phased: { kind: "fixed_window", rate: 5, period: "3s" },
  budget: { rate: 0, period: "1s", capacity: 900 },
  open: { rate: 1, period: "1s", on_error: "open" },
  llm: {
    limits: [
      { name: "requests", rate: 10, period: "10s" },
      { name: "tokens", rate: 100, period: "1m", kind: "fixed_window", offset: "0s" }, // NOW is 20 s into a window
    ],
  },
};
const around = fileURLToPath(new URL("./faulty.mjs", import.meta.url));
const tollgate = await start({ policies: POLICIES, around });

/** The snapshot of `api`; `at` in ms after NOW. */
const api = (tokens, drops, at) => [
  { kind: "token_bucket", rate: 3, period_ms: 1_000, capacity: 3, max_debt: 2, tokens, drops, at: NOW + at },
];
const asked = { "x-asked": "1", "x-acts": "take" };

test("a grant and a refusal carry the state they leave, and are otherwise the same as without it", async () => {
  const field = { q: 3, w: 1, "tollgate-capacity": 3 };
  for (const [at, remaining, full, retry, snapshot] of [
    [0, 1, 667, undefined, api(1, 0, 0)],
    [333, 1, 667, 334, api(1, 0, 0)], // refused: the refill is not in it yet
    [334, 0, 1_334, undefined, api(0, 2, 334)],
    [335, 0, 1_334, 1_000, api(0, 2, 334)],
  ]) {
    const verdict = { policy: "api", cost: 2, limit: 3, remaining, now: NOW + at, reset_at: NOW + full };
    const isAllowed = retry === undefined;
    const expected = isAllowed ? allowed(verdict, field, 1) : refused({ ...verdict, retry_at: NOW + retry }, field, 1);
    expected.headers = { ...expected.headers, ...asked };
    const consume = (key, more) => tollgate.consume({ policy: "api", key, cost: 2, ...more }, { now: NOW + at });
    assertAnswer(await consume("alice"), expected, `at ${at}`);
    assertAnswer(await consume("bob", { snapshot: false }), expected, `at ${at}`);
    const withSnapshot = { ...expected, body: { ...expected.body, snapshot } };
    assertAnswer(await consume("carol", { snapshot: true }), withSnapshot, `at ${at}`);
  }
});

test("every verb reports the state it leaves", async () => {
  const ask = { policy: "api", key: "dave", snapshot: true };
  const ids = [];
  for (const [verb, more, at, snapshot] of [
    ["consume", { cost: 0 }, 0, api(3, 0, 0)],
    ["consume", { mode: "reserve", cost: 1 }, 0, api(2, 0, 0)],
    ["consume", { mode: "reserve", cost: 1 }, 1, api(1, 3, 1)],
    ["peek", { cost: 1 }, 2, api(1, 3, 1)], // neither the level nor its moment changes
    ["inspect", {}, 2, api(1, 3, 1)],
    ["consume", { mode: "up_to", cost: 3 }, 2, api(0, 6, 2)],
    ["consume", { mode: "borrow", cost: 1 }, 2, api(-1, 6, 2)], // 994 drops are owed
    ["charge", { cost: 9 }, 3, api(-2, 0, 3)],
    ["settle", { reservation: 0, cost: 0 }, 4, api(-1, 0, 4)], // it would have been full at 1
    ["cancel", { reservation: 1 }, 4, api(-1, 997, 4)], // and at 2
    ["refund", { cost: 1 }, 5, api(1, 0, 5)],
    ["reset", {}, 6, api(3, 0, 6)],
  ]) {
    const reservation = ids[more.reservation];
    const { status, text, body } = await tollgate.post(verb, { ...ask, ...more, reservation }, { now: NOW + at });
    assert.deepEqual([status, body.snapshot], [200, snapshot], `${verb} ${JSON.stringify(more)}: ${text}`);
    ids.push(...(body.reservation ? [body.reservation] : []));
  }
});

test("a policy of several limits has a state for each, with its name", async () => {
  const snapshot = [
    {
      name: "requests",
      kind: "token_bucket",
      rate: 10,
      period_ms: 10_000,
      capacity: 10,
      max_debt: 0,
      tokens: 9,
      drops: 0,
      at: NOW,
    },
    {
      name: "tokens",
      kind: "fixed_window",
      rate: 100,
      period_ms: 60_000,
      capacity: 100,
      max_debt: 0,
      tokens: 60,
      drops: 0,
      at: NOW - 20_000,
    },
  ];
  const ask = { policy: "llm", key: "erin", snapshot: true };
  for (const [verb, cost] of [
    ["consume", { requests: 1, tokens: 40 }],
    ["consume", { requests: 1, tokens: 61 }],
    ["inspect"],
  ]) {
    assert.deepEqual((await tollgate.post(verb, { ...ask, cost })).body.snapshot, snapshot, verb);
  }
});

test("in a batch, the requests that ask for a snapshot get one, granted or refused", async () => {
  for (const keys of [
    ["frank", "frank"],
    ["grace", "henry"],
  ]) {
    const requests = [
      { policy: "api", key: keys[0], cost: 2, snapshot: true },
      { policy: "budget", key: keys[1], cost: 2 },
    ];
    for (const status of [200, 429]) {
      const answer = await tollgate.post("batch", { requests });
      const snapshots = answer.body.results.map(({ snapshot }) => snapshot);
      assert.deepEqual([answer.status, snapshots], [status, [api(1, 0, 0), undefined]], answer.text);
    }
  }
});

test("a batch over several keys reports the states at commit: a full bucket loses its refill until then", async () => {
  const requests = ["irene", "jack"].map((key) => ({ policy: "api", key, cost: 2, snapshot: true }));
  const slow = { "x-fault": JSON.stringify({ fault: "slow", ms: 1_500, act: "settle", times: 1 }) };
  const answered = tollgate.post("batch", { requests }, { headers: slow });
  for (const { policy, key } of requests) {
    while ((await tollgate.peek({ policy, key, cost: 0 })).body.remaining === 3); // until it is held
  }
  await tollgate.send({ method: "GET", path: "/healthz", now: NOW + 500 });
  const { body } = await answered;
  assert.deepEqual(body.results.map(({ now }) => now - NOW).sort(), [0, 500]);
  for (const [i, { now, snapshot }] of body.results.entries()) {
    assert.deepEqual(snapshot, api(1, 0, now - NOW));
    const { body } = await tollgate.consume({ ...requests[i], snapshot: false }, { now: now + 1 });
    assert.equal(body.retry_at, now + 334);
  }
});

test("a replay carries today's state, and is a replay whether or not it asks for a snapshot", async () => {
  const ask = { policy: "api", key: "karl" };
  const consume = (at, more) =>
    tollgate.consume({ ...ask, ...more }, { headers: { "idempotency-key": "k" }, now: NOW + at });
  assert.equal((await consume(0)).body.snapshot, undefined);
  await tollgate.consume(ask, { now: NOW + 1 });
  for (const [more, snapshot] of [
    [{ snapshot: true }, api(1, 3, 1)],
    [{ snapshot: false }, undefined],
    [{}, undefined],
  ]) {
    const { body } = await consume(2, more);
    assert.deepEqual([body.replayed, body.snapshot], [true, snapshot]);
  }
});

test("an answer without a decision has no snapshot", async () => {
  const fault = { "x-fault": JSON.stringify({ fault: "throws" }) };
  for (const [verb, ask, status, headers] of [
    ["consume", { policy: "open" }, 200, fault], // degraded
    ["consume", { policy: "api" }, 503, fault],
    ["consume", { policy: "api", cost: 4 }, 400],
    ["consume", { policy: "none" }, 404],
    ["cancel", { policy: "api", reservation: "1" }, 404],
  ]) {
    const answer = await tollgate.post(verb, { key: "lily", snapshot: true, ...ask }, { headers });
    assert.deepEqual([answer.status, "snapshot" in answer.body], [status, false], answer.text);
  }
});

test("asking for a snapshot changes neither the answer nor what is written", async () => {
  const one = await start({ policies: POLICIES });
  const other = await start({ policies: POLICIES });
  let now = NOW;
  for (let i = 0; i < 60; i++) {
    const policy = ["api", "ahead", "window", "llm"][i % 4];
    const ask = { policy, key: "mary", cost: i % 7 };
    now += (i * 37) % 400;
    const { snapshot, ...body } = (await one.consume({ ...ask, snapshot: true }, { now })).body;
    assert.deepEqual(body, (await other.consume(ask, { now })).body);
    assert.equal(snapshot?.length, body.status === 400 ? undefined : (body.limits ?? [0]).length);
  }
  const [rows, others] = await Promise.all(
    [one, other].map(async (worker) => {
      await worker.kill();
      return worker.databaseFiles().map(readRows).flatMap(Object.entries);
    }),
  );
  const states = (rows) => rows.map(([name, row]) => [name, parseBucket(row).states]);
  assert.equal(rows.length, 4);
  assert.deepEqual(states(rows), states(others));
});

test("a copy predicts each answer from the previous one", async (t) => {
  const { below: random } = randomOf(seedOf(t));
  for (const policy of ["api", "ahead", "window", "phased", "budget", "llm"]) {
    const ask = { policy, key: "nora", snapshot: true };
    let now = NOW;
    let { snapshot: known } = (await tollgate.post("inspect", ask, { now })).body;
    const seen = { true: 0, false: 0 };
    for (let step = 0; step < 250; step++) {
      now += [0, random(9), random(500), random(500), random(6_000)][random(5)];
      if (random(25) === 0) now -= [1, random(1_000), 60_000, 60_001, random(9_000_000)][random(5)];
      const cost = random(random(4) ? 4 : Math.min(...known.map(({ capacity }) => capacity)) + 1);
      const place = `step ${step}: ${cost} of ${JSON.stringify(known)} at ${now}`;
      const foretold = foretell(known, now, cost);
      const { text, body } = await tollgate.consume({ ...ask, cost }, { now });
      const { allowed, retry_at, snapshot } = body;
      assert.deepEqual({ allowed, retry_at, snapshot }, foretold, `${place}\n${text}`);
      seen[allowed]++;
      known = snapshot;
      const isCharged = random(20) === 0;
      if (isCharged) known = (await tollgate.post("charge", { ...ask, cost: random(4) }, { now })).body.snapshot;
    }
    assert.ok(seen.true > 20 && seen.false > 20, `${policy}: ${JSON.stringify(seen)}`);
  }
});

/** The answer to consuming `cost` of each limit, in plain whole numbers. */
function foretell(snapshot, now, cost) {
  const parts = snapshot.map((limit) => consume(limit, BigInt(now), BigInt(cost)));
  const allowed = parts.every(({ missing }) => missing <= 0n);
  const waits = parts.filter(({ missing }) => missing > 0n).map(({ retryAt }) => retryAt);
  const retryAt = allowed || waits.includes(undefined) ? undefined : Math.max(...waits.map(Number));
  const after = parts.map(({ limit, token, level, at, taken }) => {
    const [drops, moment] = allowed && cost > 0 ? taken : [level, at];
    const rest = ((drops % token) + token) % token;
    return { ...limit, tokens: Number((drops - rest) / token), drops: Number(rest), at: Number(moment) };
  });
  return { allowed, retry_at: retryAt, snapshot: after };
}

/** Levels are in drops, `token` drops to a token; each `tick` adds `refill` of them. */
function consume(limit, now, cost) {
  const [rate, period, tokens, drops] = [limit.rate, limit.period_ms, limit.tokens, limit.drops].map(BigInt);
  const parts = greatestCommonDivisor(rate, period);
  const [token, refill, tick] = limit.kind === "token_bucket" ? [period / parts, rate / parts, 1n] : [1n, rate, period];
  const level = tokens * token + drops;
  let at = BigInt(limit.at);
  if (at - now > 60_000n) at -= up(at - now, tick) * tick; // the clock was set back permanently
  const ticks = now > at ? (now - at) / tick : 0n;
  const full = BigInt(limit.capacity) * token;
  const there = level + ticks * refill < full ? level + ticks * refill : full;
  const missing = cost * token - there;
  const since = at + ticks * tick;
  const retryAt = refill === 0n ? undefined : since + up(missing, refill) * tick;
  return { limit, token, level, at, missing, retryAt, taken: [there - cost * token, since] };
}

const greatestCommonDivisor = (a, b) => (b === 0n ? a : greatestCommonDivisor(b, a % b));

/** The quotient, rounded up. */
const up = (a, b) => (a + b - 1n) / b;
