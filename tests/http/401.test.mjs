// No token, or a wrong one: nothing is served, and nothing is revealed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { start, TOKEN } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const detail = "send a valid token, or a grant that has not expired, as `Authorization: Bearer <token>`";
const headers = { "www-authenticate": 'Bearer realm="tollgate"' };
const unauthorized = problem(401, "unauthorized", "Unauthorized", detail, { headers });

test("anything but the complete token is refused, and changes nothing", async () => {
  for (const authorization of [
    null,
    "",
    "Bearer",
    "Bearer ",
    `Bearer ${TOKEN.slice(0, -1)}`,
    `Bearer ${TOKEN}x`,
    `Bearer ${TOKEN.toUpperCase()}`,
    `Bearer ${TOKEN}, Bearer ${TOKEN}`,
    `Bearer "${TOKEN}"`,
    `Bearer ${"x".repeat(4_000)}`,
    `Basic ${Buffer.from(`:${TOKEN}`).toString("base64")}`,
    `Basic ${TOKEN}`,
    `Bearer${TOKEN}`,
    `Token ${TOKEN}`,
    TOKEN,
    "Bearer tökén", // as Latin-1, the only text that a header can have
  ]) {
    const request = { body: '{"policy":"api","key":"alice"}', headers: { authorization } };
    for (const path of PATHS) {
      assertAnswer(await tollgate.send({ path, ...request }), unauthorized, `${authorization} to ${path}`);
    }
  }
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).body.remaining, 10);
});

test("the token in the wrong place", async () => {
  const body = '{"policy":"api","key":"alice"}';
  const cookie = `token=${TOKEN}`;
  const request = {
    body,
    path: `/v1/consume?access_token=${TOKEN}`,
    headers: { authorization: null, "x-api-key": TOKEN, cookie },
  };
  assertAnswer(await tollgate.send(request), unauthorized);
});

test("is checked before all else, so that a stranger learns nothing", async () => {
  const headers = { authorization: null };
  for (const request of [
    { path: "/" },
    { path: "/v1/other" },
    { method: "GET" },
    { method: "DELETE" },
    { body: "x".repeat(100_000) },
    { body: "{", headers: { "content-type": "text/plain" } },
    { body: '{"policy":"no such","key":"alice"}' },
    { body: '{"policy":"api","key":"alice","cost":99999}' },
  ]) {
    const answer = await tollgate.send({ ...request, headers: { ...request.headers, ...headers } });
    assertAnswer(answer, unauthorized, JSON.stringify(request));
  }
});

test("the log says why, but never what was sent", async () => {
  const denied = await start({ policies: { api: { rate: 10, period: "10s" } } });
  const secret = "a-token-that-somebody-mistyped";
  const rows = [
    [null, "401: no Authorization header"],
    [`Basic ${secret}`, "401: the Authorization header is not `Bearer <token>`"],
    [secret, "401: the Authorization header is not `Bearer <token>`"],
    [`Bearer ${secret}`, "401: wrong token"],
  ];
  for (const [authorization, line] of rows) {
    const before = denied.log.length;
    assertAnswer(await denied.send({ body: "{}", headers: { authorization } }), unauthorized, authorization);
    await denied.logged(line, before);
  }
  await denied.stop();
  assert.equal(denied.log.split("401: ").length - 1, rows.length);
  for (const text of [secret, TOKEN]) assert.ok(!denied.log.includes(text), denied.log);
});
