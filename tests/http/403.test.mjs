// A valid token or grant without this right: the answer says what it lacks, and nothing changes.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { bearer, CLAIMS, jwt, newToken } from "./credentials.mjs";
import { start } from "./workerd.mjs";

const SCOPES = {
  consume: ["/v1/consume", "/v1/peek", "/v1/inspect", "/v1/settle", "/v1/cancel", "/v1/extend", "/v1/batch"],
  adjust: ["/v1/charge", "/v1/refund", "/v1/reset", "/v1/lease"],
  admin: [],
};
const tokens = {
  consume: newToken("consume"),
  adjust: newToken("adjust"),
  admin: newToken("admin"),
  both: newToken("consume", "adjust"),
  daily: newToken("consume", "adjust"),
};
tokens.daily.entry.policies = ["daily", "gone"];
const KEY = randomBytes(32);
const tollgate = await start({
  policies: { api: { rate: 10, period: "10s", lease: "2s" }, daily: { rate: 10, period: "1day", lease: "2s" } },
  token: null,
  tokens: Object.fromEntries(Object.entries(tokens).map(([name, { entry }]) => [name, entry])),
  grantKeys: JSON.stringify({ k: KEY.toString("base64url") }),
});
const grant = (claims) => jwt(KEY, { alg: "HS256", kid: "k" }, { ...CLAIMS, ...claims });

const forbidden = (detail, scope) =>
  problem(403, "forbidden", "Forbidden", detail, {
    ...(scope && {
      scope,
      headers: { "www-authenticate": `Bearer realm="tollgate", error="insufficient_scope", scope="${scope}"` },
    }),
  });
const verbOf = (path) => path.slice("/v1/".length);
const scopeOf = (path) => Object.keys(SCOPES).find((scope) => SCOPES[scope].includes(path));

/** A valid body for any of the paths. */
function bodyFor(path, { policy = "api", key = "alice" } = {}) {
  const item = { policy, ...(key !== null && { key }) };
  if (path === "/v1/batch") return JSON.stringify({ requests: [item] });
  return JSON.stringify(/settle|cancel|extend/.test(path) ? { ...item, reservation: "1" } : item);
}

/** Asks without a right, and checks that this changes nothing. */
async function assertForbidden(path, body, credential, expected) {
  assertAnswer(await tollgate.send({ path, body, ...bearer(credential) }), expected, `${path} ${body}`);
  for (const policy of ["api", "daily"]) {
    const { body } = await tollgate.peek({ policy, key: "alice" }, bearer(tokens.both.text));
    assert.equal(body.remaining, 10, `${path} with ${policy}`);
  }
}

test("each scope at each endpoint", async () => {
  for (const path of PATHS) {
    const needed = scopeOf(path);
    for (const has of Object.keys(SCOPES)) {
      if (has === needed) continue;
      const detail = `${verbOf(path)} needs a token with the scope ${needed}; this one has ${has}`;
      await assertForbidden(path, bodyFor(path), tokens[has].text, forbidden(detail, needed));
    }
    for (const name of [needed, "both"]) {
      const answer = await tollgate.send({ path, body: bodyFor(path, { key: name }), ...bearer(tokens[name].text) });
      const status = /settle|cancel|extend/.test(path) ? 404 : 200; // there is no such reservation
      assert.equal(answer.status, status, `${name} ${path}: ${answer.text}`);
    }
  }
});

test("is checked after the path and the method, before the body is read", async () => {
  const ask = (request) => tollgate.send({ path: "/v1/reset", body: "{", ...bearer(tokens.consume.text), ...request });
  assert.equal((await ask({})).status, 403);
  assert.equal((await ask({ body: "x".repeat(100_000) })).status, 403);
  assert.equal((await ask({ body: Array(10).fill("x".repeat(10_000)) })).status, 403);
  assert.equal((await ask({ path: "/v1/other" })).status, 404);
  assert.equal((await ask({ method: "PUT" })).status, 405);
});

test("a token restricted to some policies", async () => {
  const detail = (policy) =>
    `this token or grant is not for the policy ${JSON.stringify(policy)}; it is for daily, gone`;
  for (const path of PATHS) {
    for (const policy of ["api", "unheard-of"]) {
      const where = path === "/v1/batch" ? "request 0: " : "";
      await assertForbidden(path, bodyFor(path, { policy }), tokens.daily.text, forbidden(where + detail(policy)));
    }
    const answer = await tollgate.send({
      path,
      body: bodyFor(path, { policy: "daily", key: "daily" }),
      ...bearer(tokens.daily.text),
    });
    assert.ok([200, 404].includes(answer.status) && !/policy/.test(answer.body.type), answer.text);
  }
  // One of its policies is gone: it learns of no other.
  const gone = await tollgate.consume({ policy: "gone", key: "alice" }, bearer(tokens.daily.text));
  assert.equal(gone.body.detail, 'there is no policy "gone"; there is only daily');
});

test("every request of a batch must be allowed", async () => {
  const requests = [
    { policy: "daily", key: "alice" },
    { policy: "api", key: "alice" },
  ];
  const detail = 'request 1: this token or grant is not for the policy "api"; it is for daily, gone';
  await assertForbidden("/v1/batch", JSON.stringify({ requests }), tokens.daily.text, forbidden(detail));
  const both = { requests: [requests[1], { policy: "api", key: "bob" }] };
  const another = "request 1: this grant is for another key: leave out `key`, or send the key of the grant";
  await assertForbidden("/v1/batch", JSON.stringify(both), grant(), forbidden(another));
});

test("a grant: only its own verbs, never those of another scope", async () => {
  for (const path of PATHS) {
    const verb = verbOf(path);
    if (scopeOf(path) !== "consume") {
      const detail = `${verb} needs a token with the scope adjust, which a grant never has`;
      await assertForbidden(path, bodyFor(path, { key: null }), grant(), forbidden(detail, "adjust"));
      continue;
    }
    const others = CLAIMS.verbs.filter((other) => other !== verb);
    const detail = `this grant is not for ${verb}; it is for ${others.join(", ")}`;
    await assertForbidden(path, bodyFor(path, { key: null }), grant({ verbs: others }), forbidden(detail));
    const answer = await tollgate.send({
      path,
      body: bodyFor(path, { key: null }),
      ...bearer(grant({ key: "carol", verbs: [verb] })),
    });
    assert.equal(answer.status, /settle|cancel|extend/.test(path) ? 404 : 200, `${path}: ${answer.text}`);
  }
});

test("a grant: only its own policies and its own key", async () => {
  const other = 'this token or grant is not for the policy "daily"; it is for api';
  const another = "this grant is for another key: leave out `key`, or send the key of the grant";
  for (const path of SCOPES.consume) {
    const where = path === "/v1/batch" ? "request 0: " : "";
    await assertForbidden(path, bodyFor(path, { policy: "daily" }), grant(), forbidden(where + other));
    for (const key of ["bob", "Alice", "alice ", ["alice"], { ip: "192.0.2.1" }]) {
      await assertForbidden(path, bodyFor(path, { key }), grant(), forbidden(where + another));
    }
  }
});
