// Whether the service is up and its settings are valid. Needs no token and wakes no object.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer } from "./answers.mjs";
import { start, TOKEN } from "./workerd.mjs";

const policies = { api: { rate: 100, period: "1m", capacity: 200 }, once: { rate: 0, period: "1day", capacity: 5 } };
const tollgate = await start({ policies });
const healthy = { status: 200, headers: { "content-type": "application/json" }, body: { status: "ok" } };

test("needs no credential", async () => {
  for (const authorization of [null, `Bearer ${TOKEN}`, "Bearer wrong"]) {
    for (const path of ["/healthz", "/healthz?probe=1"]) {
      const headers = { authorization };
      assertAnswer(await tollgate.send({ method: "GET", path, headers }), healthy, authorization ?? "no token");
      assertAnswer(await tollgate.send({ method: "HEAD", path, headers }), { ...healthy, body: "" }, "HEAD");
    }
  }
  assert.deepEqual(tollgate.databaseFiles(), []);
});

test("the first request logs the policies in readable form", async () => {
  await tollgate.stop();
  assert.equal(
    tollgate.log,
    "policy api: token bucket, 100 per 1m, at most 200 at once and 300 within any 1m\n" +
      "  from empty to full in 2m; a crash costs nothing; renaming it resets a key to 200\n" +
      "policy once: token bucket, 0 per 1day, at most 5 at once\n" +
      "  never full again; a crash costs nothing; renaming it resets a key to 5\n" +
      "  note: with a rate of 0 a spent budget never refills, and its row is never deleted (never_refills)\n",
  );
});
