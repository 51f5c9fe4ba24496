// Rolling windows: never more than the rate in any interval of a period.
import assert from "node:assert/strict";
import { test } from "node:test";
import { random, seedOf } from "../random.mjs";
import { newToken } from "./credentials.mjs";
import { governed } from "./governed.mjs";
import { NOW, start } from "./workerd.mjs";

const rolling = (rate, period, more) => ({ kind: "rolling_window", rate, period, ...more });
const MINUTE = 60_000;
/** When tokens that are all taken at `at` are back: moments in ms after NOW, which is 20 s into a minute. */
const GRAINS = {
  few: { limit: rolling(60, "1m"), at: 1, back: 60_001 }, // as many as grains: one by one
  one_more: { limit: rolling(61, "1m"), at: 1, back: 61_000 }, // a grain is a second
  at_its_end: { limit: rolling(61, "1m"), at: 1_000, back: 61_000 },
  fine: { limit: rolling(500, "1m", { grains: 240 }), at: 1, back: 60_250 },
  coarse: { limit: rolling(2, "1m", { grains: 1 }), at: 1, back: 100_000 }, // a grain is a minute
  short: { limit: rolling(500, "100ms"), at: 1, back: 102 }, // ⌈100 / 60⌉ = 2
  text: { limit: { kind: "rolling_window", rate: "500/1h" }, at: 1, back: 3_640_000 }, // a grain is a minute
};
const POLICIES = {
  ...Object.fromEntries(Object.entries(GRAINS).map(([name, { limit }]) => [name, limit])),
  three: rolling(3, "10s"),
  many: rolling(100, "10s", { grains: 20 }),
  ten: rolling(10, "1m"),
  keep: rolling(10, "1m", { reservation_ttl: "30s" }),
  back: rolling(10, "1m", { reservation_ttl: "30s", unsettled: "refund" }),
  both: {
    limits: [
      { name: "minute", ...rolling(5, "1m") },
      { name: "total", rate: 0, period: "1s", capacity: 8 },
    ],
  },
  tried: {
    limits: [
      { name: "bucket", rate: "100/1m" },
      { name: "new", ...rolling(2, "10s"), mode: "shadow" },
    ],
  },
};
const operator = newToken("consume", "adjust", "admin");
const settings = { policies: POLICIES, tokens: { ops: { ...operator.entry, inline: true } }, token: operator.text };
const tollgate = await start(settings);

const post = (verb, policy, key, at, more) => tollgate.post(verb, { policy, key, ...more }, { now: NOW + at });
const consume = (policy, key, at, cost = 1, more = {}) => post("consume", policy, key, at, { cost, ...more });
const reserve = async (policy, key, at, cost) => (await consume(policy, key, at, cost, { mode: "reserve" })).body;
const levels = async (policy, key, at) =>
  (await post("inspect", policy, key, at)).body.limits.map(({ remaining }) => remaining);

/** Sends requests of `[at, cost, left, retry at]`: granted if there is no fourth. Those refused from memory are told the same. Moments in ms after NOW. */
async function decides(policy, key, rows) {
  for (const [at, cost, left, retryAt] of rows) {
    const { status, body, text } = await consume(policy, key, at, cost);
    const expected = [retryAt === undefined ? 200 : 429, left, retryAt && NOW + retryAt];
    assert.deepEqual([status, body.remaining, body.retry_at], expected, `${cost} at ${at}: ${text}`);
  }
}

test("each token is back a period after it was taken, and a refusal says exactly when enough are", async () => {
  await decides("three", "a", [
    [0, 1, 2],
    [1_234, 1, 1],
    [5_000, 1, 0],
    [5_000, 1, 0, 10_000],
    [5_000, 2, 0, 11_234],
    [5_000, 3, 0, 15_000],
    [9_999, 1, 0, 10_000],
    [10_000, 1, 0],
    [11_233, 1, 0, 11_234],
    [11_234, 1, 0],
    [14_999, 2, 0, 20_000], // one is back at 15 000
    [20_000, 2, 0],
  ]);
  const { body } = await consume("three", "a", 20_000, 0, { snapshot: true });
  assert.equal(body.reset_at, NOW + 30_000, "when the last is back");
  const { kind, rate, period_ms, capacity, max_debt, tokens, at } = body.snapshot[0];
  assert.deepEqual([kind, rate, period_ms, capacity, max_debt, tokens], ["rolling_window", 3, 10_000, 3, 0, 0]);
  assert.equal(at + period_ms, body.reset_at, "for a copy it is a window that opens again then");
  const [limit] = (await post("inspect", "three", "a", 20_000)).body.limits;
  assert.deepEqual([limit.kind, limit.rate, limit.period_ms, limit.capacity], ["rolling_window", 3, 10_000, 3]);
  const large = await consume("three", "a", 20_000, 4);
  assert.deepEqual([large.status, large.body.max_cost], [400, 3], large.text);
});

test("a snapshot says when all is back, and never from a later moment than the answer's", async () => {
  const { body } = await consume("text", "snapshot", 1, 500, { snapshot: true });
  const [{ tokens, at, period_ms }] = body.snapshot;
  assert.deepEqual([tokens, at, at + period_ms], [0, NOW + 1, NOW + GRAINS.text.back], body.text);
});

for (const [policy, { limit, at, back }] of Object.entries(GRAINS)) {
  test(`moments are kept to a grain: ${policy}`, async () => {
    const all = Number.parseInt(limit.rate, 10);
    await decides(policy, "a", [
      [at, all, 0],
      [at, 1, 0, back],
      [back - 1, 1, 0, back],
      [back, all, 0],
    ]);
  });
}

test("tokens of one grain come back together", () =>
  decides("one_more", "b", [
    [1, 20, 41],
    [999, 20, 21],
    [1_000, 1, 20],
    [1_001, 20, 0],
    [60_999, 1, 0, 61_000],
    [60_999, 42, 0, 62_000],
    [61_000, 41, 0],
  ]));

for (const [policy, rate, grainMs] of [
  ["three", 3, 1],
  ["many", 100, 500],
]) {
  test(`whatever is requested: ${policy} grants what a list of moments does, and no more than ${rate} in any period`, async (t) => {
    const { below, chance } = random(seedOf(t));
    const granted = [];
    let taken = [];
    for (let now = NOW, n = 0; n < 200; n += 1, now += chance(0.4) ? 0 : below(chance(0.1) ? 12_000 : 900)) {
      const cost = 1 + below(Math.ceil(rate / 2));
      taken = taken.filter((at) => at + 10_000 > now);
      const over = taken.length + cost - rate;
      const retry = over > 0 ? taken[over - 1] + 10_000 : undefined;
      const { status, body, text } = await tollgate.consume({ policy, key: "any", cost }, { now });
      assert.deepEqual([status, body.retry_at], [over > 0 ? 429 : 200, retry], text);
      if (status !== 200) continue;
      granted.push([now, cost]);
      taken.push(...Array(cost).fill(Math.ceil(now / grainMs) * grainMs));
    }
    for (const [from] of granted) {
      const within = granted.filter(([at]) => at >= from && at < from + 10_000);
      assert.ok(within.reduce((sum, [, cost]) => sum + cost, 0) <= rate, `from ${from - NOW}`);
    }
    assert.ok(granted.length > 20 && granted.length < 180, `${granted.length} grants`);
  });
}

test("a settlement leaves the window as if the real cost had been taken with the reservation", async () => {
  for (const [verb, cost, left, unpaid] of [
    ["cancel", undefined, 10],
    ["settle", 0, 10],
    ["settle", 3, 7],
    ["settle", 5, 5],
    ["settle", 7, 3],
    ["settle", 12, 0, 2],
  ]) {
    const key = `${verb} ${cost}`;
    const { reservation, ready_at } = await reserve("ten", key, 0, 5);
    assert.equal(ready_at, NOW);
    const { status, body, text } = await post(verb, "ten", key, 10_000, { reservation, cost });
    assert.deepEqual([status, body.remaining, body.unpaid], [200, left, unpaid], text);
    assert.deepEqual(await levels("ten", key, MINUTE - 1), [left], key);
    assert.deepEqual(await levels("ten", key, MINUTE), [10], key);
  }
  for (const cost of [2, 5, 9]) {
    const key = `back already ${cost}`;
    const { reservation } = await reserve("ten", key, 0, 5);
    assert.equal((await consume("ten", key, 50_000, 4)).body.remaining, 1);
    const { status, body, text } = await post("settle", "ten", key, MINUTE, { reservation, cost });
    assert.deepEqual([status, body.remaining], [200, 6], text);
  }
});

test("an expired reservation keeps its cost or gives it back, and can be settled late", async () => {
  for (const [policy, left] of [
    ["keep", 4],
    ["back", 10],
  ]) {
    const { reservation } = await reserve(policy, "a", 0, 6);
    assert.deepEqual(await levels(policy, "a", 29_999), [4], policy);
    assert.deepEqual(await levels(policy, "a", 30_000), [left], policy);
    const late = await post("settle", policy, "a", 40_000, { reservation, cost: 2 });
    assert.deepEqual([late.status, late.body.late, late.body.remaining], [200, true, 8], late.text);
    assert.deepEqual(await levels(policy, "a", MINUTE - 1), [8], policy);
    assert.deepEqual(await levels(policy, "a", MINUTE), [10], policy);
  }
  for (const [policy, retryAt] of [
    ["keep", MINUTE],
    ["back", 30_000], // when it expires
  ]) {
    await reserve(policy, "b", 0, 10);
    await decides(policy, "b", [
      [1, 1, 0, retryAt],
      [retryAt - 1, 1, 0, retryAt],
      [retryAt, 1, 9],
    ]);
  }
});

test("charge takes what is left, refund gives back the oldest first, and reset empties the window", async () => {
  for (const [at, verb, more, tokens, left, unpaid] of [
    [0, "consume", { cost: 4 }, undefined, 6],
    [1_000, "consume", { cost: 4 }, undefined, 2],
    [2_000, "charge", { cost: 5 }, 2, 0, 3],
    [3_000, "refund", { cost: 5 }, 5, 5], // 4 of the first second, 1 of the next
    [3_000, "consume", { cost: 9, mode: "up_to" }, 5, 0],
    [3_000, "refund", { cost: 5 }, 5, 5], // 3 and 2 of the charge
  ]) {
    const { status, body, text } = await post(verb, "ten", "a", at, more);
    assert.deepEqual([status, body.tokens, body.remaining, body.unpaid], [200, tokens, left, unpaid], text);
  }
  await decides("ten", "a", [
    [4_000, 6, 5, 63_000], // all 5 of `up_to`
    [62_999, 6, 5, 63_000],
  ]);
  for (const [verb, more, status, left] of [
    ["consume", { cost: 6, mode: "borrow" }, 429, 5],
    ["keys/credit", { cost: 2 }, 200, 7],
    ["reset", {}, 200, 10],
  ]) {
    const answer = await post(verb, "ten", "a", 62_999, more);
    assert.equal(answer.status, status, answer.text);
    assert.deepEqual(await levels("ten", "a", 62_999), [left], verb);
  }
});

test("with another limit, or in a batch, all take or none", async () => {
  assert.equal((await consume("both", "a", 0, 4)).status, 200);
  const refused = await consume("both", "a", 1_000, 2);
  assert.deepEqual([refused.status, refused.body.retry_at], [429, NOW + MINUTE], refused.text);
  assert.deepEqual(await levels("both", "a", 1_000), [1, 4]);
  const batch = (at) => {
    const requests = [
      { policy: "both", key: "a", cost: 3 },
      { policy: "ten", key: "batch", cost: 3 },
    ];
    return tollgate.post("batch", { requests }, { now: NOW + at });
  };
  assert.equal((await batch(MINUTE - 1)).status, 429);
  assert.deepEqual(await levels("ten", "batch", MINUTE - 1), [10]);
  assert.equal((await batch(MINUTE)).status, 200);
  assert.deepEqual(await levels("ten", "batch", MINUTE), [7]);
  assert.deepEqual(await levels("both", "a", MINUTE), [2, 1]);
  const never = await consume("both", "a", MINUTE, 2);
  assert.deepEqual([never.status, never.body.retry_at], [429, undefined], "by the total");
});

test("in shadow it reports, and refuses nothing", async () => {
  for (const [at, allowed, remaining, retryAt] of [
    [0, true, 1],
    [1_000, true, 0],
    [2_000, false, 0, 10_000],
    [9_999, false, 0, 10_000],
    [10_000, true, 0],
    [10_001, false, 0, 11_000],
  ]) {
    const { status, body, text } = await consume("tried", "a", at);
    const [said] = body.shadow;
    const expected = [200, allowed, remaining, retryAt && NOW + retryAt];
    assert.deepEqual([status, said.allowed, said.remaining, said.retry_at], expected, text);
  }
});

test("moments survive kill -9; a crash costs at most what may be ahead of storage, for a period", async () => {
  const ahead = rolling(100, "10s", { write_ahead: 10, grains: 100 });
  const crashing = await start({ policies: { ahead, three: POLICIES.three } });
  const ask = (policy, at, cost) => crashing.consume({ policy, key: policy, cost }, { now: NOW + at });
  for (const at of [0, 1_000, 2_000]) assert.equal((await ask("three", at, 1)).status, 200);
  for (let n = 0; n < 50; n += 1) assert.equal((await ask("ahead", n, 1)).status, 200);
  await crashing.kill();
  await crashing.restart();
  const refused = await ask("three", 9_999, 2);
  assert.deepEqual([refused.status, refused.body.retry_at], [429, NOW + 11_000], refused.text);
  assert.equal((await ask("three", 11_000, 2)).status, 200);
  const { remaining } = (await ask("ahead", 100, 0)).body;
  assert.ok(remaining >= 40 && remaining <= 50, `${remaining}`);
  assert.equal((await ask("ahead", 10_100, 100)).status, 200);
  await crashing.stop();
});

/** A service whose policy `api` changes, with verbs for one key. */
async function changing(api) {
  const { send, wait } = await governed({ ...settings, policies: { api } });
  const asks = (key, verb, more) => send("POST", `/v1/${verb}`, { policy: "api", key, ...more });
  const passes = async (answer) => {
    const { status, text } = await answer;
    assert.equal(status, 200, text);
  };
  return {
    wait,
    put: (policy) => passes(send("PUT", "/v1/policies/api", policy, { headers: { "if-match": "*" } })),
    override: (key, more) => passes(send("PUT", "/v1/overrides", { overrides: [{ policy: "api", key, ...more }] })),
    removeOverride: (key) => passes(send("DELETE", `/v1/overrides?policy=api&key=%22${key}%22`)),
    take: (key, cost) => passes(asks(key, "consume", { cost })),
    left: async (key) => (await asks(key, "peek", { cost: 0 })).body.remaining,
    refusedUntil: async (key, cost, at) => {
      const { status, body, text } = await asks(key, "consume", { cost });
      assert.deepEqual([status, body.retry_at], [429, NOW + at], text);
    },
  };
}

test("under other numbers, what was taken is back a period after it was taken", async () => {
  const api = await changing(rolling(10, "1m"));
  await api.take("alice", 6);
  await api.take("bob", 6);
  api.wait(6_001);
  await api.override("alice", { multiple: 2 });
  assert.equal(await api.left("alice"), 14);
  await api.removeOverride("alice");
  assert.equal(await api.left("alice"), 4);
  await api.override("bob", rolling(500, "1m", { grains: 240 }));
  await api.take("bob", 494);
  await api.refusedUntil("bob", 6, MINUTE);
  await api.refusedUntil("bob", 7, 66_250);
  await api.put(rolling(4, "1m"));
  assert.equal(await api.left("alice"), 0);
  await api.refusedUntil("alice", 1, MINUTE);
  api.wait(MINUTE - 6_002);
  await api.refusedUntil("alice", 1, MINUTE);
  api.wait(1);
  await api.take("alice", 4);
});

test("what is spent stays spent when the kind changes", async () => {
  const other = await changing("10/1m");
  await other.take("alice", 4);
  other.wait(6_000); // one is back
  await other.put(rolling(10, "1m"));
  assert.equal(await other.left("alice"), 7);
  await other.take("alice", 1);
  await other.refusedUntil("alice", 7, 6_000 + MINUTE); // what was missing counts as taken at the change
  other.wait(MINUTE - 1);
  await other.refusedUntil("alice", 7, 6_000 + MINUTE);
  other.wait(1);
  await other.put("10/1m");
  await other.take("alice", 10);

  const window = await changing(rolling(10, "1m"));
  await window.take("alice", 4);
  window.wait(6_000);
  await window.put("10/1m");
  assert.equal(await window.left("alice"), 6);
  window.wait(6_000);
  assert.equal(await window.left("alice"), 7);
});

test("requests cannot bring it", async () => {
  const limit = rolling(5, "1m");
  for (const [limits, detail] of [
    [limit, /^limits.kind: a rolling window must be in a policy of the service, not in a request/],
    [
      [
        { name: "a", rate: "1/s" },
        { name: "minute", ...limit },
      ],
      /^limits\[1\].kind: a rolling window must be in a policy/,
    ],
  ]) {
    const { status, body, text } = await consume("own", "a", 0, 1, { limits });
    assert.equal(status, 400, text);
    assert.match(body.detail, detail);
  }
});

test("fields that it has not are refused, each with its name", async () => {
  const { send } = await governed(settings);
  const others = ["capacity", "max_debt", "initial", "offset", "calendar", "starts", "zone"].map((field) => [
    rolling(5, "1m", { [field]: { calendar: "day", zone: "UTC", starts: "monday", offset: "5s" }[field] ?? 5 }),
    `${field}: is not for \`kind = "rolling_window"\``,
  ]);
  for (const [policy, detail] of [
    ...others,
    [rolling("5/1m burst 9"), "rate: includes a burst"],
    [rolling(2.5, "1m"), "rate: must be whole"],
    [rolling(5), "period: is missing"],
    [rolling(5, "1m", { grains: 0 }), "grains: must be a whole number of grains from 1 to 240, not 0"],
    [rolling(5, "1m", { grains: 241 }), "grains: must be a whole number of grains from 1 to 240, not 241"],
    [{ rate: "5/1m", grains: 9 }, 'grains: is for `kind = "rolling_window"`'],
    [rolling(5, "1m", { write_ahead: 6 }), "write_ahead: 6 tokens are more than the capacity: at most 5"],
    [rolling(5, "1m", { lease: "1s" }), "lease: trial is a rolling window, of which nothing can be leased"],
    [rolling(5, "1m", { shards: 2 }), "shards: trial is a rolling window, which cannot be divided"],
  ]) {
    const { status, body, text } = await send("PUT", "/v1/policies/trial?dry_run=true", policy, {
      headers: { "if-none-match": "*" },
    });
    assert.equal(status, 400, `${JSON.stringify(policy)}: ${text}`);
    assert.ok(body.detail.includes(detail), `${detail}: ${text}`);
  }
});
