// Sessions: a visitor's captcha becomes a grant. The verifier is a server here that speaks Turnstile's protocol.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { after, describe, test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { bearer } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const SECRET = "the-turnstile-secret-of-the-tests";
const GRANT_KEY = randomBytes(32).toString("base64url");
const OTHER_KEY = randomBytes(32).toString("base64url");
const policies = {
  visits: { rate: 3, period: "1h" },
  wide: { rate: 1, period: "1h", ipv6_prefix: 48 },
  many: { rate: 10_000, period: "1h" },
  api: { rate: 5, period: "1h", max_debt: 5 },
  daily: { rate: 5, period: "1day" },
  other: { rate: 5, period: "1h" },
};

/** Everything sent to the verifier. */
const asked = [];

/** Captchas solved by visitors and not yet verified. */
const solved = new Set();

/** The verifier's answer to a captcha of that name, instead of the protocol's. */
const faults = {
  "status 500": (response) => reply(response, 500, { success: true }),
  "status 500, and a wrong captcha": (response) => reply(response, 500, { success: false }),
  "no JSON": (response) => response.end("<html>Sorry</html>"),
  "JSON and more": (response) => response.end('{"success":true} {}'),
  "a list": (response) => reply(response, 200, [true]),
  "success as text": (response) => reply(response, 200, { success: "true" }),
  "success twice": (response) => response.end('{"success":false,"success":true}'),
  "no success": (response) => reply(response, 200, {}),
  "codes that are none": (response) => reply(response, 200, { success: false, "error-codes": "timeout-or-duplicate" }),
  nothing: (response) => response.end(),
  "another status": (response) => reply(response, 201, { success: true }),
  "a megabyte": (response) => reply(response, 200, { success: true, action: "x".repeat(1_000_000) }),
  "a redirection": (response) => response.writeHead(307, { location: "/elsewhere" }).end(),
  "an internal error": (response) => reply(response, 200, { success: false, "error-codes": ["internal-error"] }),
  "a bad request": (response) => reply(response, 400, { success: false, "error-codes": ["bad-request"] }),
  "a connection that breaks": (response) => response.destroy(),
  "a body that breaks": (response) =>
    response.writeHead(200, { "content-length": 99 }).write("{", () => response.destroy()),
};

const reply = (response, status, body) =>
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));

const verifier = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const form = Object.fromEntries(new URLSearchParams(Buffer.concat(chunks).toString()));
    const { method, url, headers } = request;
    asked.push({ method, url, type: headers["content-type"], form });
    if (form.response in faults) return faults[form.response](response);
    if (form.response === "slow") return;
    if (form.response === "slow body") return response.writeHead(200).write('{"success":true');
    const wrong = (code, status = 200) =>
      reply(response, status, { success: false, "error-codes": [code], messages: [] });
    if (form.secret !== SECRET) return wrong("invalid-input-secret");
    if (form.response === "wrong") return wrong("invalid-input-response");
    if (form.response === "wrong, with status 400") return wrong("invalid-input-response", 400);
    if (!solved.delete(form.response)) return wrong("timeout-or-duplicate");
    const challenge_ts = new Date(NOW).toISOString();
    // Where this one was solved, and for what.
    const [, hostname = "example.com", action = ""] = form.response.split("|");
    reply(response, 200, { success: true, challenge_ts, hostname, "error-codes": [], action, cdata: "" });
  });
});
await new Promise((listening) => verifier.listen(0, "127.0.0.1", listening));
after(() => {
  verifier.closeAllConnections();
  verifier.close();
});

const verify_url = `http://127.0.0.1:${verifier.address().port}/siteverify`;
const sessions = { policy: "visits", policies: ["api", "daily"], verify_url };
const settings = {
  policies,
  sessions,
  captchaSecret: SECRET,
  grantKeys: `{"z":"${GRANT_KEY}","a":"${OTHER_KEY}"}`,
};
const tollgate = await start(settings);
const open = await start({ ...settings, sessions: JSON.stringify({ ...sessions, policy: "many" }) });
after(() => {
  for (const server of [tollgate, open])
    for (const secret of [SECRET, GRANT_KEY, OTHER_KEY, "a captcha", "eyJ", "session:", "192.0.2."])
      assert.ok(!server.log.includes(secret), `${secret} is in the log:\n${server.log}`);
});

let captchas = 0;
function solve() {
  const captcha = `a captcha ${captchas++}`;
  solved.add(captcha);
  return captcha;
}

/** A request of a visitor from this address, without any credential. */
function visit(captcha, { server = tollgate, address = "192.0.2.1", headers, ...options } = {}) {
  const own = { authorization: null, "cf-connecting-ip": address, ...headers };
  return server.post("session", { captcha }, { ...options, headers: own });
}

/** Every test that opens sessions has its own address. */
let addresses = 0;
const newAddress = () => `192.0.2.${++addresses + 1}`;

const claimsOf = (grant) => JSON.parse(Buffer.from(grant.split(".")[1], "base64url"));
const headerOf = (grant) => JSON.parse(Buffer.from(grant.split(".")[0], "base64url"));
const failed = problem(
  403,
  "captcha-failed",
  "Captcha failed",
  "the captcha is wrong, has expired or was used before: let the visitor solve another",
);
function unverified(cause, why) {
  const detail = `the captcha could not be verified, since ${why}: let the visitor solve another`;
  const answer = problem(503, "", "Unavailable", detail, { headers: { "retry-after": "1" }, cause });
  answer.body.type = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
  return answer;
}

test("a valid captcha yields a grant for a random key", async () => {
  const captcha = solve();
  const address = newAddress();
  const answer = await visit(captcha, { address });
  const { grant, key } = answer.body;
  assertAnswer(answer, {
    status: 200,
    headers: { "content-type": "application/json" },
    body: { grant, expires_at: NOW + 3_600_000, key },
  });
  assert.match(key, /^session:[\w-]{22}$/);
  assert.deepEqual(headerOf(grant), { alg: "HS256", kid: "z", typ: "JWT" }, "the first key as written signs");
  const claims = {
    aud: "tollgate",
    exp: (NOW + 3_600_000) / 1_000,
    key,
    policies: ["api", "daily"],
    verbs: ["consume", "peek"],
  };
  assert.deepEqual(claimsOf(grant), claims);
  assert.deepEqual(asked.at(-1), {
    method: "POST",
    url: "/siteverify",
    type: "application/x-www-form-urlencoded;charset=UTF-8",
    form: { secret: SECRET, response: captcha, remoteip: address },
  });
});

test("the grant is for its own key, its policies and its verbs, until it ends, and for nothing else", async () => {
  const address = newAddress();
  const [first, second] = [await visit(solve(), { address }), await visit(solve(), { address })].map(
    ({ body }) => body,
  );
  assert.notEqual(first.key, second.key);
  const own = bearer(first.grant);
  const ask = (verb, request, options) => tollgate.post(verb, request, { ...own, ...options });
  assert.equal((await ask("consume", { policy: "api" })).body.remaining, 4);
  assert.equal((await ask("consume", { policy: "api", key: first.key })).body.remaining, 3);
  assert.equal((await ask("peek", { policy: "daily" })).body.remaining, 5);
  assert.equal((await ask("peek", { policy: "api" }, bearer(second.grant))).body.remaining, 5, "another budget");
  for (const [verb, request] of [
    ["consume", { policy: "api", key: second.key }],
    ["consume", { policy: "api", key: { ip: address } }],
    ["consume", { policy: "other" }],
    ["consume", { policy: "visits" }],
    ["inspect", { policy: "api" }],
    ["batch", { requests: [{ policy: "api" }] }],
    ["reset", { policy: "api" }],
    ["refund", { policy: "api", cost: 1 }],
    ["charge", { policy: "api", cost: 1 }],
  ]) {
    const { status, body } = await ask(verb, request);
    assert.deepEqual([status, body.title], [403, "Forbidden"], `${verb} ${JSON.stringify(request)}`);
  }
  assert.equal((await ask("peek", { policy: "api" }, { now: first.expires_at - 1 })).status, 200);
  assert.equal((await ask("peek", { policy: "api" }, { now: first.expires_at })).status, 401);
});

test("settings as text, other verbs, the longest lifetime, and another audience", async () => {
  const server = await start({
    ...settings,
    sessions: JSON.stringify({ ...sessions, policies: ["api"], verbs: ["inspect", "settle"], ttl: "24h" }),
    audience: 'an "audience"',
    token: null,
  });
  const { body } = await visit(solve(), { server });
  const { aud, verbs } = claimsOf(body.grant);
  assert.deepEqual([aud, verbs], ['an "audience"', ["inspect", "settle"]]);
  assert.equal(body.expires_at, NOW + 86_400_000);
  const inspect = (now) => server.post("inspect", { policy: "api" }, { ...bearer(body.grant), now });
  assert.equal((await inspect(NOW)).status, 200);
  assert.equal((await inspect(NOW - 60_000)).status, 200, "a server whose clock is a minute behind");
  assert.equal((await inspect(NOW - 60_001)).status, 401);
  await server.stop();
});

test("a wrong or reused captcha opens no session, and costs an attempt", async () => {
  const address = newAddress();
  assertAnswer(await visit("wrong", { address }), failed);
  assertAnswer(await visit("wrong, with status 400", { server: open }), failed);
  const captcha = solve();
  assert.equal((await visit(captcha, { address })).status, 200);
  assertAnswer(await visit(captcha, { address }), failed);
  const { status, headers, body } = await visit(solve(), { address });
  assert.deepEqual([status, body.policy, headers["retry-after"]], [429, "visits", "1200"]);
});

test("of many concurrent requests with one captcha, one gets a session", async () => {
  const captcha = solve();
  const answers = await Promise.all(Array.from({ length: 10 }, () => visit(captcha, { server: open })));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(9).fill(403)]);
});

test("an address opens no more sessions than its policy allows, even concurrently, and a refusal calls no verifier", async () => {
  const address = newAddress();
  const before = asked.length;
  const answers = await Promise.all(Array.from({ length: 20 }, () => visit(solve(), { address })));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [...Array(3).fill(200), ...Array(17).fill(429)]);
  assert.equal(asked.length - before, 3);
  assert.equal(new Set(answers.filter(({ status }) => status === 200).map(({ body }) => body.key)).size, 3);
  assert.equal((await visit(solve(), { address: newAddress() })).status, 200, "another address");
  assert.equal((await visit(solve(), { address, now: NOW + 1_200_000 })).status, 200, "when a token has been refilled");
  assert.equal((await visit(solve(), { address, now: NOW + 1_200_000 })).status, 429);
});

test("an IPv6 network is one address, and IPv4 within IPv6 is IPv4", async () => {
  const server = await start({ ...settings, sessions: { ...sessions, policy: "wide" } });
  for (const [address, status] of [
    ["2001:db8:1:1::1", 200],
    ["2001:db8:1:2::2", 429],
    ["2001:db8:2::1", 200],
    ["198.51.100.7", 200],
    ["::ffff:198.51.100.7", 429],
  ])
    assert.equal((await visit(solve(), { server, address })).status, status, address);
  await server.stop();
});

test("the address comes from CF-Connecting-IP alone", async () => {
  const before = asked.length;
  const forged = { "x-forwarded-for": "192.0.2.200", forwarded: "for=192.0.2.200", "x-real-ip": "192.0.2.200" };
  const missing = "the header CF-Connecting-IP, which Cloudflare sets to the client's address, is missing";
  const wrong = "the header CF-Connecting-IP must be one IP address";
  for (const [address, detail] of [
    [null, missing],
    ["unknown", wrong],
    ["192.0.2.1, 192.0.2.2", wrong],
    ["192.0.2.1:80", wrong],
  ])
    assertAnswer(
      await visit(solve(), { address, headers: forged }),
      problem(400, "bad-request", "Bad request", detail),
      address,
    );
  assert.equal(asked.length, before);
  const address = newAddress();
  for (const status of [200, 200, 200, 429])
    assert.equal((await visit(solve(), { address, headers: { "x-forwarded-for": newAddress() } })).status, status);
});

test("a malformed request takes nothing and calls no verifier", async () => {
  const before = asked.length;
  const address = newAddress();
  const captcha = "`captcha` must be a string of 1 to 2048 characters";
  for (const [body, status, detail] of [
    ["{}", 400, "the field `captcha` is missing"],
    ['{"captcha":""}', 400, captcha],
    ['{"captcha":7}', 400, captcha],
    ['{"captcha":null}', 400, captcha],
    [JSON.stringify({ captcha: "x".repeat(2_049) }), 400, captcha],
    ['{"captcha":"\\ud800"}', 400, captcha],
    ['{"captcha":"x","key":"alice"}', 400, 'the body cannot have the field "key"; its fields are captcha'],
    ['{"captcha":"x","captcha":"y"}', 400, 'the body has the field "captcha" twice'],
    ["[]", 400, "the body must be a JSON object, not an array"],
    ["", 400, "the body is empty: send a JSON object"],
    [" ".repeat(16_385), 413, "the body may have at most 16384 bytes"],
  ]) {
    const headers = { authorization: null, "cf-connecting-ip": address, "content-type": "application/json" };
    const answer = await tollgate.send({ path: "/v1/session", body, headers });
    assert.deepEqual([answer.status, answer.body.detail], [status, detail]);
  }
  const other = (headers, method) =>
    tollgate.send({
      path: "/v1/session",
      method,
      body: method && undefined,
      headers: { authorization: null, ...headers },
    });
  assert.equal((await other({ "content-type": "text/plain" })).status, 415);
  assert.equal((await other({}, "GET")).status, 405);
  assert.equal(asked.length, before);
  for (const status of [200, 200, 200, 429]) assert.equal((await visit(solve(), { address })).status, status);
});

test("a captcha of another host or action is a 403 that says so, and opens no session", async () => {
  const server = await start({
    ...settings,
    sessions: { ...sessions, policy: "many", hostname: ["www.example.com", "app.example.com"], action: "sign-up" },
  });
  const solvedAt = (...parts) => {
    const captcha = [solve(), ...parts].join("|");
    solved.add(captcha);
    return captcha;
  };
  const refused = (detail) => problem(403, "captcha-failed", "Captcha failed", detail);
  const host = refused(
    "the captcha was solved on a page of a host that this service does not accept: solve it on one of its own pages",
  );
  const action = refused(
    "the captcha was solved for an action that this service does not accept: give the widget that action",
  );
  for (const [parts, expected] of [
    [["example.com", "sign-up"], host],
    [["www.example.com.evil.example", "sign-up"], host],
    [["evil.example", "log-in"], host],
    [["www.example.com", "log-in"], action],
    [["www.example.com", ""], action],
    [["WWW.example.com", "sign-up"], undefined],
    [["app.example.com", "sign-up"], undefined],
  ]) {
    const answer = await visit(solvedAt(...parts), { server });
    if (expected) assertAnswer(answer, expected, parts.join());
    else assert.equal(answer.status, 200, parts.join());
  }
  await server.stop();
});

test("the longest captcha is forwarded unchanged", async () => {
  for (const captcha of ["x".repeat(2_048), "語&secret=forged\n%00 +"]) {
    await visit(captcha, { server: open });
    assert.deepEqual(asked.at(-1).form, { secret: SECRET, response: captcha, remoteip: "192.0.2.1" });
  }
});

describe("a verifier that fails: 503, and no session", () => {
  for (const name of Object.keys(faults)) {
    test(name, async () => {
      const before = asked.length;
      assertAnswer(await visit(name, { server: open }), unverified("failed", "its verifier failed"));
      assert.equal(asked.length, before + 1);
    });
  }

  test("it is not there", async () => {
    const gone = { ...sessions, verify_url: "http://127.0.0.1:1/siteverify" };
    const server = await start({ ...settings, sessions: gone });
    const request_id = "gone";
    const answer = await visit(solve(), { server, headers: { "x-request-id": request_id } });
    assertAnswer(answer, unverified("failed", "its verifier failed"));
    await server.logged('"message":"the captcha\'s verifier did not answer","request_id":"gone"');
    await server.stop();
    assert.ok(!server.log.includes("a captcha") && !server.log.includes(SECRET));
  });

  test("it does not know the secret: the log says so", async () => {
    const server = await start({ ...settings, captchaSecret: "another-turnstile-secret" });
    assertAnswer(await visit(solve(), { server }), unverified("failed", "its verifier failed"));
    await server.logged("503: the captcha's verifier does not know the secret TURNSTILE_SECRET");
    await server.stop();
    assert.ok(!server.log.includes("another-turnstile-secret"));
  });

  test("it is too slow", async () => {
    const began = performance.now();
    const slow = ["slow", "slow body"].map((captcha) => visit(captcha, { server: open }));
    for (const answer of await Promise.all(slow))
      assertAnswer(answer, unverified("timeout", "its verifier did not answer in time"));
    assert.ok(performance.now() - began >= 4_900);
  });
});

test("without a decision about the address there is no session, unless its policy fails open", async () => {
  const around = new URL("faulty.mjs", import.meta.url).pathname;
  const headers = { "x-fault": JSON.stringify({ fault: "throws" }) };
  const closed = await start({ ...settings, around });
  const before = asked.length;
  const { status, body } = await visit(solve(), { server: closed, headers });
  assert.deepEqual([status, body.cause, asked.length], [503, "failed", before]);
  await closed.stop();

  const visits = { ...policies.visits, on_error: "open" };
  const opened = await start({ ...settings, around, policies: { ...policies, visits } });
  assert.equal((await visit(solve(), { server: opened, headers })).status, 200);
  assert.equal((await visit("wrong", { server: opened, headers })).status, 403);
  await opened.stop();
});

test("a browser may ask from another origin", async () => {
  const origin = "https://app.example.com";
  const preflight = await tollgate.send({
    method: "OPTIONS",
    path: "/v1/session",
    headers: { origin, authorization: null, "access-control-request-headers": "content-type" },
  });
  assert.equal(preflight.status, 204);
  const { status, headers } = await visit(solve(), { server: open, headers: { origin } });
  assert.deepEqual([status, headers["access-control-allow-origin"]], [200, "*"]);
});

test("without the setting there is no such path, and credentials are required as elsewhere", async () => {
  const server = await start({ policies });
  assert.equal((await visit(solve(), { server })).status, 401);
  const answer = await server.post("session", { captcha: solve() });
  assert.deepEqual([answer.status, answer.body.type], [404, "urn:problem-type:tollgate:not-found"]);
  await server.stop();
});
