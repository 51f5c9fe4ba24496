// No token, or a wrong one: nothing is served, not even what there is.
import assert from "node:assert/strict";
import { test } from "node:test";
import { PATHS, assertAnswer, problem } from "./answers.mjs";
import { TOKEN, start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const detail = "send the token as `Authorization: Bearer <token>`";
const headers = { "www-authenticate": 'Bearer realm="tollgate"' };
const unauthorized = problem(401, "unauthorized", "Unauthorized", detail, { headers });

test("whatever is not the whole token, and it changes nothing", async () => {
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

test("the token in another place", async () => {
  const body = '{"policy":"api","key":"alice"}';
  const cookie = `token=${TOKEN}`;
  const request = {
    body,
    path: `/v1/consume?access_token=${TOKEN}`,
    headers: { authorization: null, "x-api-key": TOKEN, cookie },
  };
  assertAnswer(await tollgate.send(request), unauthorized);
});

test("comes before all else, so that a stranger learns nothing", async () => {
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
