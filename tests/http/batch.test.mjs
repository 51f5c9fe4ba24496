// Batches: all requests are granted or none, over one key or many.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  api: { rate: 10, period: "10s" },
  slow: { rate: 5, period: "50s" },
  once: { rate: 0, period: "1s", capacity: 5 },
  debt: { rate: 1, period: "1s", capacity: 5, max_debt: 5 },
  llm: {
    limits: [
      { name: "requests", rate: 10, period: "10s" },
      { name: "tokens", rate: 0, period: "1s", capacity: 100 },
    ],
  },
  pool: { rate: 0, period: "1s", capacity: 60 },
};
const tollgate = await start({ policies: POLICIES });

const ask = (policy, key, cost) => ({ policy, key, cost });
const batch = (requests, options) => tollgate.post("batch", { requests }, options);

/** One of the results. `retry`: it would have been refused until then; `null`: permanently. Moments: ms after NOW. */
function result({ policy, cost = 1 }, at, { left, full, retry }) {
  const limit = POLICIES[policy].capacity ?? POLICIES[policy].rate;
  return {
    allowed: retry === undefined,
    policy,
    cost,
    limit,
    remaining: Math.max(left, 0),
    ...(left < 0 ? { owed: -left } : {}),
    near_limit: left * 5 < limit,
    now: NOW + at,
    reset_at: full === null ? null : NOW + full,
    ...(retry == null ? {} : { retry_at: NOW + retry, retry_after_ms: retry - at }),
  };
}

const granted = (at, results) => ({
  status: 200,
  headers: { "content-type": "application/json" },
  body: { allowed: true, now: NOW + at, results },
});

/** `retry` is the longest of all; without one, the batch can never pass. */
function refused(at, results, { retry, retryAfter, detail }) {
  const again = retry === undefined ? {} : { retry_at: NOW + retry, retry_after_ms: retry - at };
  return {
    status: 429,
    headers: { "content-type": "application/problem+json", ...(retryAfter ? { "retry-after": retryAfter } : {}) },
    body: {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota exceeded",
      status: 429,
      detail,
      "violated-policies": results.filter(({ allowed }) => !allowed).map(({ policy }) => policy),
      allowed: false,
      now: NOW + at,
      ...again,
      results,
    },
  };
}

/** What remains, with nothing held. */
async function left(policy, key, options) {
  const { body } = await tollgate.post("inspect", { policy, key }, options);
  assert.equal(body.open_reservations, 0, `${policy} ${key}`);
  return body.limits[0].remaining - body.limits[0].owed;
}

// Each is sent with all requests on one key and with each on its own key; the answers are the same.
const tables = {
  "what can be granted is, and every request has its result": [
    [
      0,
      [ask("api", "a", 3), ask("slow", "b"), ask("once", "c", 2)],
      [
        { left: 7, full: 3_000 },
        { left: 4, full: 10_000 },
        { left: 3, full: null },
      ],
    ],
    [
      1_000,
      [ask("once", "c", 0), ask("api", "a", 8)],
      [
        { left: 3, full: null },
        { left: 0, full: 11_000 },
      ],
    ],
  ],
  "one that cannot be granted refuses all, and says when it could": [
    [
      0,
      [ask("api", "a", 4), ask("slow", "b", 5)],
      [
        { left: 6, full: 4_000 },
        { left: 0, full: 50_000 },
      ],
    ],
    [
      0,
      [ask("slow", "b"), ask("api", "a", 6)],
      [
        { left: 0, full: 50_000, retry: 10_000 },
        { left: 6, full: 4_000 },
      ],
      {
        retry: 10_000,
        retryAfter: "10",
        detail: "nothing was taken: policy slow has 0 of 5 tokens left and the cost is 1; retry in 10000 ms",
      },
    ],
    [
      0,
      [ask("api", "a", 6), ask("slow", "b")],
      [
        { left: 6, full: 4_000 },
        { left: 0, full: 50_000, retry: 10_000 },
      ],
      {
        retry: 10_000,
        retryAfter: "10",
        detail: "nothing was taken: policy slow has 0 of 5 tokens left and the cost is 1; retry in 10000 ms",
      },
    ],
    // The longest of the waits; the sentence is about the first.
    [
      500,
      [ask("api", "a", 8), ask("slow", "b", 2)],
      [
        { left: 6, full: 4_000, retry: 2_000 },
        { left: 0, full: 50_000, retry: 20_000 },
      ],
      {
        retry: 20_000,
        retryAfter: "20",
        detail: "nothing was taken: policy api has 6 of 10 tokens left and the cost is 8; retry in 1500 ms",
      },
    ],
    [
      10_000,
      [ask("api", "a", 10), ask("slow", "b")],
      [
        { left: 0, full: 20_000 },
        { left: 0, full: 60_000 },
      ],
    ],
  ],
  "what can never be granted is not worth a wait": [
    [
      0,
      [ask("once", "a", 5), ask("api", "b", 10)],
      [
        { left: 0, full: null },
        { left: 0, full: 10_000 },
      ],
    ],
    [
      0,
      [ask("api", "b", 1), ask("once", "a")],
      [
        { left: 0, full: 10_000, retry: 1_000 },
        { left: 0, full: null, retry: null },
      ],
      {
        detail: "nothing was taken: policy api has 0 of 10 tokens left and the cost is 1; retry in 1000 ms",
      },
    ],
    [
      0,
      [ask("once", "a", 2)],
      [{ left: 0, full: null, retry: null }],
      {
        detail: "nothing was taken: policy once has 0 of 5 tokens left and the cost is 2; this budget never refills",
      },
    ],
  ],
};
for (const [name, rows] of Object.entries(tables)) {
  for (const where of ["one key", "keys of their own"]) {
    test(`${name}: ${where}`, async () => {
      for (const [at, asks, verdicts, refusal] of rows) {
        const requests = asks.map((ask) => ({ ...ask, key: `${name}, ${where === "one key" ? "" : ask.key}` }));
        const results = requests.map((request, index) => result(request, at, verdicts[index]));
        const expected = refusal ? refused(at, results, refusal) : granted(at, results);
        for (let i = 0; i < (refusal ? 3 : 1); i++) {
          assertAnswer(await batch(requests, { now: NOW + at }), expected, JSON.stringify(requests));
        }
      }
    });
  }
}

test("if any key refuses, the others are unchanged, in memory and in storage", async () => {
  const own = await start({ policies: POLICIES });
  const send = (verb, ask) => own.post(verb, ask);
  const keys = ["a", "b", "c", "d"];
  for (const key of keys) await send("consume", ask("pool", key, 10));
  for (const empty of keys) {
    await send("charge", ask("pool", empty, 50));
    const answer = await send("batch", { requests: keys.map((key) => ask("pool", key, 2)) });
    assert.equal(answer.status, 429, answer.text);
    const remaining = keys.map((key) => (key === empty ? 0 : 50));
    assert.deepEqual(
      answer.body.results.map((result) => result.remaining),
      remaining,
    );
    assert.deepEqual(
      answer.body.results.map((result) => result.allowed),
      keys.map((key) => key !== empty),
    );
    await send("refund", ask("pool", empty, 50));
  }
  for (const isRestarted of [false, true]) {
    if (isRestarted) {
      await own.kill();
      await own.restart();
    }
    for (const key of keys) {
      const { limits, open_reservations } = (await send("inspect", { policy: "pool", key })).body;
      assert.deepEqual([limits[0].remaining, open_reservations], [50, 0], `${key}, ${isRestarted}`);
    }
  }
  await own.stop();
});

test("a granted batch over several keys survives kill -9, and nothing stays held", async () => {
  const own = await start({ policies: POLICIES });
  const keys = ["a", "b", "c"];
  const { status } = await own.post("batch", { requests: keys.map((key) => ask("once", key, 2)) });
  assert.equal(status, 200);
  await own.kill();
  await own.restart();
  // After ten seconds, tokens that are only held are free again.
  for (const now of [NOW, NOW + 10_000]) {
    for (const key of keys) {
      const { limits, open_reservations } = (await own.post("inspect", { policy: "once", key }, { now })).body;
      assert.deepEqual([limits[0].remaining, open_reservations], [3, 0], key);
    }
  }
  await own.stop();
});

test("results are in the order of the requests, with several keys and several requests for one key", async () => {
  const requests = [
    ask("api", "x", 1),
    ask("slow", "y", 2),
    ask("once", "x", 3),
    ask("api", "y", 4),
    ask("debt", "z", 5),
  ];
  const verdicts = [
    { left: 9, full: 1_000 },
    { left: 3, full: 20_000 },
    { left: 2, full: null },
    { left: 6, full: 4_000 },
    { left: 0, full: 5_000 },
  ];
  const results = (by) => requests.map((request, index) => result(request, 0, by[index]));
  assertAnswer(await batch(requests), granted(0, results(verdicts)));
  const after = [...verdicts];
  after[1] = { ...after[1] };
  after[2] = { ...after[2], retry: null };
  after[4] = { ...after[4], retry: 5_000 };
  const detail = "nothing was taken: policy once has 2 of 5 tokens left and the cost is 3; this budget never refills";
  assertAnswer(await batch(requests), refused(0, results(after), { detail }));
});

test("a policy of several limits has them all in its result, and the violated one is named", async () => {
  const requests = [ask("llm", "l", { requests: 1, tokens: 60 }), ask("api", "m", 1)];
  const first = await batch(requests);
  assert.deepEqual([first.status, first.body.results[0].remaining], [200, 40], first.text);
  const llm = { policy: "llm", cost: 60, limit: 100, remaining: 40, near_limit: false, now: NOW, reset_at: null };
  const limits = [
    { name: "requests", allowed: true, cost: 1, limit: 10, remaining: 9, near_limit: false, reset_at: NOW + 1_000 },
    { name: "tokens", allowed: false, cost: 60, limit: 100, remaining: 40, near_limit: false, reset_at: null },
  ];
  const results = [{ allowed: false, ...llm, limits }, result(requests[1], 0, { left: 9, full: 1_000 })];
  const detail =
    "nothing was taken: policy llm/tokens has 40 of 100 tokens left and the cost is 60; this budget never refills";
  const expected = refused(0, results, { detail });
  expected.body["violated-policies"] = ["llm/tokens"];
  for (let i = 0; i < 2; i++) assertAnswer(await batch(requests), expected);
});

test("a policy that several keys violate is named once", async () => {
  const requests = ["n", "o"].map((key) => ask("once", key, 1));
  for (const request of requests) await tollgate.post("charge", { ...request, cost: 5 });
  const { status, body } = await batch(requests);
  assert.deepEqual([status, body["violated-policies"]], [429, ["once"]]);
});

test("a budget in debt refuses a batch, even one that costs nothing", async () => {
  await tollgate.post("charge", ask("debt", "owing", 8));
  const requests = [ask("api", "owing", 1), ask("debt", "owing", 0)];
  const results = [
    result(requests[0], 0, { left: 10, full: 0 }),
    result(requests[1], 0, { left: -3, full: 8_000, retry: 3_000 }),
  ];
  const detail = "nothing was taken: policy debt owes 3 tokens and the cost is 0; retry in 3000 ms";
  assertAnswer(await batch(requests), refused(0, results, { retry: 3_000, retryAfter: "3", detail }));
});

test("a batch has 1 to 16 requests, no two of them with the same policy and key", async () => {
  const many = (count, key) => Array.from({ length: count }, (_, index) => ask("api", `${key} ${index}`, 1));
  for (const count of [1, 2, 16]) {
    const results = many(count, "").map((request) => result(request, 0, { left: 9, full: 1_000 }));
    assertAnswer(await batch(many(count, `of ${count}`)), granted(0, results), `${count}`);
  }
  const twice = [ask("api", "t", 1), ask("slow", "t", 1), ask("api", "t", 2)];
  for (const [requests, detail] of [
    [[], "a batch has 1 to 16 requests, not 0"],
    [many(17, "m"), "a batch has 1 to 16 requests, not 17"],
    [twice, "requests 0 and 2 have the same policy and key: combine them, with the sum of their costs"],
  ]) {
    assertAnswer(await batch(requests), problem(400, "bad-request", "Bad request", detail), detail);
  }
  const unknown = problem(
    404,
    "unknown-policy",
    "Unknown policy",
    'request 1: there is no policy "nobody"; there are api, debt, llm, once, pool, slow',
  );
  assertAnswer(await batch([ask("api", "u", 1), ask("nobody", "u", 1)]), unknown);
  const large = "request 1: policy api can never grant 11 tokens at once; at most 10";
  const tooLarge = problem(400, "cost-too-large", "Cost too large", large, { max_cost: 10 });
  assertAnswer(await batch([ask("slow", "u", 1), ask("api", "u", 11)]), tooLarge);
  for (const policy of ["api", "slow"])
    assert.equal(await left(policy, "u"), POLICIES[policy].rate, "nothing was taken");
});

test("64 overlapping batches at once take no more than is available, and every token is accounted for", async () => {
  const keys = ["p", "q", "r"];
  let [grants, refusals] = [0, 0];
  for (let round = 0; round < 6; round++) {
    const taken = new Map(keys.map((key) => [key, 0]));
    const one = async (index) => {
      // Two or three of the keys, in any order, for 1 to 4 tokens each.
      const chosen = keys.filter((_, at) => index % 4 !== at).sort(() => (index % 3) - 1);
      const requests = chosen.map((key, at) => ask("pool", `${key} ${round}`, 1 + ((index + at + round) % 4)));
      const answer = await batch(requests);
      if (answer.status === 200) {
        grants++;
        for (const [at, { cost }] of requests.entries()) taken.set(chosen[at], taken.get(chosen[at]) + cost);
      } else {
        refusals++;
        assert.equal(answer.status, 429, answer.text);
      }
    };
    await Promise.all(Array.from({ length: 64 }, (_, index) => one(index)));
    for (const key of keys) {
      const rest = await left("pool", `${key} ${round}`);
      assert.ok(rest >= 0);
      assert.equal(taken.get(key) + rest, 60, `round ${round}, key ${key}: ${taken.get(key)} granted and ${rest} left`);
    }
  }
  assert.ok(grants > 6 && refusals > 6, `${grants} granted, ${refusals} refused`);
});

test("killed amid batches: what was granted is taken, and nothing stays held", async () => {
  const own = await start({ policies: POLICIES });
  const keys = ["p", "q", "r"];
  const granted = new Map(keys.map((key) => [key, 0]));
  let sent = 0;
  for (let kill = 1; kill <= 3; kill++) {
    let answered = 0;
    let killed;
    const caller = async (index) => {
      const chosen = keys.filter((_, at) => index % 3 !== at);
      while (!killed) {
        sent++;
        try {
          const answer = await own.post("batch", { requests: chosen.map((key) => ask("pool", key, 1)) });
          assert.ok([200, 429].includes(answer.status), answer.text);
          if (answer.status === 200) for (const key of chosen) granted.set(key, granted.get(key) + 1);
        } catch (error) {
          if (!killed) throw error;
        }
        if (++answered === 5) killed = own.kill();
      }
    };
    await Promise.all(Array.from({ length: 9 }, (_, index) => caller(index)));
    await killed;
    await own.restart();
    for (const key of keys) {
      const { limits, open_reservations } = (await own.post("inspect", { policy: "pool", key }, { now: NOW + 10_000 }))
        .body;
      const taken = 60 - limits[0].remaining;
      assert.equal(open_reservations, 0);
      assert.ok(
        taken >= granted.get(key) && taken <= sent,
        `${key}: ${granted.get(key)} granted, ${taken} taken, ${sent} sent`,
      );
    }
  }
  assert.ok(keys.every((key) => granted.get(key) > 0) && sent < 60, `${sent} sent`);
  await own.stop();
});
