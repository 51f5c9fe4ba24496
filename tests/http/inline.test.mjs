// Requests that bring the numbers of their limits, from the caller's own table of plans.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { bearer, CLAIMS, jwt, newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const tokens = {
  inline: newToken("consume", "adjust"),
  plain: newToken("consume", "adjust"),
  one: newToken("consume"),
};
tokens.inline.entry.inline = true;
Object.assign(tokens.one.entry, { inline: true, policies: ["plan"] });
const KEY = randomBytes(32);
const settings = {
  policies: { api: { rate: 10, period: "10s" } },
  token: null,
  tokens: Object.fromEntries(Object.entries(tokens).map(([name, { entry }]) => [name, entry])),
  grantKeys: JSON.stringify({ k: KEY.toString("base64url") }),
};
const tollgate = await start(settings);

const FREE = { rate: "10/1m", write_ahead: 0 };
const PRO = { rate: "1000/1m", write_ahead: 0 };

/** Asks with the token that may bring limits. */
const ask = (verb, request, { headers, ...options } = {}) =>
  tollgate.post(verb, request, { ...options, headers: { ...bearer(tokens.inline.text).headers, ...headers } });
const left = async (key, limits, now) =>
  (await ask("peek", { policy: "plan", key, limits, cost: 0 }, { now })).body.remaining;

const item = (path, limits) => {
  const one = { policy: "plan", key: "k", ...(limits !== undefined && { limits }) };
  if (path === "/v1/batch") return { requests: [one] };
  return /settle|cancel|extend/.test(path) ? { ...one, reservation: "1" } : one;
};

/** Tokens of inline limits cannot be leased. */
const TAKING = PATHS.filter((path) => path !== "/v1/lease");

test("a credential that may not bring limits gets 403 at every endpoint, and changes nothing", async () => {
  const claims = { ...CLAIMS, key: "k", policies: ["plan", "api"] };
  const grant = jwt(KEY, { alg: "HS256", kid: "k" }, claims);
  for (const path of TAKING) {
    const isBatch = path === "/v1/batch";
    const of = (text) => problem(403, "forbidden", "Forbidden", isBatch ? `request 0: ${text}` : text);
    const body = JSON.stringify(item(path, FREE));
    const plain = of('this token may not bring `limits` of its own: give it "inline": true, or leave them out');
    assertAnswer(await tollgate.send({ path, body, ...bearer(tokens.plain.text) }), plain, path);
    if (!/charge|refund|reset/.test(path)) {
      const granted = of("a grant never brings `limits` of its own: leave them out");
      assertAnswer(await tollgate.send({ path, body, ...bearer(grant) }), granted, path);
    }
  }
  const other = { policy: "other", key: "k", limits: FREE };
  const { status, body } = await tollgate.consume(other, bearer(tokens.one.text));
  assert.deepEqual([status, body.detail], [403, 'this token or grant is not for the policy "other"; it is for plan']);
  assert.equal((await tollgate.consume({ ...other, policy: "plan" }, bearer(tokens.one.text))).status, 200);
  assert.equal(await left("k2", FREE), 10);
});

test("invalid limits are a 400 that says where", async () => {
  for (const [limits, detail] of [
    [
      null,
      'limits: must be a table of fields such as rate and period, a list of them, or text such as "100/1m", not null',
    ],
    [[], "limits: must be a list of 1 to 8 limits"],
    [Array.from({ length: 9 }, (_, i) => ({ name: `l${i}`, rate: "1/s" })), "limits: must be a list of 1 to 8 limits"],
    [{ rate: 1 }, "limits.period: is missing"],
    [
      { rate: 1, period: "1s", on_error: "open" },
      /^limits\.on_error: is not a known field; known fields are kind, rate,/,
    ],
    [
      [
        { name: "a", rate: "1/s" },
        { name: "b", rate: "1/never" },
      ],
      /^limits\[1\]\.rate: must be a length of time/,
    ],
    [[{ name: "a b", rate: "1/s" }], /^limits\[0\]: name: a name must be 1 to 64 ASCII letters/],
    ["1/s burst 9007199254740991000", /^limits\.rate: must be a number from 0 to 9007199254740991/],
    [{ rate: 1, period: "1s", write_ahead: 2 }, "limits.write_ahead: 2 tokens are more than the capacity: at most 1"],
  ]) {
    for (const path of TAKING) {
      const { status, body } = await tollgate.send({
        path,
        body: JSON.stringify(item(path, limits)),
        ...bearer(tokens.inline.text),
      });
      assert.equal(status, 400, `${path} ${JSON.stringify(limits)}`);
      const said = body.detail.replace(/^request 0: /, "");
      if (typeof detail === "string") assert.equal(said, detail);
      else assert.match(said, detail);
    }
  }
  const own = await ask("consume", { policy: "api", key: "k", limits: FREE });
  const detail = "api is a policy of this service: leave out `limits`, or use another name";
  assertAnswer(own, problem(400, "bad-request", "Bad request", detail));
  const name = await ask("consume", { policy: "a b", key: "k", limits: FREE });
  assert.match(name.body.detail, /^policy "a b": a name must be 1 to 64 ASCII letters/);
  const without = await ask("consume", { policy: "plan", key: "k" });
  assert.deepEqual([without.status, without.body.detail], [404, 'there is no policy "plan"; there is only api']);
  const cost = await ask("consume", { policy: "plan", key: "k", limits: FREE, cost: 11 });
  assert.deepEqual([cost.status, cost.body.max_cost], [400, 10]);
});

test("every verb decides by the numbers of its request", async () => {
  const key = "verbs";
  const plan = { policy: "plan", key, limits: PRO };
  const remaining = async (verb, more) => (await ask(verb, { ...plan, ...more })).body.remaining;
  const answer = await ask("consume", { ...plan, cost: 400 });
  assert.deepEqual([answer.status, answer.body.limit, answer.body.remaining], [200, 1_000, 600]);
  assert.equal(answer.headers["ratelimit-policy"], '"plan";q=1000;w=60;tollgate-capacity=1000');
  assert.equal(await remaining("charge", { cost: 100 }), 500);
  assert.equal(await remaining("refund", { cost: 50 }), 550);
  const { body: inspected } = await ask("inspect", plan);
  assert.deepEqual([inspected.limits[0].capacity, inspected.limits[0].remaining], [1_000, 550]);
  const reserved = (await ask("consume", { ...plan, mode: "reserve", cost: 100 })).body;
  const kept = (await ask("consume", { ...plan, mode: "reserve", cost: 50 })).body;
  assert.equal(kept.remaining, 400);
  assert.equal(await remaining("settle", { reservation: reserved.reservation, cost: 80 }), 420);
  const other = { ...plan, limits: FREE, reservation: kept.reservation };
  assert.equal((await ask("cancel", other)).body.remaining, 10, "under other numbers");
  assert.equal(await remaining("peek", { cost: 0 }), 470);
  assert.equal(await remaining("reset"), 1_000);
  assert.equal((await ask("consume", { ...plan, limits: FREE, cost: 10 })).status, 200);
  const refused = await ask("consume", { ...plan, limits: FREE });
  assert.deepEqual([refused.status, refused.body.retry_after_ms], [429, 6_000]);
  assert.equal(await remaining("peek", { cost: 0 }), 990);
});

test("a batch mixes limits and policies, over several keys", async () => {
  const requests = [
    { policy: "plan", key: "batch", limits: FREE, cost: 4 },
    { policy: "api", key: "batch" },
    {
      policy: "plan",
      key: "batch-2",
      limits: [
        { name: "a", rate: "5/1m" },
        { name: "b", rate: "9/1m" },
      ],
      cost: { a: 5, b: 1 },
    },
  ];
  const { status, body } = await ask("batch", { requests });
  assert.equal(status, 200);
  assert.deepEqual(
    body.results.map(({ remaining }) => remaining),
    [6, 9, 0],
  );
  const again = await ask("batch", { requests });
  assert.deepEqual([again.status, again.body["violated-policies"]], [429, ["plan/a"]]);
  assert.equal(await left("batch", FREE), 6);
});

test("an idempotency key replays for equal numbers in any spelling, and is a 422 for others", async () => {
  const headers = { "idempotency-key": "once" };
  const request = { policy: "plan", key: "idempotent", limits: { rate: 10, period: "1m", write_ahead: 0 } };
  assert.equal((await ask("consume", request, { headers })).body.replayed, undefined);
  assert.equal((await ask("consume", { ...request, limits: FREE }, { headers })).body.replayed, true);
  assert.equal((await ask("consume", { ...request, limits: PRO }, { headers })).status, 422);
  assert.equal(await left("idempotent", FREE), 9);
});

test("alternating numbers grant no more than the most generous ones, even over power cuts", async () => {
  const limits = [
    FREE,
    PRO,
    { rate: "100/1m", write_ahead: 3 },
    { kind: "fixed_window", rate: "300/1m", offset: "0s" },
  ];
  let granted = 0;
  for (let round = 0; round < 60; round++) {
    const request = { policy: "plan", key: "alternating", limits: limits[round % 4], mode: "up_to", cost: 500 };
    const { status, body } = await ask("consume", request);
    if (status === 200) granted += body.tokens;
    if (round % 13 === 12) {
      await tollgate.kill();
      await tollgate.restart();
    }
  }
  assert.ok(granted <= 1_000 && granted >= 10, `${granted}`);
  assert.equal(await left("alternating", PRO, NOW + 60_000), 1_000);
});

test("a new key starts full under any numbers, and a peek writes no row", async () => {
  for (const [limits, full] of [
    [FREE, 10],
    ["7/1h", 7],
    [{ kind: "fixed_window", rate: 3, period: "1day" }, 3],
  ]) {
    assert.equal(await left(`new-${full}`, limits), full);
  }
});

// The articles that pass the numbers with each call.
test("PostgreSQL: rate_limiting_token_bucket_request(id, refill_per_sec, window_seconds)", async () => {
  const request = async (id, refillPerSec, windowSeconds, now) => {
    const limits = { rate: refillPerSec, period: "1s", capacity: windowSeconds * refillPerSec, write_ahead: 0 };
    const { status, body } = await ask("consume", { policy: "rate_limiting", key: id, limits }, { now });
    return status === 200 ? body.remaining : -1;
  };
  const session = [];
  const watch = async (from, times) => {
    for (let call = 0; call < times; call++) session.push(await request("user1", 1, 10, from + 100 * call));
  };
  await watch(NOW, 13);
  await watch(NOW + 5_300, 6);
  assert.deepEqual(session, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, -1, -1, 3, 2, 1, 0, -1, -1]);
  // Under other arguments the rest of their window is available at once, and the time since the last grant counts at their rate.
  assert.equal(await request("user1", 1_000, 3_600, NOW + 5_900), 3_599_999);
  assert.equal(await request("user1", 1, 10, NOW + 5_901), -1, "and back");
  assert.equal(await request("user2", 1_000, 3_600, NOW), 3_599_999);
});

test("Scala and Redis: acquire(key, needPermits, maxQps) returns how long to wait", async () => {
  const acquire = async (key, needPermits, maxQps, now) => {
    const limits = { rate: maxQps, period: "1s", max_debt: 10_000, write_ahead: 0 };
    const request = { policy: "inference", key, limits, mode: "reserve", cost: needPermits };
    const { body } = await ask("consume", request, { now });
    return body.ready_at - body.now;
  };
  assert.equal(await acquire("doctors", 1_000, 1_000, NOW), 0);
  const waits = [];
  for (let patient = 0; patient < 5; patient++) waits.push(await acquire("doctors", 1, 1_000, NOW));
  assert.deepEqual(waits, [1, 2, 3, 4, 5]);
  assert.equal(await acquire("doctors", 1, 500, NOW), 12, "half as many doctors for the sixth");
});

test("Redis after Guava, and Convex: a rate for each call", async () => {
  const acquire = async (key, permits, permitsPerSecond, timeout, now) => {
    const limits = { rate: permitsPerSecond, period: "1s", max_debt: 1_000, write_ahead: 0 };
    const request = { policy: "guava", key, limits, mode: "borrow", max_wait_ms: timeout, cost: permits };
    const { status, body } = await ask("consume", request, { now });
    return status === 200 ? body.ready_at - body.now : null;
  };
  assert.equal(await acquire("g", 10, 2.5, 0, NOW), 0, "a cost above what is left passes at once");
  assert.equal(await acquire("g", 1, 2.5, 1_000, NOW), null, "and the next one pays");
  assert.equal(await acquire("g", 1, 2.5, 3_000, NOW), 2_800);

  const config = { kind: "token_bucket", rate: 3, period: "1m", capacity: 6, max_debt: 3, write_ahead: 0 };
  const convex = (more) => ask("consume", { policy: "sendMessage", key: "user", limits: config, ...more });
  assert.equal((await convex({ cost: 6 })).status, 200);
  assert.equal((await convex()).body.retry_after_ms, 20_000);
  assert.equal((await convex({ mode: "reserve", cost: 3 })).body.ready_at, NOW + 60_000);
  assert.equal((await convex({ mode: "reserve" })).status, 429, "maxReserved");
});

test("a key has at most 256 budgets that are not full", async () => {
  const names = Array.from({ length: 256 }, (_, index) => `plan${index}`);
  const consume = (policy, now = NOW) => ask("consume", { policy, key: "many", limits: FREE }, { now });
  const answers = await Promise.all(names.map((name) => consume(name)));
  for (const { status, text } of answers) assert.equal(status, 200, text);
  const detail =
    "nothing was done: this key has 256 budgets with `limits` in the request that are not full again, the maximum; " +
    "use fewer names as `policy`";
  const tooMany = problem(409, "too-many-inline-budgets", "Too many inline budgets", detail);
  assertAnswer(await consume("another"), tooMany);
  const another = { policy: "another", key: "many", limits: FREE };
  for (const verb of ["peek", "inspect", "charge", "refund", "reset"])
    assertAnswer(await ask(verb, another, { now: NOW }), tooMany);
  assertAnswer(await ask("batch", { requests: [{ ...another, policy: "plan0" }, another] }, { now: NOW }), tooMany);
  assert.equal((await consume("plan0")).body.remaining, 8, "an existing one is decided as always");
  assert.equal((await tollgate.post("consume", { policy: "api", key: "many" }, bearer(tokens.plain.text))).status, 200);
  assertAnswer(await consume("another", NOW + 5_999), tooMany);
  assert.equal((await consume("another", NOW + 6_000)).status, 200, "those that are full again make room");
});
