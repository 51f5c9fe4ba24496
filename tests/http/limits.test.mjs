// Policies of several limits: all grant or nothing is taken, and the answer reports each.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const limit = (name, rate, period, more) => ({ name, rate, period, ...more });
const LIMITS = {
  // NOW is 22:13:20 UTC, so the minute has 40 s to go.
  llm: [limit("requests", 10, "10s"), limit("tokens", 100, "1m", { kind: "fixed_window", offset: "0s" })],
  ahead: [limit("a", 1, "1s", { capacity: 5, max_debt: 5 }), limit("b", 2, "1s", { capacity: 5, max_debt: 5 })],
  capped: [limit("total", 0, "1s", { capacity: 3 }), limit("burst", 1, "1s", { capacity: 3 })],
  only: [limit("one", 1, "1s", { capacity: 4 })],
  waits: [limit("a", 1, "1s"), limit("b", 1, "30s"), limit("c", 1, "10s")],
  eight: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => limit(`l${n}`, n, "1s", { capacity: 10 * n })),
};
const FIELDS = {
  llm: [
    { q: 10, w: 10 },
    { q: 100, w: 60 },
  ],
  ahead: [
    { q: 1, w: 1 },
    { q: 2, w: 1 },
  ],
  capped: [{ q: 3 }, { q: 1, w: 1 }],
  only: [{ q: 1, w: 1 }],
  waits: [
    { q: 1, w: 1 },
    { q: 1, w: 30 },
    { q: 1, w: 10 },
  ],
  eight: [1, 2, 3, 4, 5, 6, 7, 8].map((q) => ({ q, w: 1 })),
};
const policies = Object.fromEntries(Object.entries(LIMITS).map(([name, limits]) => [name, { limits }]));
const tollgate = await start({ policies });
const TTL = 600_000;

/**
 * The answer of a policy at `at` in which the limit of index `top` decides. `parts` give for
 * each limit its `cost`, what is `left` of it or, negative, owed, the moments `full`, `ready` and `retry`, `tokens`,
 * and `t` of its header. With `retry` that limit has refused, permanently if it is `null`. Moments are in ms after NOW.
 */
function answerOf(policy, at, top, parts, { retryAfter, reservation, detail } = {}) {
  const fullName = (index) => `${policy}/${LIMITS[policy][index].name}`;
  const limits = parts.map(({ cost, tokens, left, full, ready, retry, near = false }, index) => ({
    name: LIMITS[policy][index].name,
    allowed: retry === undefined,
    cost,
    ...(tokens === undefined ? {} : { tokens }),
    limit: capacity(policy, index),
    remaining: Math.max(left, 0),
    ...(left < 0 ? { owed: -left } : {}),
    near_limit: near,
    reset_at: full === null ? null : NOW + full,
    ...(ready === undefined ? {} : { ready_at: NOW + ready }),
    ...(retry == null ? {} : { retry_at: NOW + retry, retry_after_ms: retry - at }),
  }));
  const isAllowed = limits.every(({ allowed }) => allowed);
  const { name: _, ...decisive } = limits[top];
  const readyAt = limits.map(({ ready_at }) => ready_at).filter((moment) => moment !== undefined);
  const verdict = {
    ...decisive,
    allowed: isAllowed,
    policy,
    now: NOW + at,
    near_limit: parts.some(({ near }) => near),
    // Nothing is ready if one limit has refused, though another would have granted.
    ...(isAllowed && readyAt.length ? { ready_at: Math.max(...readyAt) } : {}),
    ...(reservation ? { reservation, expires_at: Math.max(...readyAt) + TTL } : {}),
    limits,
  };
  const rateLimit = parts.map(({ left, t }, index) => [
    fullName(index),
    { r: Math.max(left, 0), ...(t === undefined ? {} : { t }) },
  ]);
  const rateLimitPolicy = FIELDS[policy].map((field, index) => [
    fullName(index),
    { ...field, "tollgate-capacity": capacity(policy, index) },
  ]);
  if (isAllowed) {
    return { status: 200, headers: { "content-type": "application/json" }, body: verdict, rateLimit, rateLimitPolicy };
  }
  const refused = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota exceeded",
    status: 429,
    detail,
    "violated-policies": limits.flatMap(({ allowed }, index) => (allowed ? [] : [fullName(index)])),
    ...verdict,
  };
  const headers = { "content-type": "application/problem+json", ...(retryAfter ? { "retry-after": retryAfter } : {}) };
  return { status: 429, headers, body: refused, rateLimit, rateLimitPolicy };
}

const capacity = (policy, index) => LIMITS[policy][index].capacity ?? LIMITS[policy][index].rate;

test("all limits are taken from or none; the one that decides is at the top of the answer", async () => {
  const ask = { policy: "llm", key: "alice" };
  const rows = [
    // The smaller share counts for the policy. Exactly a fifth is not yet near the limit; one less is.
    [
      0,
      { requests: 1, tokens: 80 },
      1,
      [
        { cost: 1, left: 9, full: 1_000, t: 1 },
        { cost: 80, left: 20, full: 40_000, t: 40 },
      ],
    ],
    [
      0,
      { tokens: 1, requests: 1 },
      1,
      [
        { cost: 1, left: 8, full: 2_000, t: 1 },
        { cost: 1, left: 19, full: 40_000, t: 40, near: true },
      ],
    ],
    // One refuses: the other keeps what it has.
    [
      0,
      { requests: 1, tokens: 20 },
      1,
      [
        { cost: 1, left: 8, full: 2_000, t: 1 },
        { cost: 20, left: 19, full: 40_000, retry: 40_000, t: 40, near: true },
      ],
      {
        retryAfter: "40",
        detail: "policy llm/tokens has 19 of 100 tokens left and the cost is 20; retry in 40000 ms",
      },
    ],
    [
      0,
      { requests: 9, tokens: 19 },
      0,
      [
        { cost: 9, left: 8, full: 2_000, retry: 1_000, t: 1 },
        { cost: 19, left: 19, full: 40_000, t: 1, near: true },
      ],
      {
        retryAfter: "1",
        detail: "policy llm/requests has 8 of 10 tokens left and the cost is 9; retry in 1000 ms",
      },
    ],
    // Both refuse: the longer wait wins.
    [
      500,
      { requests: 10, tokens: 100 },
      1,
      [
        { cost: 10, left: 8, full: 2_000, retry: 2_000, t: 1 },
        { cost: 100, left: 19, full: 40_000, retry: 40_000, t: 40, near: true },
      ],
      {
        retryAfter: "40",
        detail: "policy llm/tokens has 19 of 100 tokens left and the cost is 100; retry in 39500 ms",
      },
    ],
    // A number is the cost of each, and it is 1 if there is none.
    [
      2_000,
      5,
      1,
      [
        { cost: 5, left: 5, full: 7_000, t: 1 },
        { cost: 5, left: 14, full: 40_000, t: 38, near: true },
      ],
    ],
    [
      2_000,
      undefined,
      1,
      [
        { cost: 1, left: 4, full: 8_000, t: 1 },
        { cost: 1, left: 13, full: 40_000, t: 38, near: true },
      ],
    ],
    [
      2_000,
      { requests: 0, tokens: 13 },
      1,
      [
        { cost: 0, left: 4, full: 8_000, t: 1 },
        { cost: 13, left: 0, full: 40_000, t: 38, near: true },
      ],
    ],
    [
      40_000,
      { requests: 9, tokens: 1 },
      0,
      [
        { cost: 9, left: 1, full: 49_000, t: 1, near: true },
        { cost: 1, left: 99, full: 100_000, t: 60 },
      ],
    ],
  ];
  for (const [at, cost, top, parts, more] of rows) {
    const expected = answerOf("llm", at, top, parts, more);
    const verbs = more ? ["consume", "peek", "consume"] : ["consume"];
    for (const verb of verbs) {
      const answer = await tollgate.post(verb, { ...ask, cost }, { now: NOW + at });
      assertAnswer(answer, expected, `${verb} ${JSON.stringify(cost)} at ${at}`);
    }
  }
});

test("the longest wait wins, wherever it is in the list", async () => {
  const ask = { policy: "waits", key: "alice" };
  await tollgate.consume(ask);
  const parts = [
    { cost: 1, left: 0, full: 1_000, retry: 1_000, t: 1, near: true },
    { cost: 1, left: 0, full: 30_000, retry: 30_000, t: 30, near: true },
    { cost: 1, left: 0, full: 10_000, retry: 10_000, t: 10, near: true },
  ];
  const detail = "policy waits/b has 0 of 1 tokens left and the cost is 1; retry in 30000 ms";
  assertAnswer(await tollgate.consume(ask), answerOf("waits", 0, 1, parts, { retryAfter: "30", detail }));
  assert.equal((await tollgate.consume(ask, { now: NOW + 29_999 })).status, 429);
  assert.equal((await tollgate.consume(ask, { now: NOW + 30_000 })).status, 200);
});

test("never outweighs any wait", async () => {
  const ask = { policy: "capped", key: "alice" };
  await tollgate.consume({ ...ask, cost: 2 });
  const rows = [
    [
      { total: 1, burst: 2 },
      1,
      [
        { cost: 1, left: 1, full: null },
        { cost: 2, left: 1, full: 2_000, retry: 1_000, t: 1 },
      ],
      {
        retryAfter: "1",
        detail: "policy capped/burst has 1 of 3 tokens left and the cost is 2; retry in 1000 ms",
      },
    ],
    [
      { total: 2, burst: 3 },
      0,
      [
        { cost: 2, left: 1, full: null, retry: null },
        { cost: 3, left: 1, full: 2_000, retry: 2_000, t: 1 },
      ],
      { detail: "policy capped/total has 1 of 3 tokens left and the cost is 2; this budget never refills" },
    ],
    [
      { total: 2, burst: 1 },
      0,
      [
        { cost: 2, left: 1, full: null, retry: null },
        { cost: 1, left: 1, full: 2_000, t: 1 },
      ],
      { detail: "policy capped/total has 1 of 3 tokens left and the cost is 2; this budget never refills" },
    ],
  ];
  for (const [cost, top, parts, more] of rows) {
    const answer = await tollgate.consume({ ...ask, cost });
    assertAnswer(answer, answerOf("capped", 0, top, parts, more), JSON.stringify(cost));
  }
});

test("each verb checks all limits", async () => {
  const ask = { policy: "ahead", key: "alice" };
  const rows = [
    [
      0,
      "consume",
      { mode: "reserve", cost: 8 },
      0,
      [
        { cost: 8, left: -3, full: 8_000, ready: 3_000, t: 4, near: true }, // ready when the last of them is
        { cost: 8, left: -3, full: 4_000, ready: 1_500, t: 2, near: true },
      ],
    ],
    [
      0,
      "consume",
      { mode: "borrow", cost: 2, max_wait_ms: 2_999 },
      0,
      [
        { cost: 2, left: -3, full: 8_000, retry: 1, t: 1, near: true },
        { cost: 2, left: -3, full: 4_000, ready: 1_500, t: 1, near: true },
      ],
      {
        retryAfter: "1",
        detail: "policy ahead/a owes 3 tokens and the cost is 2; retry in 1 ms",
      },
    ],
    [
      0,
      "consume",
      { mode: "reserve", cost: 1, max_wait_ms: 2_000 },
      0,
      [
        { cost: 1, left: -3, full: 8_000, retry: 2_000, t: 2, near: true },
        { cost: 1, left: -3, full: 4_000, ready: 2_000, t: 2, near: true },
      ],
      {
        retryAfter: "2",
        detail: "policy ahead/a owes 3 tokens and the cost is 1; retry in 2000 ms",
      },
    ],
    [
      0,
      "refund",
      { cost: { a: 4, b: 6 } },
      0,
      [
        { cost: 4, tokens: 4, left: 1, full: 4_000, t: 1 },
        { cost: 6, tokens: 6, left: 3, full: 1_000, t: 1 },
      ],
    ],
    [
      0,
      "consume",
      { mode: "up_to", cost: 5 },
      0,
      [
        { cost: 5, tokens: 1, left: 0, full: 5_000, t: 1, near: true }, // as much as all of them have
        { cost: 5, tokens: 1, left: 2, full: 1_500, t: 1 },
      ],
    ],
    [
      0,
      "reset",
      {},
      0,
      [
        { cost: 0, tokens: 5, left: 5, full: 0, t: 1 },
        { cost: 0, tokens: 3, left: 5, full: 0, t: 1 },
      ],
    ],
    [
      0,
      "charge",
      { cost: { a: 0, b: 9 } },
      1,
      [
        { cost: 0, tokens: 0, left: 5, full: 0, t: 1 },
        { cost: 9, tokens: 9, left: -4, full: 4_500, t: 3, near: true },
      ],
    ],
    // Debt is less than nothing left.
    [
      0,
      "charge",
      { cost: { a: 5, b: 0 } },
      1,
      [
        { cost: 5, tokens: 5, left: 0, full: 5_000, t: 1, near: true },
        { cost: 0, tokens: 0, left: -4, full: 4_500, t: 3, near: true },
      ],
    ],
  ];
  for (const [at, verb, more, top, parts, rest] of rows) {
    const answer = await tollgate.post(verb, { ...ask, ...more }, { now: NOW + at });
    const { reservation } = answer.body;
    assert.equal(reservation !== undefined, more.mode === "reserve" && answer.status === 200, answer.text);
    assertAnswer(
      answer,
      answerOf("ahead", at, top, parts, { reservation, ...rest }),
      `${verb} ${JSON.stringify(more)}`,
    );
  }
  const numbers = { kind: "token_bucket", period_ms: 1_000, capacity: 5, max_debt: 5 };
  assertAnswer(await tollgate.post("inspect", ask), {
    status: 200,
    headers: { "content-type": "application/json" },
    body: {
      policy: "ahead",
      now: NOW,
      open_reservations: 1,
      limits: [
        { name: "a", ...numbers, rate: 1, remaining: 0, owed: 0, reset_at: NOW + 5_000 },
        { name: "b", ...numbers, rate: 2, remaining: 0, owed: 4, reset_at: NOW + 4_500 },
      ],
    },
  });
});

test("near_limit is true below a fifth, even of capacities not divisible by five", async () => {
  const near = await start({
    policies: Object.fromEntries([1, 4, 5, 7, 10, 101].map((n) => [`of-${n}`, { rate: n, period: "1day" }])),
  });
  for (const [capacity, left, isNear] of [
    [1, 1, false],
    [1, 0, true],
    [4, 1, false],
    [4, 0, true],
    [5, 1, false],
    [5, 0, true],
    [7, 2, false],
    [7, 1, true],
    [10, 2, false],
    [10, 1, true],
    [101, 21, false],
    [101, 20, true],
  ]) {
    const { body } = await near.consume({ policy: `of-${capacity}`, key: `${left}`, cost: capacity - left });
    assert.deepEqual([body.remaining, body.near_limit], [left, isNear], `${left} of ${capacity}`);
  }
  await near.stop();
});

test("headers have one item per limit, for one limit and for eight", async () => {
  const one = [{ cost: 3, left: 1, full: 3_000, t: 1 }];
  assertAnswer(await tollgate.consume({ policy: "only", key: "alice", cost: 3 }), answerOf("only", 0, 0, one));
  // l1 has 3 of 10 left, the smallest share; each comes back within 7 s at most.
  const eight = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => ({
    cost: 7,
    left: 10 * n - 7,
    full: Math.ceil(7_000 / n),
    t: 1,
  }));
  assertAnswer(await tollgate.consume({ policy: "eight", key: "alice", cost: 7 }), answerOf("eight", 0, 0, eight));
});

test("a cost must name exactly the limits, and each must be able to grant its own", async () => {
  const bad = (detail) => problem(400, "bad-request", "Bad request", detail);
  const large = (name, cost, max) =>
    problem(
      400,
      "cost-too-large",
      "Cost too large",
      `policy ${name} can never grant ${cost} tokens at once; at most ${max}`,
      {
        max_cost: max,
      },
    );
  for (const [cost, expected] of [
    [{ requests: 1 }, bad("the cost must name every limit of policy llm: requests, tokens")],
    [{}, bad("the cost must name every limit of policy llm: requests, tokens")],
    [{ requests: 1, tokens: 1, day: 1 }, bad('policy llm has no limit "day"; its limits are requests, tokens')],
    [{ requests: 1, tokens: 101 }, large("llm/tokens", 101, 100)],
    [{ requests: 11, tokens: 101 }, large("llm/requests", 11, 10)],
    [11, large("llm/requests", 11, 10)], // of each, though one of them could
  ]) {
    const ask = { policy: "llm", key: "bob", cost };
    for (const verb of ["consume", "peek"])
      assertAnswer(await tollgate.post(verb, ask), expected, JSON.stringify(cost));
  }
  assert.equal(
    (await tollgate.consume({ policy: "llm", key: "bob", cost: { requests: 10, tokens: 100 } })).status,
    200,
  );
});
