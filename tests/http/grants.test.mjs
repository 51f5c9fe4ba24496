// Grants: JWTs as backends make them with their libraries, and every possible flaw.
import assert from "node:assert/strict";
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { request } from "node:http";
import { test } from "node:test";
import { SignJWT } from "jose";
import jsonwebtoken from "jsonwebtoken";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { bearer, CLAIMS, jwt, NOW_S, newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const policies = {
  api: { rate: 10, period: "10s", max_debt: 5 },
  wide: { rate: 10, period: "10s", ipv6_prefix: 32 },
  many: { rate: 0, period: "1s", capacity: 2_000 },
};
const KEY = randomBytes(32);
const OTHER_KEY = randomBytes(64);
const keysOf = (keys) =>
  JSON.stringify(Object.fromEntries(Object.entries(keys).map(([kid, key]) => [kid, key.toString("base64url")])));
const backend = newToken("consume");
const tollgate = await start({
  policies,
  token: null,
  tokens: { backend: backend.entry },
  grantKeys: keysOf({ k: KEY, other: OTHER_KEY }),
});
const HEADER = { alg: "HS256", kid: "k" };
const grant = (claims) => jwt(KEY, HEADER, { ...CLAIMS, ...claims });

const detail = "send a valid token, or a grant that has not expired, as `Authorization: Bearer <token>`";
const headers = { "www-authenticate": 'Bearer realm="tollgate"' };
const unauthorized = problem(401, "unauthorized", "Unauthorized", detail, { headers });

const minted = {
  jose: (key, kid, claims) => new SignJWT(claims).setProtectedHeader({ alg: "HS256", kid, typ: "JWT" }).sign(key),
  jsonwebtoken: (key, kid, claims) => jsonwebtoken.sign(claims, key, { algorithm: "HS256", keyid: kid }),
};
for (const [library, mint] of Object.entries(minted)) {
  test(`minted by ${library}: does all that it claims, and spends its key's budget`, async () => {
    const key = `minted by ${library}`;
    for (const [kid, secret] of Object.entries({ k: KEY, other: OTHER_KEY })) {
      const authorized = bearer(await mint(secret, kid, { ...CLAIMS, key, nbf: NOW_S, iat: NOW_S, sub: "a user" }));
      assert.equal((await tollgate.consume({ policy: "api" }, authorized)).status, 200);
      assert.equal((await tollgate.consume({ policy: "api", key }, authorized)).status, 200);
      assert.equal((await tollgate.post("batch", { requests: [{ policy: "api" }] }, authorized)).status, 200);
      for (const how of ["settle", "cancel"]) {
        const { body } = await tollgate.consume({ policy: "api", mode: "reserve" }, authorized);
        const closed = await tollgate.post(how, { policy: "api", reservation: body.reservation }, authorized);
        assert.equal(closed.status, 200, closed.text);
      }
      assert.equal((await tollgate.post("inspect", { policy: "api" }, authorized)).status, 200);
    }
    const { body } = await tollgate.peek({ policy: "api", key }, bearer(backend.text));
    assert.equal(body.remaining, 2, "2 × (3 consumed and 1 settled); the rest was cancelled");
  });
}

test("keys that are lists and addresses, and the network of an address", async () => {
  for (const [key, same, other] of [
    [["t", "u"], ["t", "u"], ["tu"]],
    [{ ip: "::ffff:192.0.2.1" }, { ip: "192.0.2.1" }, { ip: "192.0.2.2" }],
    [{ ip: "2001:db8::1" }, { ip: "2001:db8:0:0:2::" }, { ip: "2001:db8:0:1::" }],
  ]) {
    const authorized = bearer(grant({ key, policies: ["api", "wide"] }));
    assert.equal((await tollgate.consume({ policy: "api" }, authorized)).body.remaining, 9, JSON.stringify(key));
    assert.equal((await tollgate.consume({ policy: "api", key: same }, authorized)).body.remaining, 8);
    assert.equal(
      (await tollgate.consume({ policy: "api", key: other }, authorized)).status,
      403,
      JSON.stringify(other),
    );
  }
  const authorized = bearer(grant({ key: { ip: "2001:db8::1" }, policies: ["wide"] }));
  assert.equal((await tollgate.consume({ policy: "wide", key: { ip: "2001:db8:0:1::" } }, authorized)).status, 200);
  assert.equal((await tollgate.consume({ policy: "wide", key: { ip: "2001:db9::" } }, authorized)).status, 403);
});

test("valid from nbf until just before exp, to the millisecond, and for a day and a minute at most", async () => {
  for (const [claims, at, status] of [
    [{ exp: NOW_S + 60 }, NOW + 59_999, 200],
    [{ exp: NOW_S + 60 }, NOW + 60_000, 401],
    [{ exp: NOW_S + 60.5 }, NOW + 60_499, 200],
    [{ exp: NOW_S + 60.5 }, NOW + 60_500, 401],
    [{ nbf: NOW_S }, NOW - 1, 401],
    [{ nbf: NOW_S }, NOW, 200],
    [{ nbf: NOW_S + 1e9 }, NOW, 401],
    [{ exp: NOW_S + 86_400 }, NOW - 60_000, 200], // by a clock that is a minute behind the signer's
    [{ exp: NOW_S + 86_400 }, NOW - 60_001, 401],
    [{ exp: NOW_S + 1e9 }, NOW, 401],
    [{ exp: NOW * 1_000 }, NOW, 401], // in milliseconds
  ]) {
    const answer = await tollgate.peek({ policy: "api" }, { ...bearer(grant(claims)), now: at });
    assert.equal(answer.status, status, `${JSON.stringify(claims)} at ${at - NOW}`);
  }
});

test("a grant that expires while the body arrives is rejected", async () => {
  await tollgate.peek({ policy: "api" }, bearer(grant())); // the clock stands at NOW for requests that do not move it
  const headers = { authorization: `Bearer ${grant()}`, "content-type": "application/json" };
  const { promise, resolve, reject } = Promise.withResolvers();
  const slow = request({ port: tollgate.port, method: "POST", path: "/v1/consume", headers }, resolve).on(
    "error",
    reject,
  );
  slow.write('{"policy":"api",');
  // By then the runtime has taken the first request, and if it has not, the answer is the same.
  for (let tries = 0; tries < 20; tries++) await tollgate.peek({ policy: "api", key: "x" }, bearer(backend.text));
  await tollgate.peek({ policy: "api", key: "x" }, { ...bearer(backend.text), now: NOW + 60_000 });
  slow.end('"cost":1}');
  assert.equal((await promise).statusCode, 401);
});

/** Every flaw of a grant, and the reason in the log. */
function attacks() {
  const good = grant();
  const [header, payload, signature] = good.split(".");
  const encoded = (text) => Buffer.from(text).toString("base64url");
  const { publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const pem = publicKey.export({ type: "spki", format: "pem" });
  const json = JSON.stringify({ ...CLAIMS });
  const notHs256 = "its `alg` is not HS256";
  const wrong = "its signature is wrong";
  const malformed = (part) =>
    `${part} is not well-formed: three parts of base64url, two of them JSON without duplicates`;
  const claim = (name, value) => grant({ [name]: value });
  const verbs =
    "its claim `verbs` is not a list of one or more of consume, peek, inspect, settle, cancel, extend, batch";
  return {
    "alg none, unsigned": [`${encoded('{"alg":"none","kid":"k"}')}.${payload}.`, notHs256],
    "alg none, signed": [jwt(KEY, { alg: "none", kid: "k" }, CLAIMS), notHs256],
    "alg nOnE": [jwt(KEY, { alg: "nOnE", kid: "k" }, CLAIMS), notHs256],
    "no alg": [jwt(KEY, { kid: "k" }, CLAIMS), notHs256],
    "alg HS512, signed so": [jwt(KEY, { alg: "HS512", kid: "k" }, CLAIMS, "sha512"), notHs256],
    "alg HS384, signed so": [jwt(KEY, { alg: "HS384", kid: "k" }, CLAIMS, "sha384"), notHs256],
    "alg RS256": [jwt(KEY, { alg: "RS256", kid: "k" }, CLAIMS), notHs256],
    "alg HS256, signed as HS512": [jwt(KEY, HEADER, CLAIMS, "sha512"), wrong],
    "a public key as the secret": [jwt(pem, HEADER, CLAIMS), wrong],
    "an empty key": [jwt("", HEADER, CLAIMS), wrong],
    "the key of another kid": [jwt(OTHER_KEY, HEADER, CLAIMS), wrong],
    "a key that it brings along": [jwt("mine", { ...HEADER, jwk: { kty: "oct", k: encoded("mine") } }, CLAIMS), wrong],
    "an address of keys": [jwt("mine", { ...HEADER, jku: "https://evil.example/keys" }, CLAIMS), wrong],
    "no kid": [jwt(KEY, { alg: "HS256" }, CLAIMS), "it has no `kid`"],
    "an unknown kid": [jwt(KEY, { alg: "HS256", kid: "k2" }, CLAIMS), "TOLLGATE_GRANT_KEYS has no key of its `kid`"],
    "a kid that is a path": [jwt("", { alg: "HS256", kid: "../../dev/null" }, CLAIMS), "has no key of its `kid`"],
    "a kid that every object has": [jwt("", { alg: "HS256", kid: "__proto__" }, CLAIMS), "has no key of its `kid`"],
    "an unknown crit": [jwt(KEY, { ...HEADER, crit: ["x"], x: 1 }, CLAIMS), "it has `crit`"],
    "b64 false": [jwt(KEY, { ...HEADER, crit: ["b64"], b64: false }, CLAIMS), "it has `crit`"],
    "an empty crit": [jwt(KEY, { ...HEADER, crit: [] }, CLAIMS), "it has `crit`"],
    "another typ": [jwt(KEY, { ...HEADER, typ: "at+jwt" }, CLAIMS), "its `typ` is neither absent nor"],
    "no signature": [`${header}.${payload}.`, wrong],
    "half a signature": [`${header}.${payload}.${signature.slice(0, 20)}`, wrong],
    "another payload": [`${header}.${encoded(json.replace("alice", "bob"))}.${signature}`, wrong],
    "another header": [`${encoded('{"alg":"HS256","kid":"k","typ":"JWT"}')}.${payload}.${signature}`, wrong],
    padding: [`${good}=`, malformed("the signature")],
    "a plus": [`${header}.${payload}.+${signature.slice(1)}`, malformed("the signature")],
    "white space within": [`${header}.${payload}. ${signature}`, malformed("the signature")],
    "a duplicate alg": [jwt(KEY, '{"alg":"none","alg":"HS256","kid":"k"}', CLAIMS), malformed("the header")],
    "a header that is a list": [jwt(KEY, '["HS256"]', CLAIMS), malformed("the header")],
    "a duplicate exp": [jwt(KEY, HEADER, `{"exp":1,${json.slice(1)}`), malformed("the payload")],
    "a duplicate key, escaped": [jwt(KEY, HEADER, `{"k\\u0065y":"bob",${json.slice(1)}`), malformed("the payload")],
    "a payload that is not JSON": [jwt(KEY, HEADER, "exp"), malformed("the payload")],
    "no exp": [claim("exp", undefined), "its claim `exp` is not a number"],
    "exp as text": [claim("exp", `${NOW_S + 60}`), "its claim `exp` is not a number"],
    "exp null": [claim("exp", null), "its claim `exp` is not a number"],
    "nbf as text": [claim("nbf", `${NOW_S}`), "its claim `nbf` is not a number"],
    "expired by a second": [claim("exp", NOW_S - 1), "it has expired 1000 ms ago"],
    "a far future nbf": [claim("nbf", NOW_S + 1e9), "it is not valid for another 1000000000000 ms"],
    "a life of a year": [
      claim("exp", NOW_S + 31_536_000),
      "it expires in 31536000000 ms; a grant may last 86400000 ms",
    ],
    "no aud": [claim("aud", undefined), "its claim `aud` is not a string"],
    "another aud": [claim("aud", "other"), "its `aud` names another service"],
    "no key": [claim("key", undefined), "its claim `key` is not a key"],
    "an empty key ": [claim("key", ""), "its claim `key` is not a key"],
    "no policies": [claim("policies", []), "its claim `policies` is not a list"],
    "policies as text": [claim("policies", "api"), "its claim `policies` is not a list"],
    "a verb of another scope": [claim("verbs", ["consume", "reset"]), verbs],
    "all verbs": [claim("verbs", ["*"]), verbs],
    "no verbs": [claim("verbs", undefined), verbs],
    "4097 bytes": [`${good}${"A".repeat(4097 - good.length)}`, "a credential of 4097 bytes: at most 4096 are allowed"],
    "a huge header": [jwt(KEY, { ...HEADER, x: "x".repeat(10_000) }, CLAIMS), "a credential of "],
    "four parts": [`${good}.`, "wrong token"],
    "two parts": [`${header}.${payload}`, "wrong token"],
  };
}

test("a grant with any flaw is rejected by every endpoint", async () => {
  const rows = attacks();
  const watched = await start({ policies, token: null, grantKeys: keysOf({ k: KEY, other: OTHER_KEY }) });
  for (const [name, [credential, why]] of Object.entries(rows)) {
    const from = watched.log.length;
    const authorized = bearer(credential);
    const body = '{"policy":"api","key":"alice"}';
    assertAnswer(await watched.send({ body, ...authorized }), unauthorized, name);
    await watched.logged("401: ", from);
    await watched.logged(why, from);
  }
  for (const path of [...PATHS, "/", "/v1/other"]) {
    const authorized = bearer(grant({ exp: NOW_S - 1 }));
    assertAnswer(await watched.send({ path, body: "{", ...authorized }), unauthorized, path);
  }
  assert.equal((await watched.peek({ policy: "api" }, bearer(grant()))).body.remaining, 10);
  await watched.stop(); // everything is in the log now
  for (const [name, [credential]] of Object.entries(rows)) {
    for (const part of credential.split(".").filter((part) => part.length > 20)) {
      assert.ok(!watched.log.includes(part), `${name} is in the log:\n${watched.log}`);
    }
  }
  for (const key of [KEY, OTHER_KEY]) assert.ok(!watched.log.includes(key.toString("base64url")));
});

test("a grant has at most 4 096 bytes", async () => {
  const fill = (length) => grant({ x: "x".repeat(length) });
  let length = 0;
  while (fill(length + 1).length <= 4_096) length++;
  assert.ok(fill(length).length > 4_092);
  assert.equal((await tollgate.peek({ policy: "api" }, bearer(fill(length)))).status, 200);
  assertAnswer(await tollgate.peek({ policy: "api" }, bearer(fill(length + 4))), unauthorized);
});

test("a custom audience, for a service with another name", async () => {
  const named = await start({ policies, token: null, grantKeys: keysOf({ k: KEY }), audience: "limits.example" });
  assert.equal((await named.peek({ policy: "api" }, bearer(grant({ aud: ["x", "limits.example"] })))).status, 200);
  assertAnswer(await named.peek({ policy: "api" }, bearer(grant())), unauthorized);
  await named.stop();
});

test("API tokens and grant keys are rotated without a gap, and budgets stay", async () => {
  const [old, young] = [newToken("consume"), newToken("consume")];
  const [oldKey, youngKey] = [randomBytes(32), randomBytes(32)];
  const settings = (tokens, keys) => ({
    policies,
    token: null,
    tokens: JSON.stringify(Object.fromEntries(tokens)), // as a secret has it
    grantKeys: keysOf(Object.fromEntries(keys)),
  });
  const olds = [["old", old.entry]];
  const youngs = [["young", young.entry]];
  const service = await start(settings(olds, [["old", oldKey]]));
  const byGrant = (kid, key) => bearer(jwt(key, { alg: "HS256", kid }, CLAIMS));
  const statuses = async () => {
    const all = [bearer(old.text), bearer(young.text), byGrant("old", oldKey), byGrant("young", youngKey)];
    const answers = [];
    for (const authorized of all) answers.push(await service.consume({ policy: "api", key: "alice" }, authorized));
    return answers.map(({ status, body }) => (status === 200 ? body.remaining : status));
  };
  assert.deepEqual(await statuses(), [9, 401, 8, 401]);
  await service.kill();
  await service.restart(
    settings(
      [...olds, ...youngs],
      [
        ["old", oldKey],
        ["young", youngKey],
      ],
    ),
  );
  assert.deepEqual(await statuses(), [7, 6, 5, 4]);
  await service.kill();
  await service.restart(settings(youngs, [["young", youngKey]]));
  assert.deepEqual(await statuses(), [401, 3, 401, 2]);
  await service.stop();
  for (const secret of [old.text, young.text, old.entry.sha256, young.entry.sha256]) {
    assert.ok(!service.log.includes(secret), service.log);
  }
});

test("the idempotency keys of a grant are separate from those of a token", async () => {
  const asked = { policy: "api", key: "apart" };
  const ask = (cost, credential) => {
    const { authorization } = bearer(credential).headers;
    return tollgate.consume({ ...asked, cost }, { headers: { authorization, "idempotency-key": "order-1" } });
  };
  const [first, second] = [await ask(1, grant({ key: "apart" })), await ask(2, backend.text)];
  assert.deepEqual([first.status, second.status, second.body.replayed], [200, 200, undefined], second.text);
  assert.equal((await ask(1, grant({ key: "apart" }))).body.replayed, true);
});

test("a grant's holder gets half of its key's reservations, its backend the rest", async () => {
  const authorized = bearer(grant({ key: "reserving", policies: ["many"] }));
  const reserve = (options) => tollgate.consume({ policy: "many", key: "reserving", mode: "reserve" }, options);
  for (let i = 0; i < 10; i++) {
    const all = await Promise.all(Array.from({ length: 50 }, () => reserve(authorized)));
    for (const { status, text } of all) assert.equal(status, 200, text);
  }
  const detail =
    "this key has 500 open reservations made by grants, the maximum for grants, with their extensions: settle or cancel some";
  const tooMany = problem(409, "too-many-reservations", "Too many reservations", detail);
  assertAnswer(await reserve(authorized), tooMany);
  const own = await reserve(bearer(backend.text));
  assert.equal(own.status, 200, own.text);
  const closed = await tollgate.post("cancel", { policy: "many", reservation: own.body.reservation }, authorized);
  assert.equal(closed.status, 200, closed.text);
  assertAnswer(await reserve(authorized), tooMany);
});
