// The deployed build has no clock that callers can set: with one they could take as much as they like.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOW, start } from "./workerd.mjs";

const policies = { api: { rate: 1, period: "1day", capacity: 2 } };
const ask = { policy: "api", key: "alice" };
const YEAR = 365 * 86_400_000;

test("the header that sets the tests' clock does nothing there", async () => {
  const tollgate = await start({ policies, build: "deployed" });
  const statuses = [];
  for (const now of [NOW, NOW + YEAR, NOW - YEAR, Date.now() + YEAR, null]) {
    const before = Date.now();
    const { status, body } = await tollgate.consume(ask, { now });
    assert.ok(before - 1 <= body.now && body.now <= Date.now() + 1, `${body.now} is the moment, not ${now}`);
    statuses.push(status);
  }
  assert.deepEqual(statuses, [200, 200, 429, 429, 429]);
  await tollgate.stop();
});

test("but it works in the tests' build, so the test above can fail", async () => {
  const tollgate = await start({ policies });
  for (const now of [NOW, NOW + YEAR, NOW - YEAR]) assert.equal((await tollgate.consume(ask, { now })).body.now, now);
  await tollgate.stop();
});
