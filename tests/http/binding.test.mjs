// The rights of a service binding: those in its `props`, by RPC and by `fetch`, whatever comes through it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { contract } from "./contract.mjs";
import { newToken } from "./credentials.mjs";
import { start } from "./workerd.mjs";

const all = newToken("consume", "adjust", "admin");
const policies = {
  api: { rate: 1_000, period: "1day", lease: "2s", max_debt: 1_000 },
  other: { rate: 1_000, period: "1day" },
  spent: { rate: 0, period: "1day", capacity: 10 },
  few: { rate: 2, period: "1day" },
};

/** A service, and how to call it through a binding with these `props`. */
async function bound(props, entrypoint = "Tollgate") {
  const designated = props === undefined ? "" : `, props = (json = ${JSON.stringify(JSON.stringify(props))})`;
  const before = {
    modules: { "by-rpc.mjs": fileURLToPath(new URL("by-rpc.mjs", import.meta.url)) },
    bindings: { TOLLGATE: `service = (name = "main", entrypoint = "${entrypoint}"${designated})` },
  };
  const tollgate = await start({ policies, registry: true, tokens: { all: all.entry }, before });
  // A visitor's own credential, which must be ignored.
  const headers = { authorization: `Bearer ${all.text}` };
  const call = async (verb, ask, options) =>
    (await tollgate.send({ path: "/before", body: JSON.stringify({ verb, ask, options }), headers })).body;
  const pass = (method, path, body) => call("fetch", path, { method, body: body && JSON.stringify(body) });
  return { tollgate, call, pass };
}

const api = { policy: "api", key: "acme:alice" };
const SCOPES = {
  consume: { consume: api, peek: api, inspect: api, batch: { requests: [api] } },
  adjust: { charge: api, refund: api, reset: api },
};
const KEYS = {
  inspect: { key: "acme:alice" },
  explain: api,
  reset: api,
  credit: { ...api, cost: 1 },
  block: { ...api, for_ms: 60_000 },
};
const ADMIN = Object.entries(contract.paths).flatMap(([path, item]) =>
  /policies|overrides|audit|metrics|decisions/.test(path)
    ? ["get", "put", "delete"].filter((method) => item[method]).map((method) => [method.toUpperCase(), path])
    : [],
);

/** Calls everything by RPC and by `fetch`, and checks that exactly these scopes are allowed. */
async function assertScopes({ call, pass }, scopes) {
  for (const [scope, verbs] of Object.entries(SCOPES)) {
    const status = scopes.includes(scope) ? 200 : 403;
    for (const [verb, ask] of Object.entries(verbs)) {
      const answer = await call(verb, ask);
      assert.equal(answer.status, status, `${verb}: ${JSON.stringify(answer)}`);
      const passed = await pass("POST", `/v1/${verb}`, ask);
      assert.equal(passed.status, status, `${verb}: ${passed.text}`);
    }
  }
  // Of a reservation that does not exist.
  for (const verb of ["settle", "cancel", "extend"]) {
    const ask = { ...api, reservation: "0000000000001" };
    const status = scopes.includes("consume") ? 404 : 403;
    const answer = await call(verb, ask);
    assert.equal(answer.status, status, `${verb}: ${JSON.stringify(answer)}`);
    assert.equal((await pass("POST", `/v1/${verb}`, ask)).status, status, verb);
  }
  if (scopes.includes("consume")) {
    const spent = { policy: "spent", key: "acme:alice" };
    const { reservation } = await call("consume", { ...spent, mode: "reserve" });
    const extended = await call("extend", { ...spent, reservation, cost: 2 });
    assert.deepEqual([extended.status, extended.reservation, extended.remaining], [200, reservation, 7]);
    const settled = await call("settle", { ...spent, reservation, cost: 1 });
    assert.deepEqual([settled.status, settled.tokens, settled.remaining], [200, 1, 9]);
  }
  const leased = await pass("POST", "/v1/lease", { ...api, tokens: 1 });
  assert.equal(leased.status, scopes.includes("adjust") ? 200 : 403, leased.text);
  const isAdmin = scopes.includes("admin");
  for (const [verb, ask] of Object.entries(KEYS)) {
    const answer = await call(`keys.${verb}`, ask);
    assert.equal(answer.status === 403, !isAdmin, `keys.${verb}: ${JSON.stringify(answer)}`);
    const passed = await pass("POST", `/v1/keys/${verb}`, ask);
    assert.equal(passed.status === 403, !isAdmin, `keys/${verb}: ${passed.text}`);
  }
  assert.ok(ADMIN.length >= 10, "the contract has them");
  for (const [method, path] of ADMIN) {
    const body = method === "PUT" ? { rate: 1, period: "1s" } : undefined;
    const passed = await pass(method, path.replace("{name}", "api"), body);
    assert.equal(passed.status === 403, !isAdmin, `${method} ${path}: ${passed.text}`);
  }
}

for (const props of [undefined, {}]) {
  test(`props ${JSON.stringify(props)}: may consume and adjust, and nothing else`, async () => {
    const service = await bound(props);
    await assertScopes(service, ["consume", "adjust"]);
    const plan = { policy: "plan", key: "k", limits: "5/1h" };
    assert.match((await service.call("consume", plan)).detail, /this service binding may not bring `limits`/);
    const forbidden = await service.call("keys.reset", api);
    assert.equal(forbidden.scope, "admin");
    assert.match(forbidden.detail, /^reset needs the scope admin, which the `props` of a service binding can give/);
    assert.equal((await service.pass("GET", "/healthz")).status, 200);
    assert.equal((await service.pass("POST", "/v1/session", { captcha: "x" })).status, 404);
    await service.tollgate.stop();
  });
}

for (const scopes of [["consume"], ["adjust"], ["admin"], ["consume", "adjust", "admin"]]) {
  test(`scopes ${scopes}: these, and no others`, async () => {
    const service = await bound({ scopes });
    await assertScopes(service, scopes);
    await service.tollgate.stop();
  });
}

test("policies, key_prefix and inline bound every verb", async () => {
  const { tollgate, call, pass } = await bound({ policies: ["api", "plan"], key_prefix: "acme:", inline: true });
  const plan = { policy: "plan", key: "acme:bob", limits: "5/1h" };
  for (const [verb, ask, status] of [
    ["consume", api, 200],
    ["consume", plan, 200],
    ["consume", { ...plan, key: "bob" }, 403],
    ["consume", { ...api, policy: "other" }, 403],
    ["consume", { ...api, policy: "unheard-of" }, 403],
    ["consume", { policy: "api" }, 403],
    ...["acme", "Acme:alice", " acme:alice", "", ["acme:alice"], { ip: "192.0.2.1" }].map((key) => [
      "consume",
      { ...api, key },
      key === "" ? 400 : 403,
    ]),
    ...["peek", "inspect", "charge", "refund", "reset"].map((verb) => [verb, { ...api, key: "bob" }, 403]),
    ...["settle", "cancel", "extend"].map((verb) => [verb, { ...api, key: "bob", reservation: "1" }, 403]),
    ["batch", { requests: [api, { ...api, key: "bob" }] }, 403],
    ["batch", { requests: [api, { ...api, policy: "other" }] }, 403],
  ]) {
    const answer = await call(verb, ask);
    assert.equal(answer.status, status, `${verb} ${JSON.stringify(ask)}: ${JSON.stringify(answer)}`);
    const passed = await pass("POST", `/v1/${verb}`, ask);
    assert.equal(passed.status, status, `${verb} ${JSON.stringify(ask)}: ${passed.text}`);
  }
  assert.equal((await pass("POST", "/v1/lease", { ...api, key: "bob" })).status, 403);
  assert.equal((await pass("POST", "/v1/lease", api)).status, 200);
  await tollgate.stop();
});

test("a mistake in `props` is a 500 for every call, and the log names it", async () => {
  for (const [props, line] of [
    [{ scope: ["admin"] }, "scope is not a field of it; its fields are scopes, policies, inline, key_prefix"],
    [{ scopes: ["root"] }, "there is no scope root; there are consume, adjust, admin"],
    [{ scopes: [] }, "must be a list of one or more of consume, adjust, admin"],
    [{ scopes: ["admin"], key_prefix: "a" }, "is for consume and adjust: admin is about all keys"],
  ]) {
    const { tollgate, call, pass } = await bound(props);
    for (const answer of [await call("consume", api), await call("keys.inspect", KEYS.inspect)]) {
      const { status, type } = answer;
      assert.deepEqual([status, type], [500, "urn:problem-type:tollgate:misconfigured"], JSON.stringify(answer));
    }
    assert.equal((await pass("GET", "/v1/policies")).status, 500);
    await tollgate.logged(line);
    await tollgate.stop();
  }
});

test("RateLimit has the method of the platform's binding, and no other right", async () => {
  const { tollgate, call, pass } = await bound({ policy: "few" }, "RateLimit");
  const answers = [];
  for (const key of ["alice", "alice", "alice", "bob"]) answers.push((await call("limit", { key })).success);
  assert.deepEqual(answers, [true, true, false, true]);
  for (const [ask, thrown] of [
    [{}, /tollgate: .*key/],
    [{ key: 7 }, /tollgate: .*key/],
    [{ key: "" }, /tollgate: .*key/],
    [{ key: "x".repeat(10_000) }, /tollgate: .*key/],
    [{ key: "alice", delta: 2 }, /tollgate: limit takes { key }, not delta/],
    [undefined, /tollgate: .*key/],
  ]) {
    assert.match((await call("limit", ask)).thrown, thrown);
  }
  for (const verb of ["consume", "reset", "keys.block"])
    assert.match((await call(verb, api)).thrown, /TypeError/, verb);
  assert.notEqual((await pass("POST", "/v1/consume", { policy: "few", key: "carol" })).status, 200);
  assert.notEqual((await pass("GET", "/v1/policies")).status, 200);
  await tollgate.stop();
});

test("RateLimit without a policy that exists says what is wrong", async () => {
  const needs = /the `props` of .* have the name of its policy, such as \{ policy = "api" \}/;
  for (const [props, key, thrown] of [
    [undefined, "alice", needs],
    [{}, "alice", needs],
    [{ policy: 7 }, "alice", needs],
    [{ policy: "few", key_prefx: "acme:" }, "alice", needs],
    [{ policy: "few", scopes: ["admin"] }, "alice", needs],
    [{ policy: "typo" }, "alice", /tollgate: .*typo/],
    [{ policy: "few", key_prefix: "acme:" }, "alice", /acme:/],
  ]) {
    const { tollgate, call } = await bound(props, "RateLimit");
    assert.match((await call("limit", { key })).thrown ?? "", thrown, JSON.stringify(props));
    await tollgate.stop();
  }
  const { tollgate, call } = await bound({ policy: "few", key_prefix: "acme:" }, "RateLimit");
  assert.deepEqual(await call("limit", { key: "acme:alice" }), { success: true });
  await tollgate.stop();
});
