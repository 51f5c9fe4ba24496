// Slots: how many at once. A reservation takes them, and its end gives them back.
import assert from "node:assert/strict";
import { test } from "node:test";
import { problem } from "./answers.mjs";
import { newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const AT_ONCE = { name: "at_once", kind: "slots", capacity: 2 };
const POLICIES = {
  uploads: { kind: "slots", capacity: 2, reservation_ttl: "30s" },
  llm: { limits: [AT_ONCE, { name: "tokens", rate: 0, period: "1s", capacity: 1_000 }], reservation_ttl: "30s" },
};
const operator = newToken("consume", "adjust", "admin");
const tollgate = await start({ policies: POLICIES, tokens: { ops: operator.entry }, token: operator.text });

const reserve = (policy, key, more, options) => tollgate.consume({ policy, key, mode: "reserve", ...more }, options);
const close = (verb, policy, key, { body: { reservation } }, more = {}, options = {}) =>
  tollgate.post(verb, { policy, key, reservation, ...more }, options);
const levels = async (policy, key, options) =>
  (await tollgate.post("inspect", { policy, key }, options)).body.limits.map(({ remaining }) => remaining);

test("reservations hold slots while they are open, and no more of them are open than there are slots", async () => {
  const [first, second] = [await reserve("uploads", "a"), await reserve("uploads", "a")];
  assert.deepEqual([first.body.remaining, second.body.remaining], [1, 0]);
  const refused = await reserve("uploads", "a", {}, { now: NOW + 1_000 });
  assert.equal(refused.status, 429, refused.text);
  assert.equal(refused.body.retry_at, NOW + 30_000, "when the first ends at the latest");
  const settled = await close("settle", "uploads", "a", first);
  assert.deepEqual([settled.body.tokens, settled.body.remaining], [0, 1], settled.text);
  const cancelled = await close("cancel", "uploads", "a", second);
  assert.deepEqual([cancelled.body.tokens, cancelled.body.remaining], [1, 2], cancelled.text);
  assert.equal((await reserve("uploads", "a", { cost: 2 })).status, 200);
  assert.equal((await reserve("uploads", "a")).status, 429);
  assert.deepEqual(await levels("uploads", "a", { now: NOW + 29_999 }), [0]);
  assert.deepEqual(await levels("uploads", "a", { now: NOW + 30_000 }), [2]);
});

test("extending is its heartbeat", async () => {
  const open = await reserve("uploads", "b", { cost: 2 });
  for (let now = NOW; now < NOW + 100_000; now += 20_000) {
    const extended = await close("extend", "uploads", "b", open, {}, { now: now });
    assert.equal(extended.body.expires_at, now + 30_000, extended.text);
    assert.deepEqual(await levels("uploads", "b", { now: now + 19_999 }), [0]);
  }
  assert.deepEqual(await levels("uploads", "b", { now: NOW + 110_000 }), [2]);
});

test("beside other limits, a settlement returns the slot and keeps the rest", async () => {
  const first = await reserve("llm", "c", { cost: 400 });
  const second = await reserve("llm", "c", { cost: { tokens: 100 } });
  assert.deepEqual(await levels("llm", "c"), [0, 500]);
  assert.equal((await reserve("llm", "c", { cost: 1 })).status, 429);
  await close("settle", "llm", "c", first, { cost: 300 });
  assert.deepEqual(await levels("llm", "c"), [1, 600]);
  await close("settle", "llm", "c", second, { cost: { at_once: 2, tokens: 150 } });
  assert.deepEqual(await levels("llm", "c"), [2, 550]);
  await tollgate.post("charge", { policy: "llm", key: "c", cost: 50 });
  assert.deepEqual(await levels("llm", "c"), [2, 500]);
});

test("what only a reservation can do is refused, with what to do instead", async () => {
  const uploads = 'uploads limits slots, which only a reservation takes: send "mode": "reserve"';
  const neither = "uploads limits slots, which are not charged, refunded or reset: settle or cancel their reservations";
  const left = "llm/at_once limits slots, which only reservations take and give back: leave it out of the cost";
  for (const [verb, body, detail] of [
    ["consume", { policy: "uploads" }, uploads],
    ["consume", { policy: "uploads", mode: "up_to" }, uploads],
    ["consume", { policy: "uploads", mode: "borrow" }, uploads],
    ["consume", { policy: "llm", cost: 1 }, uploads.replace("uploads", "llm/at_once")],
    ["charge", { policy: "uploads" }, neither],
    ["refund", { policy: "uploads" }, neither],
    ["reset", { policy: "uploads" }, neither],
    ["charge", { policy: "llm", cost: { at_once: 1, tokens: 1 } }, left],
    ["refund", { policy: "llm", cost: { at_once: 1, tokens: 1 } }, left],
  ]) {
    const answer = await tollgate.post(verb, { key: "d", ...body });
    assert.deepEqual([answer.status, answer.body.detail], [400, detail], answer.text);
  }
  const batch = await tollgate.post("batch", {
    requests: [
      { policy: "uploads", key: "d" },
      { policy: "llm", key: "d" },
    ],
  });
  assert.equal(batch.status, 400);
  assert.match(batch.body.detail, /uploads limits slots, which only a reservation takes, and no batch can reserve/);
  const large = await reserve("uploads", "d", { cost: 3 });
  assert.equal(large.status, 400);
  assert.equal(large.body.type, problem(400, "cost-too-large").body.type, large.text);
});

test("they are explained and inspected as what they are", async () => {
  await reserve("llm", "e", { cost: 400 });
  await reserve("llm", "e", { cost: 400 });
  const explained = await tollgate.post("keys/explain", { policy: "llm", key: "e", cost: 1 });
  assert.equal(explained.status, 200, explained.text);
  const { explanation } = explained.body;
  assert.match(explanation, /the limit llm\/at_once allows 2 at once; 2 are in use, and 1 were asked for/);
  assert.match(explanation, /; enough are free by .*, in 30s, if no reservation is extended/);
  const inspected = await tollgate.post("keys/inspect", { key: "e" });
  const { policies, reservations } = inspected.body;
  assert.deepEqual(
    policies[0].limits.map(({ kind, remaining, held }) => [kind, remaining, held]),
    [
      ["slots", 0, 2],
      ["token_bucket", 200, 0],
    ],
    inspected.text,
  );
  assert.deepEqual(reservations[0].tokens, [
    { policy: "llm", limit: "at_once", tokens: 1 },
    { policy: "llm", limit: "tokens", tokens: 400 },
  ]);
});
