// Unknown paths, policies and reservations.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" }, "a.b-c_D9": { rate: 1, period: "1s" } } });

const nothingAt = (path) =>
  `there is no endpoint "${path}"; send POST to ${PATHS.join(", ")}, or GET to /v1/policies, /v1/audit, /v1/metrics, /healthz or /v1/openapi.json`;
const noPolicy = (shown) => `there is no policy ${shown}; there are a.b-c_D9, api`;

test("an unknown path: the answer lists the endpoints", async () => {
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

test("an unknown policy: the answer lists the policies", async () => {
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
    ["\u202eipa", '"\\u{202e}ipa"'], // reverses the text after it, so it is not shown unchanged
    ["'; DROP TABLE bucket; --", '"\'; DROP TABLE bucket; --"'],
    ["p".repeat(80), `"${"p".repeat(80)}"`],
  ]) {
    const item = { policy, key: "alice" };
    const fine = { policy: "api", key: "bob" };
    const reservation = "0";
    const more = {
      "/v1/settle": { reservation, cost: 1 },
      "/v1/cancel": { reservation },
      "/v1/extend": { reservation },
    };
    for (const path of PATHS) {
      const isBatch = path === "/v1/batch";
      const ask = isBatch ? { requests: [fine, item] } : { ...item, ...more[path] };
      const detail = `${isBatch ? "request 1: " : ""}${noPolicy(shown)}`;
      const expected = problem(404, "unknown-policy", "Unknown policy", detail);
      assertAnswer(await tollgate.send({ path, body: JSON.stringify(ask) }), expected, `${policy} to ${path}`);
    }
  }
  for (const key of ["alice", "bob"]) assert.equal((await tollgate.peek({ policy: "api", key })).body.remaining, 10);
});

test("an unknown name is truncated to 80 characters", async () => {
  const shown = (text, more) => `"${text}"${more ? "..." : ""}`;
  const path = `/${"x".repeat(79)}`;
  for (const more of ["", "x", "x".repeat(2_000)]) {
    const answer = await tollgate.send({ path: path + more, body: '{"policy":"api","key":"alice"}' });
    const detail = nothingAt(path).replace(`"${path}"`, shown(path, more));
    assertAnswer(answer, problem(404, "not-found", "Not found", detail), path + more);
  }
  const policy = "p".repeat(80);
  for (const more of ["", "p", "p".repeat(10_000)]) {
    const expected = problem(404, "unknown-policy", "Unknown policy", noPolicy(shown(policy, more)));
    assertAnswer(await tollgate.consume({ policy: policy + more, key: "alice" }), expected, policy + more);
  }
});

test("an unknown reservation, or one of another policy or key", async () => {
  const detail =
    "this policy and key have no such reservation, or it expired: for an hour it can be settled or cancelled, not extended";
  const expected = problem(404, "unknown-reservation", "Unknown reservation", detail);
  const carol = { policy: "api", key: "carol" };
  const { reservation } = (await tollgate.consume({ ...carol, cost: 4, mode: "reserve" })).body;
  for (const [ask, now] of [
    [{ ...carol, reservation: "0" }],
    [{ ...carol, reservation: "fffffffffffff" }],
    [{ ...carol, key: "dave", reservation }],
    [{ ...carol, policy: "a.b-c_D9", reservation }],
    [{ ...carol, reservation }, NOW + 600_000 + 3_600_000], // it ended an hour ago
  ]) {
    for (const [path, more] of [
      ["/v1/cancel", {}],
      ["/v1/settle", { cost: 1 }],
    ]) {
      const answer = await tollgate.send({ path, body: JSON.stringify({ ...ask, ...more }), now });
      assertAnswer(answer, expected, `${JSON.stringify(ask)} to ${path}`);
    }
  }
  const { body } = await tollgate.send({ path: "/v1/inspect", body: JSON.stringify(carol), now: NOW + 1 });
  assert.deepEqual([body.open_reservations, body.limits[0].remaining], [0, 6], "what was reserved stays taken");
});
