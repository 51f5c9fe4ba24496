// The log: a line about a request is JSON with the request's id, and no line contains anything that callers send.
import assert from "node:assert/strict";
import { test } from "node:test";
import { start, TOKEN } from "./workerd.mjs";

const tollgate = await start({
  policies: { api: { rate: 10, period: "10s" }, open: { rate: 10, period: "10s", on_error: "open" } },
  around: new URL("faulty.mjs", import.meta.url).pathname,
});
const fault = (...faults) => ({ "x-fault": JSON.stringify(faults) });

/** The lines of JSON about the request with this id, as soon as there are this many. */
async function linesAbout(id, count) {
  const lines = () => tollgate.log.split("\n").filter((line) => line.includes(`"request_id":"${id}"`));
  for (let tries = 0; lines().length < count && tries < 500; tries++) await new Promise((done) => setTimeout(done, 10));
  return lines().map((line) => JSON.parse(line));
}

test("says what went wrong with which request", async () => {
  const body = '{"policy":"api","key":"alice"}';
  await tollgate.send({ body, headers: { "x-request-id": "denied", authorization: "Bearer wrong" } });
  assert.deepEqual(await linesAbout("denied", 1), [
    { level: "warn", message: "401: wrong token", request_id: "denied" },
  ]);

  await tollgate.send({ body, headers: { "x-request-id": "failed", ...fault({ fault: "throws" }) } });
  const [{ error, ...line }, ...more] = await linesAbout("failed", 1);
  assert.match(line.message, /^object [0-9a-f]{32} did not answer$/);
  assert.deepEqual([line, more], [{ level: "error", message: line.message, request_id: "failed" }, []]);
  assert.match(error, /the request's numbers are malformed/);

  const requests = ["alice", "bob"].map((key) => ({ policy: "api", key }));
  const headers = { "x-request-id": "batch", ...fault({ fault: "cut off" }) };
  await tollgate.post("batch", { requests }, { headers });
  for (const { level, error } of await linesAbout("batch", 2)) {
    assert.equal(level, "error");
    assert.match(error, /its answer cannot be read/);
  }
});

test("a caller cannot inject lines", async () => {
  const id = 'x"},{"level":"error","message":"forged';
  const { headers } = await tollgate.send({ headers: { "x-request-id": id, authorization: null } });
  assert.equal((await linesAbout(headers["x-request-id"], 1)).length, 1);
  assert.ok(!tollgate.log.includes("forged"));
});

test("nothing that callers send is logged, whatever the outcome", async () => {
  const secret = (what) => `secret-${what}-quux`; // no id is spelled so: ids have hexadecimal digits only
  const key = secret("key");
  const bodies = [
    JSON.stringify({ policy: "api", key }),
    JSON.stringify({ policy: secret("policy"), key }),
    JSON.stringify({ policy: "api", key, cost: secret("cost") }),
    JSON.stringify({ policy: "api", key, [secret("field")]: 1 }),
    JSON.stringify({ policy: "api", key: { text: secret("field") } }),
    `{"policy":"api","key":"${key}"${secret("body")}`,
  ];
  const attempts = [{}, { fault: "throws" }, { fault: "cut off" }, { fault: "of no version" }, { fault: "overloaded" }];
  for (const [n, body] of bodies.entries()) {
    for (const attempt of attempts) {
      const headers = { "idempotency-key": secret(`idempotency-${n}`), ...(attempt.fault && fault(attempt)) };
      for (const path of ["/v1/consume", "/v1/settle", `/v1/${secret("path")}`, `/v1/consume?q=${secret("query")}`]) {
        await tollgate.send({ path, body, headers });
        await tollgate.send({ path, body, headers: { ...headers, authorization: `Bearer ${secret("token")}` } });
      }
    }
  }
  await tollgate.send({ headers: { "x-request-id": "last", authorization: null } });
  assert.equal((await linesAbout("last", 1)).length, 1);
  await tollgate.kill();
  assert.match(tollgate.log, /did not answer/);
  assert.match(tollgate.log, /401: wrong token/);
  for (const text of ["secret-", "quux", TOKEN]) assert.ok(!tollgate.log.includes(text), tollgate.log);
});
