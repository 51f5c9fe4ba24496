// `forget` of `tollgate/testing`: a test starts without what the isolate has remembered from the one before.
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeProject, wranglerDev } from "./stranger.mjs";

const POLICIES = {
  refusing: { rate: 1, period: "1day", refusal_cache: "1m" },
  leasing: { rate: 1, period: "1day", capacity: 1000, lease: "10s" },
};

test("refusals and leases of an isolate are forgotten, and those in objects are not", async () => {
  const worker = await wranglerDev([makeProject("forgetful", { main: "forgetful.mjs", vars: { POLICIES } })]);
  const get = async (path) => (await worker.send(path)).json();

  assert.deepEqual(await get("/refusing/3"), ["200 object", "429 object", "429 cache"], worker.log);
  await get("/forget");
  assert.deepEqual(await get("/refusing/2"), ["429 object", "429 cache"]);

  const before = await get("/leasing/100"); // a lease comes after 48
  assert.ok(before.includes("200 lease"), before.join());
  await get("/forget");
  assert.deepEqual(await get("/leasing/1"), ["200 object"]);
});
