// Policies that change while the service runs, for callers inside a Worker: embedded, and by RPC. In real time.
import assert from "node:assert/strict";
import { test } from "node:test";
import { KEY_SECRET, makeProject, TOKEN, tokens, wranglerDev } from "./stranger.mjs";

const name = "changing";
const project = makeProject(name, {
  main: "embedded.mjs",
  classes: { KEYS: "KeyObject", REGISTRY: "PolicyRegistry" },
  services: [
    { binding: "TOLLGATE", service: name, entrypoint: "Tollgate", props: { scopes: ["consume", "adjust", "admin"] } },
  ],
  vars: {
    POLICIES: { api: { rate: 10, period: "1day", write_ahead: 0 } },
    TOLLGATE_TOKENS: tokens("consume", "adjust", "admin"),
    TOLLGATE_KEY_SECRET: KEY_SECRET,
  },
});

test("a change takes effect within ten seconds, embedded and by RPC; policies in code stay the same", async () => {
  const worker = await wranglerDev([project]);
  let keys = 0;
  const ask = async (way, policy = "api") => {
    const { status, body } = await worker.post(`/${way}/peek`, { policy, key: `${way} ${keys++}` });
    assert.deepEqual([status, body.stale_policies], [200, undefined], worker.log);
    return body.limit;
  };
  for (const way of ["embedded", "rpc"]) assert.equal(await ask(way), 10);
  assert.equal(await ask("code", "code"), 3);
  const began = performance.now();
  const changed = await worker.send("/v1/policies/api", {
    method: "PUT",
    headers: { authorization: `Bearer ${TOKEN}`, "if-match": "*" },
    body: JSON.stringify("7/1day"),
  });
  assert.equal(changed.status, 200, await changed.text());
  for (const way of ["embedded", "rpc"]) {
    while ((await ask(way)) !== 7) {
      const ms = performance.now() - began;
      assert.ok(ms < 10_000, `${way}: no effect after ${ms} ms`);
      await new Promise((done) => setTimeout(done, 250));
    }
  }
  assert.equal(await ask("code", "code"), 3);
  await worker.kill();
});

test("operators block a key, embedded and by RPC", async () => {
  const worker = await wranglerDev([project]);
  for (const [way, keys] of [
    ["embedded", "keys"],
    ["rpc", "rpcKeys"],
  ]) {
    const budget = { policy: "api", key: `blocked ${way}` };
    const { status, body } = await worker.post(`/${keys}/block`, { ...budget, for_ms: 60_000 });
    assert.deepEqual([status, body.created], [200, 1]);
    assert.equal((await worker.post(`/${way}/consume`, budget)).body.banned, true);
    assert.equal((await worker.post(`/${keys}/reset`, budget)).body.recorded, true);
  }
  await worker.kill();
});
