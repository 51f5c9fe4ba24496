// Shards: the budget of one key in several objects.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newToken } from "./credentials.mjs";
import { governed } from "./governed.mjs";
import { NOW, start } from "./workerd.mjs";

const admin = newToken("consume", "adjust", "admin");
const HOT = { rate: 80, period: "80s", capacity: 42, shards: 8 };
const POLICIES = {
  hot: { ...HOT, refusal_cache: "1s" },
  exact: HOT,
  open: { ...HOT, on_error: "open" },
  both: {
    shards: 4,
    limits: [
      { name: "requests", rate: "40/40s" },
      { name: "tokens", rate: "400/40s" },
    ],
  },
  cold: { rate: 5, period: "1s" },
};
const settings = { policies: POLICIES, tokens: { ops: admin.entry }, token: admin.text };
const tollgate = await start({ ...settings, registry: true });

const at = (ms) => ({ now: NOW + ms });
const consume = (policy, key, cost = 1, ms = 0, more = {}, options = {}) =>
  tollgate.post("consume", { policy, key, cost, ...more }, { ...at(ms), ...options });
const peek = async (policy, key, ms = 0) => (await tollgate.post("peek", { policy, key }, at(ms))).body;

/** How many of this many requests are granted. */
async function granted(policy, key, count, ms = 0, cost = 1) {
  const answers = await Promise.all(Array.from({ length: count }, () => consume(policy, key, cost, ms)));
  for (const { status, text } of answers) assert.ok(status === 200 || status === 429, text);
  return answers.filter(({ status }) => status === 200).length;
}

for (const policy of ["hot", "exact"])
  test(`${policy}: all shards together grant what one bucket has, and no more`, async () => {
    assert.equal(await granted(policy, "a", 60), 42);
    assert.equal((await peek(policy, "a")).remaining, 0);
    const { body, headers } = await consume(policy, "a");
    // A shard gets 80 tokens in eight times as long as the policy does: one in 8 s, all together one in a second.
    assert.equal(body.retry_at, NOW + 8_000);
    assert.equal(headers["retry-after"], "8");
    assert.equal(body.limit, 42, "the answer is of the policy");
    assert.equal(body.detail, `no shard of policy ${policy} has enough for a cost of 1; retry in 8000 ms`);
    assert.match(headers["ratelimit-policy"], /^"\w+";q=80;w=80;tollgate-capacity=42$/);
    assert.equal((await consume(policy, "a", 1, 7_999)).status, 429);
    assert.equal(await granted(policy, "a", 20, 8_000), 8);
    assert.equal((await peek(policy, "a", 48_000)).remaining, 40);
  });

test("an answer reports what is left in the shard that gave it", async () => {
  const first = await consume("hot", "k");
  assert.ok([4, 5].includes(first.body.remaining), first.text); // of 5 or 6
  assert.equal(first.body.near_limit, false, "of that shard");
  // That many are certainly available; the next one comes back to that shard in eight seconds.
  assert.equal(first.headers.ratelimit, `"hot";r=${first.body.remaining};t=8`);
  const peeked = await peek("hot", "k");
  assert.deepEqual([peeked.remaining, peeked.near_limit], [41, false]);
});

test("a peek, an inspection and a reset cover all shards", async () => {
  assert.equal(await granted("hot", "b", 30), 30);
  const peeked = await peek("hot", "b");
  assert.deepEqual([peeked.allowed, peeked.remaining, peeked.limit], [true, 12, 42]);
  const { body } = await tollgate.post("inspect", { policy: "hot", key: "b" }, at(0));
  assert.equal(body.limits[0].remaining, 12);
  const reset = await tollgate.post("reset", { policy: "hot", key: "b" }, at(0));
  assert.deepEqual([reset.status, reset.body.remaining], [200, 42]);
  assert.equal(await granted("hot", "b", 50), 42);
});

test("a refund is spread over the shards", async () => {
  assert.equal(await granted("hot", "c", 42), 42);
  const { status, body } = await tollgate.post("refund", { policy: "hot", key: "c", cost: 11 }, at(0));
  assert.deepEqual([status, body.remaining, body.tokens], [200, 11, 11], "of all shards");
  assert.equal(await granted("hot", "c", 20), 11);
});

test("a policy of several limits takes from all of them or from none", async () => {
  const cost = { requests: 1, tokens: 10 };
  const answers = [];
  for (let i = 0; i < 44; i++) answers.push(await consume("both", "d", cost));
  assert.equal(answers.filter(({ status }) => status === 200).length, 40);
  const { limits } = await peek("both", "d");
  assert.deepEqual(
    limits.map(({ name, remaining }) => [name, remaining]),
    [
      ["requests", 0],
      ["tokens", 0],
    ],
  );
});

test("refusals are repeated from memory once every shard's is known", async () => {
  assert.equal(await granted("hot", "e", 42), 42);
  assert.equal((await consume("hot", "e")).body.source, undefined);
  const { status, body } = await consume("hot", "e", 1, 999);
  assert.deepEqual([status, body.source, body.retry_at], [429, "cache", NOW + 8_000]);
  await tollgate.post("refund", { policy: "hot", key: "e", cost: 8 }, at(1_000));
  assert.equal((await consume("hot", "e", 1, 1_000)).status, 200);
});

test("a restart loses at most a block of each shard, and creates no tokens", async () => {
  const own = await start({ policies: { hot: { ...HOT, write_ahead: 16 } } });
  const ask = () => own.post("consume", { policy: "hot", key: "f" }, at(0));
  let all = 0;
  for (let round = 0; round < 3; round++) {
    for (let i = 0; i < 8; i++) all += (await ask()).status === 200 ? 1 : 0;
    await own.kill();
    await own.restart();
  }
  for (let i = 0; i < 60; i++) all += (await ask()).status === 200 ? 1 : 0;
  assert.ok(all <= 42 && all >= 24, `${all}`);
});

test("what shards cannot do is refused with an alternative, and nothing is taken", async () => {
  for (const [path, body, detail, options] of [
    ["batch", { requests: [{ policy: "hot", key: "g" }] }, "be part of a batch: ask for it alone"],
    ["charge", { policy: "hot", key: "g" }, "be charged: consume before the work is done"],
    ["consume", { policy: "hot", key: "g", mode: "reserve" }, "have debts or reservations: leave out `mode`"],
    ["consume", { policy: "hot", key: "g", snapshot: true }, "show a `snapshot` with each answer"],
    [
      "consume",
      { policy: "hot", key: "g" },
      "take an Idempotency-Key with `consume`: leave it out",
      { headers: { "idempotency-key": "1" } },
    ],
  ]) {
    const answer = await tollgate.post(path, body, { ...at(0), ...options });
    assert.equal(answer.status, 400, answer.text);
    assert.ok(answer.body.detail.includes(detail), answer.body.detail);
  }
  const { status, body } = await consume("hot", "g", 7);
  assert.deepEqual([status, body.type.split(":").pop(), body.max_cost], [400, "cost-too-large", 6]);
  assert.equal((await peek("hot", "g")).remaining, 42);
});

test("an operator sees each shard, and resets them all", async () => {
  assert.equal(await granted("hot", "h", 42), 42);
  const { status, body } = await tollgate.post("keys/inspect", { key: "h" }, at(0));
  assert.equal(status, 200);
  assert.deepEqual(
    body.policies.map(({ policy, shard, limits }) => [policy, shard.index, shard.count, limits[0].capacity]),
    Array.from({ length: 8 }, (_, index) => ["hot", index, 8, index < 2 ? 6 : 5]),
  );
  assert.equal(body.decisions.length, 16, "the latest");
  const explained = await tollgate.post("keys/explain", { policy: "hot", key: "h" }, at(0));
  assert.equal(explained.status, 200, explained.text);
  assert.equal(
    explained.body.explanation,
    "Refused: the limit hot allows 80 per 1m 20s, at most 42 at once; 0 are left in 8 shards, and 1 were " +
      "asked for; the first shard to have enough has it by 2023-11-14 22:13:28 UTC, in 8s.",
  );
  const reset = await tollgate.post("keys/reset", { policy: "hot", key: "h" }, at(0));
  assert.deepEqual([reset.status, reset.body.recorded], [200, true], reset.text);
  assert.equal((await peek("hot", "h")).remaining, 42);
});

test("when the number of shards changes, nothing is granted twice", async () => {
  const service = await governed({ policies: POLICIES, tokens: { ops: admin.entry }, token: admin.text });
  const put = (policy, body) => service.send("PUT", `/v1/policies/${policy}`, body, { headers: { "if-match": "*" } });
  const ask = (cost = 1) => service.send("POST", "/v1/consume", { policy: "hot", key: "i", cost });
  const left = async () => (await service.send("POST", "/v1/peek", { policy: "hot", key: "i" })).body.remaining;
  for (let i = 0; i < 10; i++) assert.equal((await ask()).status, 200);
  assert.equal(await left(), 32);
  for (const [shards, most] of [
    [1, 6], // the first keeps what it has
    [4, 6],
    [16, 3],
  ]) {
    service.wait(1);
    const changed = await put("hot", { ...HOT, rate: 0, shards });
    assert.equal(changed.status, 200, changed.text);
    if (shards > 1) assert.ok(changed.body.changes.some((line) => line.startsWith(`shards: ${shards} instead of `)));
    assert.ok((await left()) <= most, `${await left()} of ${shards}`);
  }
  let granted = 0;
  for (let i = 0; i < 8; i++) granted += (await ask()).status === 200 ? 1 : 0;
  assert.ok(granted <= 3, `${granted}`);
  const wrong = await service.send("PUT", "/v1/policies/hot?carry=additive", HOT, { headers: { "if-match": "*" } });
  assert.equal(wrong.status, 400, wrong.text);
  assert.match(wrong.body.detail ?? wrong.text, /with shards, `carry` must be as_is or reset/);
});

test("a key with fewer tokens than shards has as many shards as tokens", async () => {
  const service = await governed({ policies: POLICIES, tokens: { ops: admin.entry }, token: admin.text });
  const override = { policy: "hot", key: "j", rate: 3, period: "3s" };
  const put = await service.send("PUT", "/v1/overrides", { overrides: [override] });
  assert.equal(put.status, 200, put.text);
  service.wait(20_000); // whenever it was first looked at
  const ask = () => service.send("POST", "/v1/consume", { policy: "hot", key: "j" });
  let granted = 0;
  for (let i = 0; i < 8; i++) granted += (await ask()).status === 200 ? 1 : 0;
  assert.equal(granted, 3);
});

/** A separate service, whose policy `hot` never refills and has this many shards. */
async function changing() {
  const hot = { rate: 0, period: "1s", capacity: 64 };
  const service = await governed({ policies: { ...POLICIES, hot }, tokens: { ops: admin.entry }, token: admin.text });
  const post = (verb, key, body, id) =>
    service.send("POST", `/v1/${verb}`, { policy: "hot", key, ...body }, id && { headers: { "idempotency-key": id } });
  return {
    service,
    post,
    left: async (key) => (await post("peek", key)).body.remaining,
    divide: async (shards) => {
      service.wait(1);
      const headers = { "if-match": "*" };
      const changed = await service.send("PUT", "/v1/policies/hot", { ...hot, shards }, { headers });
      assert.equal(changed.status, 200, changed.text);
    },
  };
}

test("tokens given back under an Idempotency-Key are given once, however the number of shards changes", async () => {
  const { post, left, divide } = await changing();
  assert.equal((await post("consume", "a", { cost: 60 })).status, 200);
  const refund = (id, cost = 32) => post("refund", "a", { cost }, id);
  const whole = await refund("1");
  assert.deepEqual([whole.status, whole.body.tokens, whole.body.remaining], [200, 32, 36], whole.text);
  await divide(8);
  assert.equal(await left("a"), 8, "the first keeps its part");
  const again = await refund("1");
  assert.deepEqual([again.status, again.body.replayed, again.body.tokens], [200, true, 32], again.text);
  assert.equal(await left("a"), 8);
  // In eight shards, repeated in eight, in four, in sixteen and in one.
  const divided = await refund("2", 21);
  assert.equal(divided.body.replayed, undefined, divided.text);
  const had = await left("a");
  for (const shards of [8, 4, 16, 1]) {
    if (shards !== 8) await divide(shards);
    const before = await left("a");
    assert.ok(before <= had, `${before} of ${had}`);
    const repeated = await refund("2", 21);
    assert.deepEqual([repeated.status, repeated.body.replayed], [200, true], repeated.text);
    assert.equal(await left("a"), before, `${shards} shards`);
  }
  const reset = await post("reset", "a", {}, "3");
  assert.deepEqual([reset.status, reset.body.remaining], [200, 64]);
  await divide(16);
  assert.equal((await post("reset", "a", {}, "3")).body.replayed, true);
  assert.equal(await left("a"), 4);
});

test("an Idempotency-Key of another request is a 422, before any shard has done anything", async () => {
  const { post, left, divide, service } = await changing();
  // Known only to the key's own object.
  const first = await service.send(
    "POST",
    "/v1/charge",
    { policy: "cold", key: "b" },
    { headers: { "idempotency-key": "1" } },
  );
  assert.equal(first.status, 200, first.text);
  await divide(4);
  for (let i = 0; i < 8; i++) assert.equal((await post("consume", "b", { cost: 2 })).status, 200);
  assert.equal(await left("b"), 0);
  assert.equal((await post("refund", "b", { cost: 4 }, "2")).body.remaining, 4);
  for (const [verb, body, id] of [
    ["refund", { cost: 8 }, "1"],
    ["reset", {}, "1"],
    ["refund", { cost: 5 }, "2"],
    ["reset", {}, "2"],
  ])
    for (let i = 0; i < 2; i++) {
      const { status, body: problem, text } = await post(verb, "b", body, id);
      assert.deepEqual([status, problem.type?.split(":").pop()], [422, "idempotency-key-reused"], text);
      assert.equal(await left("b"), 4);
    }
});

test("a reservation can be closed after its policy gains shards, and after it loses them", async () => {
  const { post, left, divide } = await changing();
  const reserve = async () => (await post("consume", "c", { cost: 10, mode: "reserve" })).body.reservation;
  const ids = [];
  for (let i = 0; i < 4; i++) ids.push(await reserve());
  await divide(4);
  assert.equal(await left("c"), 16);
  const consumed = await Promise.all(Array.from({ length: 20 }, () => post("consume", "c")));
  assert.equal(consumed.filter(({ status }) => status === 200).length, 16);
  const extended = await post("extend", "c", { reservation: ids[2] });
  assert.deepEqual([extended.status, extended.body.reservation], [200, ids[2]], extended.text);
  assert.equal(
    (await post("extend", "c", { reservation: ids[2], cost: 1 })).status,
    429,
    "the first shard has nothing",
  );
  const settle = (id, cost) => post("settle", "c", { reservation: id, cost });
  const settled = await settle(ids[0], 4);
  assert.deepEqual([settled.status, settled.body.tokens, settled.body.remaining], [200, 4, 0], settled.text);
  assert.equal((await settle(ids[0], 4)).body.replayed, true);
  assert.equal((await settle(ids[0], 5)).status, 409);
  const cancelled = await post("cancel", "c", { reservation: ids[1] }, "1");
  assert.deepEqual([cancelled.status, cancelled.body.remaining], [200, 0], "the first shard had all it has room for");
  assert.equal((await post("cancel", "c", { reservation: ids[1] }, "1")).body.replayed, true);
  assert.equal((await settle("0000000000001", 1)).body.type.split(":").pop(), "unknown-reservation");
  await divide(1);
  assert.equal((await post("cancel", "c", { reservation: ids[1] }, "1")).body.replayed, true);
  assert.equal((await post("cancel", "c", { reservation: ids[2] })).body.remaining, 0);
  assert.equal((await settle(ids[3])).body.tokens, 10, "at the reserved cost");
  assert.equal(await left("c"), 0);
});

test("a request from before the policy had shards is replayed, and its idempotency key allows no other", async () => {
  const { post, left, divide } = await changing();
  const done = [
    ["consume", { cost: 3 }, "1"],
    ["consume", { cost: 3, mode: "up_to" }, "2"],
    ["charge", { cost: 3 }, "3"],
    ["consume", { cost: 3, mode: "reserve" }, "4"],
  ];
  const first = [];
  for (const [verb, body, id] of done) first.push((await post(verb, "d", body, id)).body);
  await divide(8);
  const before = await left("d");
  for (const [index, [verb, body, id]] of done.entries()) {
    const again = await post(verb, "d", body, id);
    const { replayed, reservation, policy } = again.body;
    assert.deepEqual(
      [again.status, replayed, reservation, policy],
      [200, true, first[index].reservation, "hot"],
      again.text,
    );
    assert.equal((await post(verb, "d", { ...body, cost: 4 }, id)).status, 422);
    const fresh = await post(verb, "d", body, "5");
    assert.equal(fresh.status, 400, fresh.text);
    assert.match(fresh.body.detail, /^a policy with shards|^policy hot has 8 shards/);
  }
  assert.equal(await left("d"), before);
  assert.equal((await post("cancel", "d", { reservation: first[3].reservation })).status, 200);
});
