// Refusals that a frontend repeats from memory: their content, their cost, and what ends them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const admin = newToken("consume", "adjust", "admin");
const POLICIES = {
  cached: { rate: 10, period: "100s", refusal_cache: "1s" },
  long: { rate: 10, period: "100s", refusal_cache: "20s" },
  rolling: { kind: "rolling_window", rate: 10, period: "100s", refusal_cache: "1s" },
  exact: { rate: 10, period: "100s", refusal_cache: "0s" },
  other: { rate: 5, period: "100s", refusal_cache: "1s" },
  shadow: { rate: 1, period: "100s", mode: "shadow" },
};
const settings = { policies: POLICIES, tokens: { ops: admin.entry }, token: admin.text };
const tollgate = await start({ ...settings, registry: true });

/** The answer to a key at a moment after NOW: the status, and whether it came from memory. */
async function ask(policy, key, cost, at = 0, more = {}, options = {}) {
  const { status, body } = await tollgate.post(
    "consume",
    { policy, key, cost, ...more },
    { now: NOW + at, ...options },
  );
  return [status, body.source];
}

/** A value of the metrics. */
async function metric(name, at = 0) {
  const { text } = await tollgate.send({ method: "GET", path: "/v1/metrics", now: NOW + at });
  const line = text.split("\n").find((line) => line.startsWith(`${name} `));
  return Number(line?.slice(name.length + 1));
}

test("a refusal is repeated from memory, word for word, for as long as the policy says", async () => {
  await ask("cached", "a", 8);
  const send = (cost, at) => tollgate.post("consume", { policy: "cached", key: "a", cost }, { now: NOW + at });
  const first = await send(3, 0);
  assert.deepEqual([first.status, first.body.source], [429, undefined]);
  const again = await send(3, 999);
  assert.equal(again.body.source, "cache");
  const { retry_at, violated: _, ...members } = again.body;
  assert.deepEqual([retry_at, again.headers["retry-after"]], [NOW + 10_000, "10"]);
  const { retry_after_ms, detail, now, source, ...same } = members;
  assert.deepEqual([retry_after_ms, now, source], [9_001, NOW + 999, "cache"]);
  assert.equal(detail, "policy cached has 2 of 10 tokens left and the cost is 3; retry in 9001 ms");
  const { retry_after_ms: _ms, detail: _detail, now: _now, retry_at: _at, ...before } = first.body;
  assert.deepEqual(same, before);
  assert.equal(again.headers.ratelimit, first.headers.ratelimit.toString());
  assert.deepEqual((await send(3, 1_000)).body.source, undefined, "the moment is over");
});

test("by a rolling window too: each cost until its own tokens are back", async () => {
  await ask("rolling", "a", 6, 0);
  await ask("rolling", "a", 3, 500);
  for (const [cost, at, source, retryAt] of [
    [2, 1_000, undefined, 100_000],
    [7, 1_001, "cache", 100_000],
    [8, 1_999, "cache", 100_500],
    [8, 2_000, undefined, 100_500],
  ]) {
    const { status, body } = await tollgate.post("consume", { policy: "rolling", key: "a", cost }, { now: NOW + at });
    assert.deepEqual([status, body.source, body.remaining, body.retry_at], [429, source, 1, NOW + retryAt], `${cost}`);
  }
  assert.deepEqual(await ask("rolling", "a", 1, 2_001), [200, undefined]);
});

test("a larger cost has a longer wait, and a smaller one that fits is granted", async () => {
  await ask("cached", "b", 8);
  await ask("cached", "b", 3);
  const { body } = await tollgate.post("consume", { policy: "cached", key: "b", cost: 9 }, { now: NOW + 1 });
  assert.deepEqual([body.source, body.retry_at], ["cache", NOW + 70_000]);
  assert.deepEqual(await ask("cached", "b", 2, 1), [200, undefined]);
});

test("at its retry_at it is granted", async () => {
  await ask("long", "c", 10);
  assert.deepEqual(await ask("long", "c", 1), [429, undefined]);
  assert.deepEqual(await ask("long", "c", 1, 9_999), [429, "cache"]);
  assert.deepEqual(await ask("long", "c", 1, 10_000), [200, undefined]);
});

test("it makes no call, and is counted", async () => {
  const calls = 'tollgate_object_call_duration_seconds_count{outcome="answered"}';
  const refused = 'tollgate_decisions_total{policy="long",outcome="refused"}';
  const cached = 'tollgate_cached_refusals_total{policy="long"}';
  await ask("long", "d", 10);
  await ask("long", "d", 1);
  const before = [await metric(calls), await metric(refused), await metric(cached)];
  for (let i = 0; i < 20; i++) assert.deepEqual(await ask("long", "d", 1), [429, "cache"]);
  const after = [await metric(calls), await metric(refused), await metric(cached)];
  assert.deepEqual(
    after.map((count, i) => count - before[i]),
    [0, 20, 20],
  );
});

test("tokens given back here are noticed at once", async () => {
  const budget = { policy: "long", key: "e" };
  const verbs = [
    ["refund", { cost: 1 }],
    ["reset", {}],
    ["keys/credit", { cost: 1 }],
    ["keys/reset", {}],
  ];
  for (const [at, [verb, more]] of verbs.entries()) {
    const now = { now: NOW + at }; // within the millisecond of a refund, nothing is remembered
    await tollgate.post("charge", { ...budget, cost: 10 }, now);
    assert.deepEqual(await ask("long", "e", 1, at), [429, undefined], verb);
    assert.deepEqual(await ask("long", "e", 1, at), [429, "cache"], verb);
    const { status, text } = await tollgate.post(verb, { ...budget, ...more }, now);
    assert.equal(status, 200, text);
    assert.deepEqual(await ask("long", "e", 1, at), [200, undefined], verb);
  }
});

test("after a change of numbers the object is asked at once", async () => {
  await ask("other", "f", 5);
  await ask("other", "f", 1);
  assert.deepEqual(await ask("other", "f", 1), [429, "cache"]);
  const headers = { "if-match": "*" };
  const body = JSON.stringify({ rate: 6, period: "100s", refusal_cache: "1s" });
  const path = "/v1/policies/other?carry=additive";
  assert.equal((await tollgate.send({ method: "PUT", path, headers, body })).status, 200);
  assert.deepEqual(await ask("other", "f", 1), [200, undefined]);
  const overrides = [{ policy: "other", key: "f", unlimited: true }];
  await ask("other", "f", 1);
  assert.deepEqual(await ask("other", "f", 1), [429, "cache"]);
  const put = { method: "PUT", path: "/v1/overrides", body: JSON.stringify({ overrides }) };
  assert.equal((await tollgate.send(put)).status, 200);
  assert.deepEqual(await ask("other", "f", 1), [200, undefined]);
});

test("a banned key is refused from memory", async () => {
  const block = { policy: "long", key: "g", for_ms: 60_000 };
  assert.equal((await tollgate.post("keys/block", block)).status, 200);
  assert.deepEqual(await ask("long", "g", 1), [429, undefined]);
  const { body } = await tollgate.post("consume", { policy: "long", key: "g" }, { now: NOW + 5_000 });
  assert.deepEqual([body.source, body.banned, body.retry_at], ["cache", true, NOW + 60_000]);
});

test("is not used if an earlier request may have been granted, for snapshots, or without the policy's permission", async () => {
  const headers = { "idempotency-key": "one" };
  await ask("long", "h", 10, 0, {}, { headers });
  await ask("long", "h", 10);
  assert.deepEqual(await ask("long", "h", 10), [429, "cache"]);
  assert.deepEqual(await ask("long", "h", 10, 0, {}, { headers }), [200, undefined]);
  assert.deepEqual(await ask("long", "h", 10, 0, { snapshot: true }), [429, undefined]);
  await ask("exact", "h", 10);
  await ask("exact", "h", 1);
  assert.deepEqual(await ask("exact", "h", 1), [429, undefined]);
});

test("nothing is remembered while a reservation is open", async () => {
  const reserve = { policy: "long", key: "i", cost: 10, mode: "reserve" };
  const { body } = await tollgate.post("consume", reserve);
  for (let i = 0; i < 2; i++) assert.deepEqual(await ask("long", "i", 1), [429, undefined]);
  await tollgate.post("cancel", { policy: "long", key: "i", reservation: body.reservation });
  assert.deepEqual(await ask("long", "i", 10), [200, undefined]);
});

test("a batch is refused from memory if all of its budgets are known", async () => {
  const batch = (keys, at = 0) => {
    const requests = keys.map(([policy, key]) => ({ policy, key, cost: 4 }));
    return tollgate.post("batch", { requests }, { now: NOW + at });
  };
  await ask("cached", "j", 8);
  const keys = [
    ["cached", "j"],
    ["long", "k"],
  ];
  const first = await batch(keys);
  assert.deepEqual([first.status, first.body.source], [429, undefined]);
  const again = await batch(keys, 500);
  assert.deepEqual([again.status, again.body.source, again.body.retry_at], [429, "cache", NOW + 20_000]);
  const results = again.body.results.map(({ allowed, remaining }) => [allowed, remaining]);
  assert.deepEqual(results, [
    [false, 2],
    [true, 10],
  ]);
  assert.equal((await batch([keys[0], ["long", "unknown"]])).body.source, undefined);
  assert.equal(
    (await batch([...keys, ["shadow", "j"]])).body.source,
    undefined,
    "limits in shadow are tried each time",
  );
  assert.equal((await batch(keys, 1_000)).body.source, undefined);
});

test("tokens given back at another frontend are noticed when the policy's refusal_cache ends", async () => {
  const both = await start({ policies: POLICIES, other: { policies: POLICIES } });
  const send = async (verb, ask, at, headers) => {
    const { status, body } = await both.post(verb, ask, { now: NOW + at, headers });
    return [status, body.source];
  };
  const [here, there] = [{}, { "x-version": "other" }];
  const budget = { policy: "cached", key: "a" };
  await send("consume", { ...budget, cost: 10 }, 0, here);
  await send("consume", budget, 0, here);
  assert.deepEqual(await send("consume", budget, 0, here), [429, "cache"]);
  assert.deepEqual(await send("refund", { ...budget, cost: 2 }, 1, there), [200, undefined]);
  assert.deepEqual(await send("consume", budget, 1, there), [200, undefined]);
  assert.deepEqual(await send("consume", budget, 999, here), [429, "cache"]);
  assert.deepEqual(await send("consume", budget, 1_000, here), [200, undefined]);
});
