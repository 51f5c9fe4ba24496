// The path exists, but not for this method.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });

/** The methods that the runtime passes on. PROPFIND, QUERY and so on are real ones that no library here knows. */
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "QUERY", "PURGE", "REPORT"];

test("any other method: the answer names the right one, and nothing changes", async () => {
  for (const [path, allow, right] of [
    ...PATHS.map((path) => [path, "POST", ["POST"]]),
    ["/healthz", "GET, HEAD", ["GET", "HEAD"]],
    ["/v1/openapi.json", "GET, HEAD", ["GET", "HEAD"]],
  ]) {
    for (const method of METHODS.filter((method) => !right.includes(method))) {
      const detail = `${method} is not allowed here; use ${allow}`;
      const expected = problem(405, "method-not-allowed", "Method not allowed", detail, { headers: { allow } });
      if (method === "HEAD") expected.body = ""; // the headers alone
      const answer = await tollgate.send({ method, path, body: '{"policy":"api","key":"alice"}' });
      assertAnswer(answer, expected, `${method} ${path}`);
    }
  }
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).body.remaining, 10);
});
