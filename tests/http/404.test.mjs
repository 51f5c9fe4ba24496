// No such path, no such policy.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" }, "a.b-c_D9": { rate: 1, period: "1s" } } });

const PATHS = ["consume", "peek", "charge", "refund", "reset", "inspect", "settle", "cancel", "batch"];
const nothingAt = (path) => {
  return `there is nothing at "${path}"; there are ${PATHS.map((name) => `/v1/${name}`).join(", ")} and GET /healthz`;
};

test("a path that is not there, and which are", async () => {
  for (const path of [
    "/",
    "/v1",
    "/v1/",
    "/v1/consume/",
    "/v1//consume",
    "/V1/consume",
    "/v1/Consume",
    "/v1/consume%00",
    "/v1/c%6fnsume",
    "/v1/reserve",
    "/v2/consume",
    "/healthz/",
    "/.dev.vars",
    "/%2e%2e/etc/passwd",
    "/v1/%22%3Cscript%3E",
  ]) {
    const detail = nothingAt(path);
    for (const method of ["POST", "GET"]) {
      const answer = await tollgate.send({ method, path, body: '{"policy":"api","key":"alice"}' });
      assertAnswer(answer, problem(404, "not-found", "Not found", detail), `${method} ${path}`);
    }
  }
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).body.remaining, 10);
});

test("a policy that is not there", async () => {
  for (const [policy, shown] of [
    ["", '""'],
    ["other", '"other"'],
    ["API", '"API"'],
    ["api ", '"api "'],
    ["a.b-c_d9", '"a.b-c_d9"'],
    ["__proto__", '"__proto__"'],
    ["constructor", '"constructor"'],
    ["toString", '"toString"'],
    ["api\0", '"api\\0"'],
    ["\u202eipa", '"\\u{202e}ipa"'], // turns the text after it around, so it is not shown as it is
    ["'; DROP TABLE bucket; --", "\"'; DROP TABLE bucket; --\""],
    ["p".repeat(80), `"${"p".repeat(80)}"`],
  ]) {
    const expected = problem(404, "unknown-policy", "Unknown policy", `there is no policy named ${shown}`);
    for (const verb of ["consume", "peek"]) {
      assertAnswer(await tollgate[verb]({ policy, key: "alice" }), expected, `${verb} ${policy}`);
    }
  }
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).body.remaining, 10);
});

test("what is not there is shown with 80 characters at most", async () => {
  const path = `/${"x".repeat(79)}`;
  for (const more of ["", "x", "x".repeat(2_000)]) {
    const answer = await tollgate.send({ path: path + more, body: '{"policy":"api","key":"alice"}' });
    assertAnswer(answer, problem(404, "not-found", "Not found", nothingAt(path)), path + more);
  }
  const policy = "p".repeat(80);
  for (const more of ["", "p", "p".repeat(10_000)]) {
    const expected = problem(404, "unknown-policy", "Unknown policy", `there is no policy named "${policy}"`);
    assertAnswer(await tollgate.consume({ policy: policy + more, key: "alice" }), expected, policy + more);
  }
});
