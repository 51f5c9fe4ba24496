// Operators' acts on one key: inspect, explain, reset, credit, block.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { newToken } from "./credentials.mjs";
import { governed } from "./governed.mjs";
import { NOW } from "./workerd.mjs";

const all = newToken("consume", "adjust", "admin");
const consumer = newToken("consume", "adjust");
const some = newToken("consume", "admin");
some.entry.policies = ["api"];
const tokens = { ops: all.entry, app: consumer.entry, some: some.entry };

const POLICIES = {
  api: { rate: 100, period: "10s", capacity: 60, max_debt: 20, write_ahead: 0 },
  llm: {
    limits: [
      { name: "requests", rate: 3, period: "1s", capacity: 10, write_ahead: 0 },
      { name: "tokens", rate: 0, period: "1day", capacity: 1_000, write_ahead: 0 },
    ],
  },
};

async function started(changes) {
  const service = await governed({ policies: POLICIES, tokens, token: all.text, ...changes });
  const { send } = service;
  return Object.assign(service, {
    post: (verb, body, options) => send("POST", `/v1/${verb}`, body, options),
    audit: async () => {
      const { body } = await send("GET", "/v1/audit");
      return body.acts.filter(({ by }) => by === "ops");
    },
  });
}

test("shows every bucket of a key exactly, its reservations and its latest decisions, and changes nothing", async () => {
  const { post, wait } = await started();
  await post("consume", { policy: "api", key: "alice", cost: 60 });
  await post("consume", { policy: "api", key: "alice", cost: 1 });
  const { body: reserved } = await post("consume", { policy: "llm", key: "alice", cost: 5, mode: "reserve" });
  await post("peek", { policy: "llm", key: "alice" });
  wait(1_005);
  const { body } = await post("keys/inspect", { key: "alice" });
  assert.deepEqual((await post("keys/inspect", { key: "alice" })).body, body);
  const { object, now, policies, reservations, holds, decisions } = body;
  assert.match(object, /^[0-9a-f]{32}$/);
  assert.equal(now, NOW + 1_005);
  const standing = policies.map(({ policy, limits }) => [
    policy,
    ...limits.map(({ name, remaining, level: { tokens, drops } }) => [name, remaining, tokens, drops]),
  ]);
  assert.deepEqual(standing, [
    // Ten tokens a second: one is 100 drops, one of which comes back each millisecond. At three a second, 3 of 1000.
    ["api", [undefined, 10, 10, 5]],
    ["llm", ["requests", 8, 8, 15], ["tokens", 995, 995, 0]],
  ]);
  assert.deepEqual(holds, []);
  assert.deepEqual(
    reservations.map(({ reservation, opened_at, tokens }) => [reservation, opened_at, tokens]),
    [
      [
        reserved.reservation,
        NOW,
        [
          { policy: "llm", limit: "requests", tokens: 5 },
          { policy: "llm", limit: "tokens", tokens: 5 },
        ],
      ],
    ],
  );
  assert.deepEqual(decisions, [
    { at: NOW, action: "reserve", policy: "llm", cost: 5, allowed: true },
    { at: NOW, action: "consume", policy: "api", cost: 1, allowed: false, limit: "api", retry_at: NOW + 100 },
    { at: NOW, action: "consume", policy: "api", cost: 60, allowed: true },
  ]);
  const { body: after } = await post("peek", { policy: "api", key: "alice", cost: 0 });
  assert.equal(after.remaining, 10);
  const unused = await post("keys/inspect", { key: "bob" });
  assert.deepEqual([unused.status, unused.body.policies, unused.body.decisions], [200, [], []]);
});

test("shows only the token's policies", async () => {
  const { post } = await started();
  await post("consume", { policy: "api", key: "alice" });
  await post("consume", { policy: "llm", key: "alice", cost: 5, mode: "reserve" });
  const { body } = await post("keys/inspect", { key: "alice" }, { token: some.text });
  assert.deepEqual(
    [body.policies.map(({ policy }) => policy), body.reservations, body.decisions.map(({ policy }) => policy)],
    [["api"], [], ["api"]],
  );
});

test("explains a decision in words that match it, and takes nothing", async () => {
  const { post, wait } = await started();
  const explain = (policy, cost) => post("keys/explain", { policy, key: "alice", cost });
  let random = 7;
  for (let turn = 0; turn < 40; turn++) {
    random = (random * 48_271) % 2_147_483_647;
    const [policy, cost] = [random % 2 ? "api" : "llm", random % 23];
    const [first, again] = [await explain(policy, cost), await explain(policy, cost)];
    assert.deepEqual(again.body, first.body);
    const { status, body } = await post("consume", { policy, key: "alice", cost });
    const { allowed, explanation, retry_at } = first.body;
    // A cost that can never pass is an error to consume, and explained here.
    assert.equal(allowed, status === 200, explanation);
    assert.equal(explanation.startsWith(allowed ? "Allowed: " : "Refused: "), true, explanation);
    if (status === 429) assert.equal(retry_at, body.retry_at, explanation);
    if (random % 5 === 0) wait(random % 700);
  }
  assert.match(
    (await explain("llm", 11)).body.explanation,
    /^Refused: the limit llm\/requests allows 3 per second, at most 10 at once; \d+ are left, and 11 were asked for; that can never pass, for no more than 10 can\.$/,
  );
});

test("resets a budget and gives tokens, and the audit log says who, what, before and after, without the key", async () => {
  const { post, audit } = await started();
  const budget = { policy: "api", key: "alice" };
  await post("charge", { ...budget, cost: 70 });
  const { body: credited } = await post("keys/credit", { ...budget, cost: 15 });
  const levels = (level) => [{ limit: "api", level }];
  assert.deepEqual(credited, { policy: "api", now: NOW, before: levels(-10), after: levels(5), recorded: true });
  const { body: reset } = await post("keys/reset", budget);
  assert.deepEqual(reset, { policy: "api", now: NOW, before: levels(5), after: levels(60), recorded: true });
  const { body: clipped } = await post("keys/credit", { ...budget, cost: 1_000 });
  assert.deepEqual(clipped.after, levels(60));
  const { object } = (await post("keys/inspect", { key: "alice" })).body;
  const acts = (await audit()).map(({ act, policy, key, before, after }) => [act, policy, key, before, after]);
  assert.deepEqual(acts, [
    ["key.credited", "api", object, levels(60), levels(60)],
    ["key.reset", "api", object, levels(5), levels(60)],
    ["key.credited", "api", object, levels(-10), levels(5)],
  ]);
});

test("an Idempotency-Key credits tokens once, and the audit log says so", async () => {
  const { post, audit } = await started();
  await post("consume", { policy: "api", key: "alice", cost: 50 });
  const credit = () =>
    post("keys/credit", { policy: "api", key: "alice", cost: 5 }, { headers: { "idempotency-key": "once" } });
  assert.deepEqual((await credit()).body.after, [{ limit: "api", level: 15 }]);
  const { body } = await credit();
  assert.deepEqual([body.replayed, body.before, body.after], [true, undefined, [{ limit: "api", level: 15 }]]);
  const acts = (await audit()).map(({ act, before, replayed }) => [act, before, replayed]);
  assert.deepEqual(acts, [
    ["key.credited", null, true],
    ["key.credited", [{ limit: "api", level: 10 }], undefined],
  ]);
});

test("without a registry an act is logged, and the answer says that it was not recorded", async () => {
  const { tollgate, post } = await started({ registry: false });
  const { body } = await post("keys/reset", { policy: "api", key: "alice" });
  assert.equal(body.recorded, false);
  await tollgate.logged("recorded only in this log");
  const line = tollgate.log.split("\n").find((text) => text.includes("recorded only in this log"));
  const { message } = JSON.parse(line.slice(line.indexOf("{")));
  const act = JSON.parse(message.slice(message.indexOf("{")));
  assert.deepEqual([act.act, act.by, act.policy], ["key.reset", "ops", "api"]);
  assert.match(act.key, /^[0-9a-f]{32}$/);
  assert.ok(!line.includes("alice"));
  const { status } = await post("keys/block", { policy: "api", key: "alice", for_ms: 10_000 });
  assert.equal(status, 404);
});

test("blocks a key temporarily", async () => {
  const { post, wait } = await started();
  const budget = { policy: "api", key: "alice" };
  assert.equal((await post("consume", budget)).status, 200);
  const { status, body } = await post("keys/block", { ...budget, for_ms: 60_000 });
  assert.deepEqual([status, body.created], [200, 1]);
  const { body: refused } = await post("consume", budget);
  assert.deepEqual([refused.allowed, refused.banned, refused.retry_at], [false, true, NOW + 60_000]);
  const { body: why } = await post("keys/explain", budget);
  assert.match(why.explanation, /^Refused: this key is blocked from the policy api until \d{4}-\d\d-\d\d .* UTC\.$/);
  const [shown] = (await post("keys/inspect", { key: "alice" })).body.policies;
  assert.deepEqual([shown.banned, shown.banned_until], [true, NOW + 60_000]);
  wait(60_000);
  assert.equal((await post("consume", budget)).status, 200);
});

/** The hash of the key refused most. */
async function refusedMost({ send }) {
  const { body } = await send("GET", "/v1/metrics/top");
  return body.policies[0].keys[0].object;
}

test("every act accepts the hash of a refused key in place of the key", async () => {
  const service = await started();
  const { post, send, audit } = service;
  const budget = { policy: "api", key: "alice" };
  await post("consume", { ...budget, cost: 60 });
  assert.equal((await post("consume", budget)).status, 429);
  const hash = await refusedMost(service);
  const key = { hash };
  const by = { policy: "api", key };
  const { body: shown } = await post("keys/inspect", { key });
  assert.deepEqual(shown, (await post("keys/inspect", { key: "alice" })).body);
  assert.equal(shown.object, hash);
  assert.match((await post("keys/explain", by)).body.explanation, /^Refused: the limit api allows 100 per 10s/);
  assert.deepEqual((await post("keys/credit", { ...by, cost: 5 })).body.after, [{ limit: "api", level: 5 }]);
  assert.equal((await post("consume", { ...budget, cost: 5 })).status, 200);
  assert.deepEqual((await post("keys/reset", by)).body.after, [{ limit: "api", level: 60 }]);
  assert.equal((await post("keys/block", { ...by, for_ms: 60_000 })).body.created, 1);
  assert.equal((await post("consume", budget)).body.banned, true);
  assert.equal((await post("consume", { policy: "api", key: "bob" })).status, 200);
  // However its key is named, it is one override.
  const listed = await send("GET", `/v1/overrides?policy=api&key=${encodeURIComponent('"alice"')}`);
  assert.deepEqual([listed.body.overrides[0].object, listed.body.overrides[0].override.key], [hash, key]);
  const boost = { overrides: [{ ...budget, multiple: 2 }] };
  assert.equal((await send("PUT", "/v1/overrides", boost)).body.replaced, 1);
  assert.equal((await send("PUT", "/v1/overrides", { removed: [by] })).body.removed, 1);
  assert.equal((await post("consume", budget)).status, 200);
  const acts = await audit();
  assert.deepEqual(
    acts.map(({ act, key }) => [act, key]),
    ["override.deleted", "override.replaced", "override.created", "key.reset", "key.credited"].map((act) => [
      act,
      hash,
    ]),
  );
  await post("keys/reset", { policy: "api", key: "bob" });
  for (const wanted of [key, "alice"]) {
    const query = new URLSearchParams({ key: JSON.stringify(wanted), limit: "3" });
    const { body } = await send("GET", `/v1/audit?${query}`);
    assert.deepEqual([body.acts, body.next], [acts.slice(0, 3), acts[2].number]);
    const { body: rest } = await send("GET", `/v1/audit?${query}&before=${body.next}`);
    assert.deepEqual([rest.acts, rest.next], [acts.slice(3), null]);
  }
});

test("the hash of the key that all callers share names it", async () => {
  const service = await started({ policies: { all: { ...POLICIES.api, key: [] } } });
  const { post, send } = service;
  await post("consume", { policy: "all", cost: 60 });
  assert.equal((await post("consume", { policy: "all" })).status, 429);
  const hash = await refusedMost(service);
  const by = { policy: "all", key: { hash } };
  const { body: shown } = await post("keys/inspect", { key: by.key });
  assert.deepEqual(shown, (await post("keys/inspect", { key: [] })).body);
  assert.match((await post("keys/explain", by)).body.explanation, /^Refused: the limit all allows 100 per 10s/);
  assert.deepEqual((await post("keys/credit", { ...by, cost: 5 })).body.after, [{ limit: "all", level: 5 }]);
  assert.deepEqual((await post("keys/reset", by)).body.after, [{ limit: "all", level: 60 }]);
  assert.equal((await post("keys/block", { ...by, for_ms: 60_000 })).body.created, 1);
  assert.equal((await post("consume", { policy: "all" })).body.banned, true);
  const boost = { overrides: [{ policy: "all", key: [], multiple: 2 }] };
  assert.equal((await send("PUT", "/v1/overrides", boost)).body.replaced, 1, "however it is named, it is one override");
  assert.equal((await send("PUT", "/v1/overrides", { removed: [by] })).body.removed, 1);
  const { status, body } = await post("keys/reset", { policy: "all", key: { hash: "0".repeat(32) } });
  assert.deepEqual([status, body.detail], [400, "`key` must be left out: the policy has one budget for all"]);
});

test("a text that looks like a hash is an ordinary key", async () => {
  const service = await started();
  await service.post("consume", { policy: "api", key: "alice", cost: 60 });
  await service.post("consume", { policy: "api", key: "alice" });
  const hash = await refusedMost(service);
  const { body } = await service.post("keys/inspect", { key: hash });
  assert.deepEqual([body.policies, body.object === hash], [[], false]);
});

test("only an operator may name a key by its hash, and the error says where a hash is not enough", async () => {
  const service = await started();
  const { post, send } = service;
  await post("consume", { policy: "api", key: "team:1", cost: 60 });
  await post("consume", { policy: "api", key: "team:1" });
  const by = { policy: "api", key: { hash: await refusedMost(service) } };
  for (const verb of ["consume", "peek", "inspect", "charge", "refund", "reset"]) {
    const { status, body } = await post(verb, by);
    const detail = "`key` is a `hash`, by which only operators may name a key, under /v1/keys/: give the key itself";
    assert.deepEqual([status, body.detail], [400, detail], verb);
  }
  for (const hash of [by.key.hash.slice(1), `${by.key.hash}0`, 7]) {
    const { status, body } = await post("keys/reset", { policy: "api", key: { hash } });
    const detail = "`key` has a `hash` that is not the 32 hexadecimal digits that lists and logs show of a key";
    assert.deepEqual([status, body.detail], [400, detail], String(hash));
  }
  const before = (await post("keys/inspect", { key: "team:1" })).body.policies;
  await send("PUT", "/v1/overrides", { overrides: [{ policy: "api", prefix: "team:", rate: "30/10s" }] });
  for (const verb of ["explain", "reset", "credit"]) {
    const { status, body } = await post(`keys/${verb}`, by);
    assert.deepEqual([status, body.detail.split(",")[0]], [400, "api has overrides by `prefix`"], verb);
  }
  // It is shown as of its last request, and can be blocked.
  const { body: shown } = await post("keys/inspect", { key: by.key });
  assert.deepEqual(shown.policies, before);
  assert.equal((await post("keys/block", { ...by, for_ms: 60_000 })).body.created, 1);
  assert.equal((await post("consume", { policy: "api", key: "team:1" })).body.banned, true);
  assert.equal((await post("consume", { policy: "api", key: "team:2" })).status, 200);
});

test("a hash reaches all shards of its key", async () => {
  const service = await started({
    policies: { ...POLICIES, hot: { rate: 8, period: "1day", shards: 4, write_ahead: 0 } },
  });
  const { post } = service;
  for (let n = 0; n < 12; n++) await post("consume", { policy: "hot", key: "alice" });
  const key = { hash: await refusedMost(service) };
  const { body } = await post("keys/inspect", { key });
  assert.deepEqual(body, (await post("keys/inspect", { key: "alice" })).body);
  assert.equal((await post("keys/reset", { policy: "hot", key })).status, 200);
  const left = (await post("keys/inspect", { key: "alice" })).body.policies.map(({ limits }) => limits[0].remaining);
  assert.equal(
    left.reduce((sum, part) => sum + part, 0),
    8,
  );
});

test("needs the scope admin and a valid body", async () => {
  const { post } = await started();
  for (const verb of ["inspect", "explain", "reset", "credit", "block"]) {
    const { status, body } = await post(`keys/${verb}`, { policy: "api", key: "alice" }, { token: consumer.text });
    assert.deepEqual([status, body.scope], [403, "admin"], verb);
    assert.equal((await post(`keys/${verb}`, { policy: "api" })).status, 400, verb);
  }
  const { body } = await post("keys/block", { policy: "api", key: "alice", for_ms: 9_999 });
  assert.equal(body.detail, "`for_ms` must be from 10000 to 31622400000, not 9999");
  assert.equal((await post("keys/reset", { policy: "llm", key: "alice" }, { token: some.text })).status, 403);
});

test("RPC does the same, without a token", async () => {
  const before = {
    modules: { "by-rpc.mjs": fileURLToPath(new URL("by-rpc.mjs", import.meta.url)) },
    bindings: {
      TOLLGATE: `service = (name = "main", entrypoint = "Tollgate", props = (json = "{\\"scopes\\":[\\"consume\\",\\"admin\\"]}"))`,
    },
  };
  const { tollgate } = await started({ before });
  const call = async (verb, ask, options) =>
    (await tollgate.send({ path: "/before", body: JSON.stringify({ verb, ask, options }) })).body;
  const budget = { policy: "api", key: "alice" };
  await call("consume", { ...budget, cost: 58 });
  const told = await call("keys.explain", { ...budget, cost: 7 });
  assert.match(told.explanation, /^Refused: /);
  const credit = () => call("keys.credit", { ...budget, cost: 2 }, { idempotencyKey: "credit" });
  const given = await credit();
  assert.deepEqual([given.status, given.recorded, given.replayed], [200, true, undefined]);
  assert.equal((await credit()).replayed, true);
  assert.equal((await call("keys.reset", budget)).recorded, true);
  assert.equal((await call("keys.block", { ...budget, for_ms: 60_000 })).created, 1);
  const [shown] = (await call("keys.inspect", { key: "alice" })).policies;
  assert.deepEqual([shown.policy, shown.banned, shown.banned_until > 0], ["api", true, true]);
  assert.equal((await call("consume", budget)).banned, true);
  const wrong = await call("keys.block", budget);
  assert.deepEqual([wrong.status, wrong.detail], [400, "the field `for_ms` is missing"]);
  for (const verb of ["keys.env", "keys.other"]) assert.match((await call(verb)).thrown, /does not implement/, verb);
});
