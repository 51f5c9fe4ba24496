// Rights: every endpoint of the contract with every kind of credential, and by targets and hosts that other URL parsers read
// differently. A denied request changes nothing.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { connect } from "node:net";
import { after, test } from "node:test";
import { contract } from "./contract.mjs";
import { bearer, CLAIMS, jwt, NOW_S, newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const KEY = "alice";
const api = { policy: "api", key: KEY };

/**
 * Each operation of the contract: the scope it needs, a body, an optional query, and the status when allowed. `restricted` is
 * the status for an operator's token restricted to another policy, 403 by default. To the registry that policy does not exist.
 */
const OPERATIONS = {
  "POST /v1/consume": { scope: "consume", body: api },
  "POST /v1/peek": { scope: "consume", body: api },
  "POST /v1/inspect": { scope: "consume", body: api },
  "POST /v1/settle": { scope: "consume", body: { ...api, reservation: "1" }, status: 404 },
  "POST /v1/cancel": { scope: "consume", body: { ...api, reservation: "1" }, status: 404 },
  "POST /v1/extend": { scope: "consume", body: { ...api, reservation: "1" }, status: 404 },
  "POST /v1/batch": { scope: "consume", body: { requests: [api] } },
  "POST /v1/charge": { scope: "adjust", body: api },
  "POST /v1/refund": { scope: "adjust", body: api },
  "POST /v1/reset": { scope: "adjust", body: api },
  "POST /v1/lease": { scope: "adjust", body: api },
  "POST /v1/keys/inspect": { scope: "admin", body: { key: KEY }, restricted: 200 },
  "POST /v1/keys/explain": { scope: "admin", body: api },
  "POST /v1/keys/reset": { scope: "admin", body: api },
  "POST /v1/keys/credit": { scope: "admin", body: { ...api, cost: 1 } },
  "POST /v1/keys/block": { scope: "admin", body: { ...api, for_ms: 60_000 }, restricted: 404 },
  "GET /v1/policies": { scope: "admin", restricted: 200 },
  "GET /v1/policies/{name}": { scope: "admin" },
  "PUT /v1/policies/{name}": { scope: "admin", body: { rate: 1, period: "1s" }, status: 428 },
  "DELETE /v1/policies/{name}": { scope: "admin", status: 428 },
  "GET /v1/overrides": { scope: "admin", query: `policy=api&key="${KEY}"`, restricted: 400 },
  "PUT /v1/overrides": {
    scope: "admin",
    body: { overrides: [{ ...api, banned: true }] },
    query: "dry_run=true",
    restricted: 400,
  },
  "DELETE /v1/overrides": { scope: "admin", query: `policy=api&key="${KEY}"&dry_run=true`, restricted: 400 },
  "GET /v1/audit": { scope: "admin", restricted: 200 },
  "GET /v1/metrics": { scope: "admin", restricted: 200 },
  "GET /v1/metrics/top": { scope: "admin", restricted: 200 },
  "GET /v1/decisions": { scope: "admin", restricted: 200 },
  "POST /v1/session": { scope: null, body: { captcha: "x" } },
  "GET /healthz": { scope: null },
  "GET /v1/openapi.json": { scope: null },
};

const OF_CONTRACT = Object.entries(contract.paths).flatMap(([path, item]) =>
  ["get", "put", "post", "delete", "patch"]
    .filter((method) => item[method])
    .map((method) => `${method.toUpperCase()} ${path}`),
);

const GRANT_KEY = randomBytes(32);
const grant = (claims) => jwt(GRANT_KEY, { alg: "HS256", kid: "k" }, { ...CLAIMS, key: KEY, ...claims });
const verifier = createServer((_, response) => response.end('{"success":true}'));
await new Promise((listening) => verifier.listen(0, "127.0.0.1", listening));
after(() => verifier.close());

const rights = {
  consume: { scopes: ["consume"] },
  adjust: { scopes: ["adjust"] },
  both: { scopes: ["consume", "adjust"] },
  inline: { scopes: ["consume", "adjust"], inline: true },
  elsewhere: { scopes: ["consume", "adjust"], policies: ["other"] },
  prefixed: { scopes: ["consume", "adjust"], key_prefix: "acme:" },
  operator: { scopes: ["admin"] },
  restricted: { scopes: ["admin"], policies: ["other"] },
  all: { scopes: ["consume", "adjust", "admin"] },
};
const tokens = Object.fromEntries(
  Object.entries(rights).map(([name, rights]) => {
    const { text, entry } = newToken();
    return [name, { text, entry: { ...entry, ...rights } }];
  }),
);
const tollgate = await start({
  policies: {
    api: { rate: 100, period: "1day", lease: "2s", max_debt: 1_000 },
    other: { rate: 100, period: "1day" },
    visits: { rate: 10_000, period: "1day" },
  },
  token: null,
  tokens: Object.fromEntries(Object.entries(tokens).map(([name, { entry }]) => [name, entry])),
  grantKeys: JSON.stringify({ k: GRANT_KEY.toString("base64url") }),
  sessions: { policy: "visits", policies: ["api"], verify_url: `http://127.0.0.1:${verifier.address().port}/` },
  captchaSecret: "the-turnstile-secret-of-the-tests",
  registry: true,
});
const VISITOR = { "cf-connecting-ip": "192.0.2.1" };
const session = await tollgate.post("session", { captcha: "x" }, { headers: { authorization: null, ...VISITOR } });

/** The values of `Authorization`. */
const CREDENTIALS = {
  none: null,
  "a wrong token": "Bearer tg_wrong",
  "another scheme": `Basic ${tokens.all.text}`,
  "an expired grant": `Bearer ${grant({ exp: NOW_S - 1 })}`,
  "a grant to consume": `Bearer ${grant({ verbs: ["consume"] })}`,
  "a grant for everything": `Bearer ${grant()}`,
  "a grant for another key": `Bearer ${grant({ key: "bob" })}`,
  "a grant for another policy": `Bearer ${grant({ policies: ["other"] })}`,
  "a visitor's grant": `Bearer ${session.body.grant}`,
  ...Object.fromEntries(Object.entries(tokens).map(([name, { text }]) => [name, `Bearer ${text}`])),
};
const NONE = ["none", "a wrong token", "another scheme", "an expired grant"];

/** The status of this operation with this credential. */
function expected(operation, credential) {
  const { scope, status = 200, restricted = 403 } = OPERATIONS[operation];
  if (scope === null) return status;
  if (NONE.includes(credential)) return 401;
  const verb = operation.split("/").at(-1);
  switch (credential) {
    case "a grant to consume":
      return scope === "consume" && verb === "consume" ? status : 403;
    case "a grant for everything":
      return scope === "consume" ? status : 403;
    case "a grant for another key":
    case "a grant for another policy":
    case "a visitor's grant":
    case "elsewhere":
    case "prefixed":
      return 403;
    case "restricted":
      return scope === "admin" ? restricted : 403;
    default:
      return rights[credential].scopes.includes(scope) ? status : 403;
  }
}

const ALICE_OF_OPERATOR = bearer(tokens.all.text);
const ACTS_ON_KEYS = ["reset", "credit", "block"];

/** Everything that must not change. */
async function state() {
  const inspected = await tollgate.post("inspect", api, ALICE_OF_OPERATOR);
  const read = async (path) => (await tollgate.send({ method: "GET", path, ...ALICE_OF_OPERATOR })).body;
  const { acts } = await read("/v1/audit");
  return {
    limits: inspected.body.limits,
    policies: await read("/v1/policies"),
    overrides: await read("/v1/overrides"),
    acts: acts.length,
  };
}

const send = (operation, credential) => {
  const [method, pattern] = operation.split(" ");
  const { body, query } = OPERATIONS[operation];
  const path = pattern.replace("{name}", "api") + (query ? `?${encodeURI(query)}` : "");
  const headers = { authorization: CREDENTIALS[credential], ...VISITOR };
  return tollgate.send({ method, path, body: body && JSON.stringify(body), headers });
};

test("the matrix covers exactly the operations of the contract", () => {
  assert.deepEqual(Object.keys(OPERATIONS).sort(), OF_CONTRACT.sort());
});

test("what a credential does not allow is refused, and nothing changes", async () => {
  assert.equal((await tollgate.consume({ ...api, cost: 60 }, ALICE_OF_OPERATOR)).status, 200);
  const before = await state();
  for (const credential of Object.keys(CREDENTIALS)) {
    for (const operation of Object.keys(OPERATIONS)) {
      const status = expected(operation, credential);
      if (status !== 401 && status !== 403) continue;
      const answer = await send(operation, credential);
      assert.equal(answer.status, status, `${operation} with ${credential}: ${answer.text}`);
    }
  }
  assert.deepEqual(await state(), before);
});

test("what a credential allows is done", async () => {
  for (const credential of Object.keys(CREDENTIALS)) {
    for (const operation of Object.keys(OPERATIONS)) {
      const status = expected(operation, credential);
      if (status === 401 || status === 403) continue;
      const answer = await send(operation, credential);
      assert.equal(answer.status, status, `${operation} with ${credential}: ${answer.text}`);
      if (operation === "POST /v1/keys/block") await unblock();
    }
  }
});

/** So that later requests are not refused for the ban. */
async function unblock() {
  const path = `/v1/overrides?policy=api&key=${encodeURIComponent(`"${KEY}"`)}`;
  assert.equal((await tollgate.send({ method: "DELETE", path, ...ALICE_OF_OPERATOR })).status, 200);
}

/** Hosts in which another parser of URLs finds the path of an operator's act. */
const HOSTS = [
  ...ACTS_ON_KEYS.concat("explain", "inspect").map((act) => `x\\v1\\keys\\${act}?`),
  ...ACTS_ON_KEYS.map((act) => `x\\v1\\keys\\${act}#`),
  "x?",
  "x#",
  "x\\",
  "user@x",
  "x:8o",
  "x y",
  "[::1",
  "x\u00e9",
];

/** Targets, and the operation that each means, if any. */
const TARGETS = {
  "/v1/consume?/v1/keys/": "POST /v1/consume",
  "/v1/consume?/v1/keys/reset": "POST /v1/consume",
  "/v1/consume#/v1/keys/reset": "POST /v1/consume",
  "/v1/keys/reset?/v1/consume": "POST /v1/keys/reset",
  "/v1/keys/credit#/v1/consume": "POST /v1/keys/credit",
  "//v1/keys/reset": null,
  "/v1//keys/reset": null,
  "/v1/keys//reset": null,
  "/v1/keys/reset/": null,
  "/v1/consume/../keys/reset": null,
  "/v1/./keys/reset": null,
  "/v1/keys/%72eset": null,
  "/v1%2Fkeys%2Freset": null,
  "/v1\\keys\\reset": null,
  "/v1/consume\\..\\keys\\reset": null,
  "/V1/KEYS/RESET": null,
  "/v1/keys/reset;x": null,
  [`/${"x".repeat(5_000)}`]: null,
};

/** Other targets of an operation: those that mean the same, and those that mean nothing. */
function targetsLike(operation) {
  const path = operation.split(" ")[1].replace("{name}", "api");
  const last = path.at(-1);
  const others = [
    `/${path}`,
    `${path}/`,
    `${path}\\`,
    `${path};x`,
    path.replace("/v1/", "/v1//"),
    path.replace("/v1/", "/v1/./"),
    path.replace("/v1/", "/v1/x/../"),
    path[0] + path.slice(1).replaceAll("/", "\\"),
    path.toUpperCase(),
  ];
  // In a name it would be the same name.
  if (!operation.endsWith("}")) others.push(`${path.slice(0, -1)}%${last.charCodeAt(0).toString(16)}`);
  const same = [`${path}?/v1/consume`, `${path}?x=/v1/keys/reset`, `${path}#/v1/keys/reset`];
  return { same, others: others.filter((target) => target !== path) };
}

/** Sends a request exactly as written; `null` if the runtime closes the connection without an answer. */
function sendRaw(target, host, credential, body, method = "POST") {
  const lines = [
    `${method} ${target} HTTP/1.1`,
    ...(host === null ? [] : [`Host: ${host}`]),
    ...(CREDENTIALS[credential] === null ? [] : [`Authorization: ${CREDENTIALS[credential]}`]),
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(body)}`,
    `X-Tollgate-Test-Now: ${NOW}`,
    "Connection: close",
  ];
  return new Promise((resolve, reject) => {
    const socket = connect(tollgate.port, "127.0.0.1", () => socket.write(`${lines.join("\r\n")}\r\n\r\n${body}`));
    const chunks = [];
    socket.on("data", (chunk) => chunks.push(chunk));
    socket.on("error", reject);
    socket.on("close", () => {
      const text = Buffer.concat(chunks).toString();
      resolve(text === "" ? null : { status: Number(text.split(" ")[1]), text });
    });
  });
}

/** Valid for what the host or the target says. */
const bodyOf = (text, operation) =>
  JSON.stringify(OPERATIONS[operation]?.body ?? (text?.includes("credit") ? { ...api, cost: 1 } : api));

test("a host that could hide another path is a 400 for every caller", async () => {
  const before = await state();
  for (const credential of Object.keys(CREDENTIALS)) {
    for (const host of HOSTS) {
      for (const target of ["/v1/consume?/v1/keys/", "/v1/keys/reset", "/v1/policies"]) {
        const answer = await sendRaw(target, host, credential, bodyOf(host));
        assert.equal(answer.status, 400, `${target} of ${host} with ${credential}: ${answer.text}`);
        assert.match(answer.text, /"detail":"the host, as in the header `Host`, has /, host);
      }
    }
  }
  assert.deepEqual(await state(), before);
});

test("a host with a path in it is a request for that path, and needs its scope", async () => {
  const before = await state();
  for (const host of ["x/v1/keys/reset?", "x/v1/keys/reset#", "x/v1/keys/credit?"]) {
    for (const credential of ["none", "a grant for everything", "consume", "adjust", "both", "restricted"]) {
      const answer = await sendRaw("/v1/consume?/v1/keys/", host, credential, bodyOf(host));
      assert.equal(answer.status, credential === "none" ? 401 : 403, `${host} with ${credential}: ${answer.text}`);
    }
  }
  assert.deepEqual(await state(), before);
});

test("a request without a host is never carried out", async () => {
  const before = await state();
  for (const host of ["", null, ":80"]) {
    const answer = await sendRaw("/v1/keys/reset", host, "all", bodyOf(host));
    assert.ok(answer === null || answer.status === 400, `${host}: ${answer?.text}`);
  }
  assert.deepEqual(await state(), before);
});

test("a target is matched byte for byte, for each credential", async () => {
  const spent = async () => (await state()).limits[0].remaining;
  for (const credential of Object.keys(CREDENTIALS)) {
    for (const [target, operation] of Object.entries(TARGETS)) {
      const nothing = NONE.includes(credential) ? 401 : 404;
      const status = operation === null ? nothing : expected(operation, credential);
      // Operators' acts change the level, so it cannot be compared.
      const before = status < 400 ? undefined : await spent();
      const answer = await sendRaw(target, "127.0.0.1", credential, bodyOf(target, operation));
      assert.equal(answer.status, status, `${target.slice(0, 60)} with ${credential}: ${answer.text}`);
      if (before !== undefined) assert.equal(await spent(), before, `${target} with ${credential}`);
    }
  }
});

test("no spelling of an operation's target needs less than the operation", async () => {
  const before = await state();
  for (const operation of Object.keys(OPERATIONS)) {
    const [method] = operation.split(" ");
    const { same, others } = targetsLike(operation);
    for (const credential of Object.keys(CREDENTIALS)) {
      const allowed = expected(operation, credential);
      const isDenied = allowed === 401 || allowed === 403;
      // What follows /v1/policies/ is a name, for operators alone.
      const nothing = NONE.includes(credential) ? [401] : [403, 404, 428];
      const each = others.map((target) => [target, nothing]);
      if (isDenied) each.push(...same.map((target) => [target, [allowed]]));
      for (const [target, statuses] of each) {
        const answer = await sendRaw(target, "127.0.0.1", credential, bodyOf(target, operation), method);
        assert.ok(statuses.includes(answer.status), `${method} ${target} with ${credential}: ${answer.text}`);
      }
    }
  }
  assert.deepEqual(await state(), before);
});

test("a target in absolute form bypasses nothing", async () => {
  const before = await state();
  for (const target of ["http://x/v1/keys/reset", "http://127.0.0.1/v1/keys/reset", "x:1"]) {
    const answer = await sendRaw(target, "127.0.0.1", "consume", bodyOf(target));
    assert.ok(answer === null || [400, 403, 404].includes(answer.status), `${target}: ${answer?.text}`);
  }
  assert.deepEqual(await state(), before);
});
