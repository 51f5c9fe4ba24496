// Overrides of keys: the API, and the answers to the keys.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { newToken } from "./credentials.mjs";
import { governed } from "./governed.mjs";

const all = newToken("consume", "adjust", "admin");
const some = newToken("admin");
some.entry.policies = ["other"];
const user = newToken("consume");
const tokens = { all: all.entry, some: some.entry, user: user.entry };
const POLICIES = {
  api: { rate: 10, period: "10s" },
  other: { rate: 10, period: "10s" },
  llm: {
    limits: [
      { name: "requests", rate: "5/10s" },
      { name: "tokens", rate: "100/10s" },
    ],
  },
};

async function started(changes) {
  const service = await governed({ policies: POLICIES, tokens, token: all.text, ...changes });
  const { send } = service;
  const ask = (verb, request, options) =>
    send("POST", `/v1/${verb}`, { policy: "api", key: "alice", ...request }, options);
  return Object.assign(service, {
    ask,
    consume: (key, cost = 1, more) => ask("consume", { key, cost, ...more }),
    put: (body, query = "", options) => send("PUT", `/v1/overrides${query}`, body, options),
    set: async (...overrides) => {
      const { status, text, body } = await send("PUT", "/v1/overrides", { overrides });
      assert.equal(status, 200, text);
      return body;
    },
    list: async (query = "") => (await send("GET", `/v1/overrides${query}`)).body,
  });
}

const alice = { policy: "api", key: "alice" };

test("sets, lists, replaces and removes overrides, and records each act", async () => {
  const service = await started();
  const team = { policy: "api", prefix: "team:", rate: "30/10s" };
  const created = await service.set({ ...alice, multiple: 2.5 }, team);
  assert.deepEqual([created.created, created.at >= service.now, created.dry_run], [2, true, false]);
  assert.equal((await service.consume("alice", 25)).status, 200);
  assert.equal((await service.consume("team:1", 30)).status, 200);
  assert.equal((await service.consume("bob", 11)).status, 400);
  const { overrides, next } = await service.list();
  assert.deepEqual(
    overrides.map(({ override }) => override).sort((a) => (a.key ? -1 : 1)),
    [{ ...alice, multiple: 2.5 }, team],
  );
  assert.equal(next, null);
  assert.deepEqual((await service.list("?policy=api&prefix=team:")).overrides[0].override, team);
  assert.deepEqual((await service.list("?policy=other")).overrides, []);
  const [first] = overrides;
  const page = await service.list("?limit=1");
  assert.deepEqual([page.overrides, page.next], [[first], first.id]);
  assert.deepEqual((await service.list(`?after=${first.id}`)).overrides, [overrides[1]]);

  const replaced = await service.set({ ...alice, unlimited: true });
  assert.deepEqual([replaced.created, replaced.replaced], [0, 1]);
  const removed = await service.send("DELETE", "/v1/overrides?policy=api&key=%22alice%22");
  assert.deepEqual([removed.status, removed.body.removed], [200, 1]);
  assert.equal((await service.consume("alice", 11)).status, 400);
  const { object } = overrides.find(({ override }) => override.key);
  const { acts } = (await service.send("GET", "/v1/audit?limit=2")).body;
  assert.deepEqual(
    acts.map(({ by, act, policy, key, before, after: now }) => [by, act, policy, key, before, now]),
    [
      ["all", "override.deleted", "api", object, { policy: "api", unlimited: true }, null],
      ["all", "override.replaced", "api", object, { policy: "api", multiple: 2.5 }, { policy: "api", unlimited: true }],
    ],
  );
});

test("a banned key is told so and until when; what it gives back counts, and it refills", async () => {
  const service = await started();
  await service.consume("alice", 8);
  const until = service.now + 3_000;
  await service.set({ ...alice, banned: true, until });
  for (const [verb, more] of [
    ["consume", {}],
    ["consume", { mode: "reserve" }],
    ["consume", { mode: "up_to", cost: 5 }],
    ["peek", { cost: 0 }],
  ]) {
    assertAnswer(await service.ask(verb, more), {
      status: 429,
      headers: { "content-type": "application/problem+json", "retry-after": "3" },
      rateLimitPolicy: [["api", { q: 0, "tollgate-capacity": 0 }]],
      rateLimit: [["api", { r: 0, t: 3 }]],
      body: {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Quota exceeded",
        status: 429,
        detail: "this key is banned from policy api; retry in 3000 ms",
        "violated-policies": ["api"],
        allowed: false,
        policy: "api",
        cost: more.cost ?? 1,
        limit: 0,
        remaining: 0,
        near_limit: true,
        now: service.now,
        reset_at: until,
        retry_at: until,
        retry_after_ms: 3_000,
        banned: true,
      },
    });
  }
  assert.equal((await service.ask("refund", { cost: 1 })).body.remaining, 3);
  const { body } = await service.ask("inspect", {});
  assert.deepEqual([body.banned, body.banned_until, body.limits[0].remaining], [true, until, 3]);
  const batch = { requests: [{ ...alice }, { policy: "api", key: "bob" }] };
  const refused = await service.send("POST", "/v1/batch", batch);
  assert.deepEqual([refused.status, refused.body.results[0].banned], [429, true]);
  assert.equal((await service.consume("bob", 10)).status, 200, "nothing was taken");
  service.wait(2_999);
  assert.equal((await service.consume("alice")).status, 429);
  service.wait(1);
  assert.equal((await service.consume("alice", 6)).status, 200, "3, and 3 that came back meanwhile");
  assert.equal((await service.consume("alice", 1)).status, 429);
  const forever = await service.set({ ...alice, banned: true });
  assert.equal(forever.created, 1);
  const banned = await service.consume("alice");
  assert.deepEqual([banned.status, banned.body.retry_at, banned.headers["retry-after"]], [429, undefined, undefined]);
  assert.equal(banned.body.detail, "this key is banned from policy api; the ban has no end");
});

test("a key without limits is never refused but counted, and later has what is left", async () => {
  const service = await started();
  await service.set({ policy: "api", prefix: "vip:", unlimited: true });
  const { body, headers, status } = await service.consume("vip:1", 9_007_199_254_740_991);
  assert.deepEqual([status, body.unlimited, body.limit, body.remaining], [200, true, undefined, undefined]);
  assert.deepEqual([headers.ratelimit, headers["ratelimit-policy"]], [undefined, undefined]);
  for (const more of [
    { mode: "reserve", cost: 99 },
    { mode: "borrow", max_wait_ms: 0 },
    { mode: "up_to", cost: 50 },
  ]) {
    const answer = await service.consume("vip:1", 1, more);
    assert.equal(answer.status, 200, answer.text);
    if (more.mode === "up_to") assert.equal(answer.body.tokens, 50);
  }
  assert.equal((await service.ask("inspect", { key: "vip:1" })).body.limits[0].remaining, 0);
  service.wait(1_000);
  await service.send("DELETE", "/v1/overrides?policy=api&prefix=vip:");
  const after = await service.consume("vip:1", 2);
  assert.deepEqual([after.status, after.body.remaining], [429, 1]);
});

test("refills follow the numbers in force at each moment, even if the key is used only later", async () => {
  const service = await started();
  await service.consume("alice", 10);
  service.wait(2_000); // 2 at 1 a second
  await service.set({ ...alice, rate: "100/10s burst 200" });
  service.wait(500); // 5 at 10 a second
  assert.equal(
    (await service.ask("peek", {})).body.remaining,
    197,
    "200, but for 8 that are spent and 5 that came back",
  );
  service.wait(2_500);
  await service.send("DELETE", "/v1/overrides?policy=api&key=%22alice%22");
  assert.equal((await service.ask("peek", {})).body.remaining, 5, "1 a second, as if there had been no override");
  await service.set({ policy: "llm", key: "a", limits: [{ name: "tokens", rate: "1000/10s" }] });
  const cost = { requests: 5, tokens: 1_000 };
  const { status, body } = await service.ask("consume", { policy: "llm", key: "a", cost });
  assert.deepEqual(
    [status, body.limits.map(({ name, limit }) => [name, limit])],
    [
      200,
      [
        ["requests", 5],
        ["tokens", 1_000],
      ],
    ],
  );
});

test("a change says how tokens are carried over", async () => {
  const service = await started();
  const larger = { ...alice, rate: "100/10s" };
  for (const [carry, above, back] of [
    ["", 96, 6],
    ["?carry=additive", 96, 6],
    ["?carry=as_is", 6, 6],
    ["?carry=reset", 100, 10],
  ]) {
    const key = `alice${carry}`;
    const left = async () => (await service.ask("peek", { key })).body.remaining;
    assert.equal((await service.consume(key, 4)).status, 200);
    const set = await service.put({ overrides: [{ ...larger, key }] }, carry);
    assert.equal(set.status, 200, set.text);
    assert.equal(await left(), above, carry);
    const where = new URLSearchParams({ policy: "api", key: JSON.stringify(key) });
    const removed = await service.send("DELETE", `/v1/overrides?${where}&${carry.slice(1)}`.replace(/&$/, ""));
    assert.deepEqual([removed.status, removed.body.removed], [200, 1], removed.text);
    assert.equal(await left(), back, carry);
  }
  const again = { overrides: [{ ...alice, rate: "20/10s" }] };
  await service.put(again);
  await service.consume("alice", 15);
  assert.equal((await service.put(again)).body.unchanged, 1);
  const anew = await service.put(again, "?carry=reset");
  assert.equal(anew.body.changes.at(-1), "keys are reset; at the latest ten seconds from then");
  assert.equal((await service.ask("peek")).body.remaining, 20);
  assert.equal((await service.send("GET", "/v1/audit?limit=1")).body.acts[0].carry, "reset");
  assertAnswer(
    await service.put(again, "?carry=proportional"),
    problem(400, "bad-request", "Bad request", '`carry` must be additive, as_is or reset, not "proportional"'),
  );
});

test("all are changed or none, a dry run changes nothing, and every error is reported", async () => {
  const service = await started();
  const bad = (detail) => problem(400, "bad-request", "Bad request", detail);
  const overrides = [
    { ...alice, multiple: 2 },
    { policy: "none", key: "a", banned: true },
  ];
  const unknown = 'nothing was changed: overrides[1].policy: there is no policy "none"';
  assertAnswer(await service.put({ overrides }), bad(unknown));
  assert.deepEqual((await service.list()).overrides, []);
  const dry = await service.put({ overrides: [overrides[0]] }, "?dry_run=true");
  assert.deepEqual([dry.status, dry.body.dry_run, dry.body.created], [200, true, 1]);
  assert.equal(
    dry.body.changes[0],
    "1 key or prefix: under an override; time before the change counts as the policy says",
  );
  assert.deepEqual((await service.list()).overrides, []);
  for (const [body, detail] of [
    [{}, "nothing was changed: a change has 1 to 2000 overrides, not 0"],
    [
      { overrides: [{ ...alice, multiple: 0 }] },
      'nothing was changed: overrides[0].multiple: must be a number above 0 and up to 1000000, with at most 6 decimals, such as 2.5, not 0; write `"banned": true` to allow nothing',
    ],
  ])
    assertAnswer(await service.put(body), bad(detail));
  const none = await service.put({ overrides: [overrides[0]] }, "", { token: some.text });
  assertAnswer(none, bad('nothing was changed: overrides[0].policy: there is no policy "api"'));
  assert.equal((await service.put({ overrides }, "", { token: user.text })).status, 403);
});

test("thousands at once", async () => {
  const service = await started();
  const overrides = Array.from({ length: 2_000 }, (_, n) => ({
    policy: "api",
    key: `customer-${n}`,
    rate: `${n + 1}/10s`,
  }));
  const { body } = await service.put({ overrides });
  assert.equal(body.created, 2_000);
  for (const n of [0, 999, 1_999]) {
    assert.equal((await service.consume(`customer-${n}`, n + 1)).status, 200);
    assert.equal((await service.consume(`customer-${n}`, n + 2)).status, 400);
  }
  assert.equal((await service.list("?policy=api")).overrides.length, 1_000);
});

const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
const open = { ...POLICIES, open: { rate: 10, period: "10s", on_error: "open" } };

test("a key banned since the isolate last reached the registry: 503, even if the policy fails open", async () => {
  const other = { policies: open, build: "test-clock" };
  const service = await started({ policies: open, around, other });
  const ask = (key, registry) =>
    service.ask(
      "consume",
      { policy: "open", key },
      { headers: registry && { "x-version": "other", "x-registry": registry } },
    );
  assert.equal((await ask("mallory", "answers")).status, 200);
  await service.set({ policy: "open", key: "mallory", banned: true });
  assert.equal((await ask("mallory")).status, 429, "where it was set, so her object knows it");
  for (let round = 0; round < 2; round++) {
    const { status, body } = await ask("mallory", "throws");
    assert.deepEqual([status, body.cause], [503, "failed"]);
    assert.equal((await ask("alice", "throws")).status, 200, "other keys are served");
  }
  assert.equal((await ask("mallory", "answers")).status, 429);
});

test("a panic while the registry is gone keeps policies, loses overrides, and never grants a key that its object knows is banned", async () => {
  const other = { policies: POLICIES, build: "test-clock" };
  const service = await started({ around, other });
  // The memory of the other isolate's frontend is lost, but not that of the objects.
  const consume = (key, registry, more) => {
    const headers = { "x-version": "other", "x-registry": registry ?? null };
    return service.ask("consume", { key }, { headers, ...more });
  };
  const change = await service.send("PUT", "/v1/policies/api", "7/10s", { headers: { "if-match": "*" } });
  assert.equal(change.status, 200);
  assert.equal((await consume("mallory", "answers")).status, 200);
  await service.set({ policy: "api", key: "mallory", banned: true });
  service.wait(11_000);
  assert.equal((await consume("mallory", "answers")).status, 429);
  assert.equal((await consume("mallory", "throws", { now: "no moment" })).status, 503, "sets the clock, and panics");
  for (let round = 0; round < 2; round++) {
    const { status, body } = await consume("mallory", "throws");
    assert.deepEqual([status, body.cause, body.stale_policies], [503, "failed", true]);
    const { body: unknown } = await consume("alice", "throws");
    assert.deepEqual([unknown.limit, unknown.stale_policies], [7, true]);
  }
  service.wait(11_000);
  await consume("mallory", "answers");
  assert.equal((await consume("mallory", "answers")).body.banned, true);
});

test("an answer of the registry that comes after a panic is not taken for that to the new question", async () => {
  const other = { policies: POLICIES, build: "test-clock" };
  const service = await started({ around, other });
  const consume = (key, registry, more) => {
    const headers = { "x-version": "other", "x-registry": registry ?? null };
    return service.ask("consume", { key }, { headers, ...more });
  };
  await service.set({ policy: "api", key: "mallory", banned: true });
  assert.equal((await consume("alice", "answers")).status, 200);
  service.wait(6_000);
  assert.equal((await consume("alice", "late")).status, 200, "asks in the background");
  assert.equal((await consume("alice", "late", { now: "no moment" })).status, 503, "panics");
  for (let round = 0; round < 3; round++) {
    assert.equal((await consume("mallory", "late")).body.banned, true);
    service.wait(1_000);
  }
});

test("a new isolate without all overrides yet answers under those it has, marked as stale", async () => {
  const other = { policies: POLICIES, build: "test-clock" };
  const service = await started({ around, other });
  const change = await service.send("PUT", "/v1/policies/api", "7/10s", { headers: { "if-match": "*" } });
  assert.equal(change.status, 200);
  await service.set({ policy: "api", key: "mallory", banned: true });
  // More than a page.
  for (let page = 0; page < 8; page++)
    await service.set(
      ...Array.from({ length: 2_000 }, (_, at) => ({
        policy: "api",
        key: `user ${page} ${at}`,
        rate: "20/10s burst 99",
      })),
    );
  await service.set({ policy: "api", key: "trudy", banned: true });
  const ask = async (key, registry) => {
    const headers = { "x-version": "other", "x-registry": registry ?? null };
    const { status, body } = await service.ask("consume", { key }, { headers });
    return [status, body.limit, body.stale_policies];
  };
  assert.deepEqual(await ask("alice", "hangs later"), [200, 7, true], "the policies come with the first page");
  assert.deepEqual(await ask("mallory"), [429, 0, true]);
  assert.deepEqual(await ask("trudy"), [200, 7, true]);
  await service.tollgate.logged("the registry of policies did not answer");
  service.wait(11_000);
  await ask("alice", "answers");
  for (let tries = 0; (await ask("trudy"))[0] !== 429; tries++) {
    assert.ok(tries < 200, "it is still let in");
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.deepEqual(await ask("mallory"), [429, 0, undefined]);
});

test("a token restricted to one policy fills at most its half, which leaves room for bans and other policies", async () => {
  const service = await started();
  const put = (overrides, token) => service.put({ overrides }, "", { token });
  const some2000 = (part) =>
    Array.from({ length: 2_000 }, (_, n) => ({ policy: "other", key: `k${part}-${n}`, multiple: 2 }));
  for (let part = 0; part < 25; part++) assert.equal((await put(some2000(part), some.text)).status, 200, `${part}`);
  const one = { policy: "other", key: "one more" };
  assertAnswer(
    await put([{ ...one, multiple: 2 }], some.text),
    problem(
      400,
      "bad-request",
      "Bad request",
      "nothing was changed: more than 50000 overrides under the policies of this token would be in force or have ended within a " +
        "minute. Remove some and try again a minute later; bans alone, or an unrestricted token, have more room",
    ),
  );
  assert.equal((await put([{ ...one, banned: true }], some.text)).body.created, 1);
  assert.equal((await put([{ ...alice, multiple: 2 }], all.text)).body.created, 1);
  assert.equal((await put([{ ...one, multiple: 2 }], some.text)).body.replaced, 1);
});
