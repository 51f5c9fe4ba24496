// A service in two lines, and other Workers with a service binding to it: one `wrangler dev` with both, or two.
import assert from "node:assert/strict";
import { test } from "node:test";
import { KEY_SECRET, makeProject, TOKEN, tokens, wranglerDev } from "./stranger.mjs";

const POLICIES = {
  api: { rate: 1, period: "1day", capacity: 3, write_ahead: 0 },
  b: { rate: 1, period: "1day" },
  soon: { rate: 10, period: "1s", capacity: 1, max_debt: 10 },
};
/** A service and a Worker with a binding to it. Wrangler's processes find each other by these names, for a while even after one ended. */
function makePair(name, policies = POLICIES, props = { inline: true }) {
  const service = `service-${name}`;
  const vars = { POLICIES: policies, TOLLGATE_TOKENS: tokens("consume", "adjust"), TOLLGATE_KEY_SECRET: KEY_SECRET };
  const services = [{ binding: "TOLLGATE", service, entrypoint: "Tollgate", ...(props && { props }) }];
  return {
    service: makeProject(service, { main: "service.mjs", vars }),
    caller: makeProject(`caller-${name}`, { main: "caller.mjs", classes: {}, services }),
  };
}

/** What a Worker with the binding must get, by RPC and by `fetch`. */
async function checkBoth(worker, key) {
  const ask = (way, verb, value, headers) => worker.post(`/${way}/${verb}`, value, headers);
  const answers = [];
  for (const way of ["rpc", "fetch"]) answers.push((await ask(way, "consume", { policy: "api", key })).body);
  for (const [i, { status, allowed, remaining, headers, ...others }] of answers.entries()) {
    assert.deepEqual([status, allowed, remaining], [200, true, 2 - i], `${worker.log}`);
    assert.deepEqual(Object.keys(others).sort(), ["cost", "limit", "near_limit", "now", "policy", "reset_at"]);
    assert.ok(headers.ratelimit.startsWith(`"api";r=${2 - i};t=`));
    assert.equal(headers["content-type"], "application/json");
  }
  const refused = [];
  for (const way of ["rpc", "fetch"]) refused.push((await ask(way, "consume", { policy: "api", key, cost: 2 })).body);
  for (const { status, allowed, headers, ...others } of refused) {
    assert.deepEqual([status, allowed, others.title], [429, false, "Quota exceeded"]);
    assert.equal(headers["retry-after"], String(Math.ceil(others.retry_after_ms / 1_000)));
  }
  for (const way of ["rpc", "fetch"]) {
    const wrong = (await ask(way, "consume", { policy: "typo", key })).body;
    assert.deepEqual([wrong.status, wrong.type], [404, "urn:problem-type:tollgate:unknown-policy"]);
    const requests = [
      { policy: "b", key: `${key}-1` },
      { policy: "b", key: `${key}-${way}` },
    ];
    const batch = (await ask(way, "batch", { requests })).body;
    assert.equal(batch.status, way === "rpc" ? 200 : 429, "the first key is spent");
    const plan = { policy: "plan", key: `${key}-${way}`, limits: { rate: "5/1day", write_ahead: 0 } };
    assert.equal((await ask(way, "consume", plan)).body.remaining, 4, "its own limits");
    const idempotent = { "idempotency-key": `${key}-${way}` };
    const repeated = { policy: "b", key: `${key}-repeated-${way}` };
    assert.equal((await ask(way, "consume", repeated, idempotent)).body.replayed, undefined);
    assert.equal((await ask(way, "consume", repeated, idempotent)).body.replayed, true);
  }
  const soon = { policy: "soon", key };
  const acquired = await Promise.all([soon, soon].map((value) => ask("acquire", "", value)));
  assert.deepEqual(
    acquired.map(({ body }) => [body.status, body.cost]),
    Array(2).fill([200, 1]),
  );
  assert.equal((await ask("rpc", "inspect", soon)).body.open_reservations, 0);
}

test("one `wrangler dev` with both", async () => {
  const { service, caller } = makePair("one");
  const both = await wranglerDev([caller, service]);
  await checkBoth(both, "one");
  await both.kill();
});

test("a `wrangler dev` for each; by HTTP the service still asks for a token", async () => {
  const { service, caller } = makePair("two");
  let theirs = await wranglerDev([service]);
  const ours = await wranglerDev([caller]);
  await checkBoth(ours, "two");
  const byHttp = (headers) => theirs.post("/v1/consume", { policy: "api", key: "two", cost: 0 }, headers);
  assert.equal((await byHttp()).status, 401);
  assert.deepEqual((await byHttp({ authorization: `Bearer ${TOKEN}` })).body.remaining, 1);
  await theirs.kill();
  theirs = await wranglerDev([service]);
  assert.deepEqual((await byHttp({ authorization: `Bearer ${TOKEN}` })).body.remaining, 1, "kept through a power cut");
});

test("a service without the binding for its objects answers nothing, and says what to add", async () => {
  const pair = makePair("unbound");
  const vars = { POLICIES, TOLLGATE_TOKENS: tokens("consume", "adjust"), TOLLGATE_KEY_SECRET: KEY_SECRET };
  const service = makeProject("service-unbound", { main: "service.mjs", classes: {}, vars });
  const worker = await wranglerDev([pair.caller, service]);
  for (const way of ["rpc", "fetch"]) {
    const { body } = await worker.post(`/${way}/consume`, { policy: "api", key: "k" });
    assert.deepEqual([body.status, body.type], [500, "urn:problem-type:tollgate:misconfigured"]);
    assert.match(body.detail, /KEYS: no Durable Object namespace is bound under this name: add a binding/);
  }
  await worker.logged("settings: KEYS: no Durable Object namespace is bound under this name");
  assert.equal(worker.log.split("settings: KEYS").length, 2, "once, not for each request");
});

test("a service whose settings have errors says so in its log, and only that in its answers", async () => {
  const { service, caller } = makePair("broken", { a: { rate: 1 } });
  const worker = await wranglerDev([caller, service]);
  for (const way of ["rpc", "fetch"]) {
    const { body } = await worker.post(`/${way}/consume`, { policy: "a", key: "k" });
    assert.deepEqual([body.status, body.type], [500, "urn:problem-type:tollgate:misconfigured"]);
  }
  await worker.logged("settings: POLICIES.a.period: is missing");
});

test("without `props` a binding may consume and adjust, but not operate or bring numbers, for any caller", async () => {
  const { service, caller } = makePair("plain", POLICIES, null);
  const worker = await wranglerDev([caller, service]);
  const api = { policy: "api", key: "plain" };
  const headers = { authorization: `Bearer ${TOKEN}` };
  for (const verb of ["consume", "peek", "charge", "refund", "reset", "inspect"]) {
    const { body } = await worker.post(`/rpc/${verb}`, api, headers);
    assert.equal(body.status, 200, `${verb}: ${JSON.stringify(body)}`);
    assert.equal((await worker.post(`/pass/v1/${verb}`, api, headers)).status, 200, verb);
  }
  for (const [verb, ask] of Object.entries({ ...KEY_VERBS, reset: api })) {
    const { body } = await worker.post(`/keys/${verb}`, ask);
    assert.deepEqual([body.status, body.scope], [403, "admin"], `${verb}: ${JSON.stringify(body)}`);
    assert.equal((await worker.post(`/pass/v1/keys/${verb}`, ask, headers)).status, 403, verb);
  }
  for (const path of ["policies", "overrides", "audit", "metrics", "metrics/top", "decisions"])
    assert.equal((await worker.send(`/pass/v1/${path}`, { headers })).status, 403, path);
  const { body } = await worker.post("/rpc/consume", { policy: "plan", key: "k", limits: "5/1h" });
  assert.deepEqual([body.status, /inline = true/.test(body.detail)], [403, true], JSON.stringify(body));
  assert.equal((await worker.send("/pass/healthz")).status, 200);
  assert.equal((await worker.post("/pass/v1/session", { captcha: "x" })).status, 404);
});

test("`props` say the scopes, the policies and the keys of a binding, by RPC and by `fetch`", async () => {
  const props = { scopes: ["consume"], policies: ["api"], key_prefix: "acme:" };
  const { service, caller } = makePair("less", POLICIES, props);
  const worker = await wranglerDev([caller, service]);
  const ours = { policy: "api", key: "acme:alice" };
  for (const [verb, ask, status] of [
    ["consume", ours, 200],
    ["consume", { ...ours, key: "other:alice" }, 403],
    ["consume", { ...ours, key: ["acme:alice"] }, 403],
    ["consume", { ...ours, policy: "b" }, 403],
    ["inspect", { ...ours, key: "acme" }, 403],
    ["batch", { requests: [ours, { ...ours, key: "bob" }] }, 403],
    ["reset", ours, 403],
    ["charge", ours, 403],
  ]) {
    const { body } = await worker.post(`/rpc/${verb}`, ask);
    assert.equal(body.status, status, `${verb} ${JSON.stringify(ask)}: ${JSON.stringify(body)}`);
    assert.equal((await worker.post(`/pass/v1/${verb}`, ask)).status, status, verb);
  }
});

test("`props` with the scope `admin` may operate; with a mistake every call is a 500, and the log names it", async () => {
  const operator = makePair("operator", POLICIES, { scopes: ["admin"] });
  let worker = await wranglerDev([operator.caller, operator.service]);
  const { body } = await worker.post("/keys/explain", { policy: "api", key: "k" });
  assert.equal(body.status, 200, JSON.stringify(body));
  assert.equal((await worker.post("/rpc/consume", { policy: "api", key: "k" })).body.status, 403);
  await worker.kill();
  const wrong = makePair("wrong", POLICIES, { scope: ["admin"] });
  worker = await wranglerDev([wrong.caller, wrong.service]);
  for (const path of ["/rpc/consume", "/keys/explain"]) {
    const { body } = await worker.post(path, { policy: "api", key: "k" });
    assert.deepEqual([body.status, body.type], [500, "urn:problem-type:tollgate:misconfigured"], path);
  }
  assert.equal((await worker.post("/pass/v1/consume", { policy: "api", key: "k" })).status, 500);
  await worker.logged(
    "the service binding's props: scope is not a field of it; its fields are scopes, policies, inline, key_prefix",
  );
});

test("the entry point RateLimit takes the place of the platform's rate limiting binding", async () => {
  const { service } = makePair("platform");
  const props = { policy: "api" };
  const services = [{ binding: "LIMITER", service: "service-platform", entrypoint: "RateLimit", props }];
  const caller = makeProject("caller-platform", { main: "platform.mjs", classes: {}, services });
  const worker = await wranglerDev([caller, service]);
  for (const way of ["plain", "hono"]) {
    const statuses = [];
    for (const key of ["a", "a", "a", "a", "b"]) statuses.push((await worker.send(`/${way}/${way}-${key}`)).status);
    assert.deepEqual(statuses, [200, 200, 200, 429, 200], way);
  }
  await worker.kill();
});

const KEY_VERBS = {
  inspect: { key: "plain" },
  explain: { policy: "api", key: "plain" },
  credit: { policy: "api", key: "plain", cost: 1 },
  block: { policy: "api", key: "plain", for_ms: 60_000 },
};
