// Leases: tokens that a frontend takes in advance and spends without a call.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const admin = newToken("consume", "adjust", "admin");
const DAYS = { rate: 1, period: "1day", lease: "2s", refusal_cache: "0s" };
const POLICIES = {
  days: { ...DAYS, capacity: 100 },
  shared: { ...DAYS, capacity: 150 },
  many: { ...DAYS, capacity: 1_000 },
  few: { ...DAYS, capacity: 1_000, max_lease: 30 },
  short: { rate: 10, period: "1s", capacity: 10, lease: "4s", refusal_cache: "1s" },
  uneven: { rate: 100, period: "1s", lease: "2s", refusal_cache: "10s" },
  exact: { ...DAYS, capacity: 50, lease: undefined },
  both: {
    ...DAYS,
    rate: undefined,
    period: undefined,
    limits: [
      { name: "requests", rate: 1, period: "1day", capacity: 100 },
      { name: "tokens", rate: 1, period: "1day", capacity: 1_000 },
    ],
  },
};
/** After 48 at once a key gets a lease; these are some more. */
const BUSY = 60;
const settings = { policies: POLICIES, tokens: { ops: admin.entry }, token: admin.text };
const tollgate = await start({ ...settings, registry: true });

/** The answers to consecutive requests, at a moment after NOW. */
async function ask(count, request, { at = 0, ...options } = {}, service = tollgate) {
  const answers = [];
  for (let i = 0; i < count; i++) answers.push(await service.post("consume", request, { now: NOW + at, ...options }));
  return answers;
}

const granted = (answers) => answers.filter(({ status }) => status === 200).length;
const leased = (answers) => answers.filter(({ body }) => body.source === "lease").length;

/** Asks for a budget of the policy `short` until it refuses, for four seconds up to NOW: from then on leases are worth it. */
async function makeBusy(budget) {
  for (const at of [-4_000, -3_000, -2_000, -1_000]) assert.equal(granted(await ask(11, budget, { at })), 10);
}

/** A value of the metrics. */
async function metric(name) {
  const { text } = await tollgate.send({ method: "GET", path: "/v1/metrics", now: NOW });
  const line = text.split("\n").find((line) => line.startsWith(`${name} `));
  return Number(line?.slice(name.length + 1) ?? 0);
}

/** The tokens left in a budget, for all but the holders of leases. */
async function remaining(budget, { at = 0, ...options } = {}, service = tollgate) {
  const { body } = await service.post("peek", budget, { now: NOW + at, ...options });
  return body.remaining;
}

/** Waits until a budget has this many left. */
async function untilRemaining(count, budget, options, service = tollgate) {
  for (let tries = 0; tries < 100; tries++) {
    if ((await remaining(budget, options, service)) === count) return;
    await sleep(100);
  }
  assert.equal(await remaining(budget, options, service), count);
}

test("a busy frontend decides by itself, and grants exactly what is available", async () => {
  const calls = 'tollgate_object_call_duration_seconds_count{outcome="answered"}';
  const before = await metric(calls);
  const answers = await ask(130, { policy: "days", key: "a" });
  assert.equal(granted(answers), 100);
  assert.ok(leased(answers) >= 30, `${leased(answers)} from leases`);
  assert.equal(leased(answers.slice(0, 48)), 0, "no lease is worth its row for these");
  assert.deepEqual(new Set(answers.slice(-20).map(({ status }) => status)), new Set([429]));
  const made = (await metric(calls)) - before;
  assert.ok(made <= 90, `${made} calls`); // the 30 refusals are asked one by one
  assert.equal(await metric('tollgate_decisions_total{policy="days",outcome="allowed"}'), 100);
  assert.equal(await metric('tollgate_leased_decisions_total{policy="days"}'), leased(answers));
});

test("a large cost refused from memory leaves the lease to small ones, which lengthen its wait", async () => {
  const [small, large] = [
    { policy: "uneven", key: "a" },
    { policy: "uneven", key: "a", cost: 60 },
  ];
  assert.equal(granted(await ask(90, small)), 90);
  const [first] = await ask(1, large);
  assert.deepEqual([first.status, first.body.source, first.body.retry_at], [429, undefined, NOW + 500]);
  // From then on, there are leases again.
  const between = await ask(10, small, { at: 500 });
  assert.equal(between.at(-1).body.source, "lease");
  const taken = granted(between);
  assert.equal(taken, 10);
  const [again, after] = [...(await ask(1, large, { at: 500 })), ...(await ask(1, small, { at: 500 }))];
  assert.deepEqual([again.status, again.body.source, again.body.retry_at], [429, "cache", NOW + 600]);
  assert.deepEqual([after.status, after.body.source], [200, "lease"]);
  const [last] = await ask(1, large, { at: 500 });
  assert.deepEqual([last.body.source, last.body.retry_at], ["cache", NOW + 610]);
  // A request that cannot use a lease does not return it: the object is asked, and refuses for longer.
  const reserve = { ...large, mode: "reserve", max_wait_ms: 0 };
  const { body } = await tollgate.post("consume", reserve, { now: NOW + 500 });
  assert.deepEqual([body.allowed, body.source], [false, undefined]);
  assert.ok(body.retry_at > NOW + 610, `${body.retry_at - NOW}`);
});

test("an answer from a lease reports what is left of the lease", async () => {
  const answers = await ask(BUSY, { policy: "many", key: "b" });
  const { body, headers } = answers.find(({ body }) => body.source === "lease");
  assert.deepEqual([body.allowed, body.policy, body.limit], [true, "many", 1_000]);
  assert.ok(body.remaining >= 0 && body.remaining < 1_000, `${body.remaining}`);
  assert.match(headers.ratelimit, new RegExp(`r=${body.remaining}(;|$)`));
});

test("an idle lease returns what is left, and what was spent stays spent", async () => {
  const budget = { policy: "many", key: "c" };
  const count = BUSY;
  assert.equal(granted(await ask(count, budget)), count);
  assert.ok((await remaining(budget)) < 1_000 - count, "some are leased");
  // The timers are real: they find that the lease has been idle.
  await untilRemaining(1_000 - count, budget, { at: 1_500 });
});

test("two frontends grant what is available, and no more", async () => {
  const both = await start({ policies: POLICIES, other: { policies: POLICIES } });
  const budget = { policy: "shared", key: "d" };
  const at = (version) => ({ headers: { "x-version": version } });
  let all = 0;
  for (let round = 0; round < 40; round++) {
    all += granted(await ask(2, budget, at("main"), both));
    all += granted(await ask(3, budget, at("other"), both));
  }
  assert.ok(all >= 100 && all <= 150, `${all}`);
  // The tokens that one of them has not spent come back when it is idle.
  await untilRemaining(150 - all, budget, { at: 1_500 }, both);
  const rest = await ask(60, budget, { at: 1_500, ...at("main") }, both);
  assert.equal(all + granted(rest), 150);
});

test("the lease of a killed frontend is withheld, then counts as spent", async () => {
  const own = await start({ policies: POLICIES });
  const budget = { policy: "many", key: "e" };
  const count = BUSY;
  assert.equal(granted(await ask(count, budget, {}, own)), count);
  const left = await remaining(budget, {}, own);
  await own.kill();
  await own.restart();
  assert.equal(await remaining(budget, {}, own), left);
  assert.equal(await remaining(budget, { at: 60_000 }, own), left);
  assert.ok(left >= 1_000 - 4 * count, "at most a lease and the next");
});

test("under overload, tokens are leased before they refill, and waits are exact", async () => {
  const budget = { policy: "short", key: "f" };
  await makeBusy(budget);
  const answers = await ask(40, budget);
  assert.equal(granted(answers), 10);
  const refusal = answers.findLast(({ body }) => body.source === "lease" && !body.allowed);
  assert.ok(refusal, "refused without a call");
  const { retry_at } = refusal.body;
  assert.ok(retry_at > NOW && retry_at <= NOW + 1_000, `${retry_at - NOW}`);
  assert.equal(granted(await ask(1, budget, { at: retry_at - NOW - 1 })), 0);
  assert.equal(granted(await ask(1, budget, { at: retry_at - NOW })), 1);
});

test("a wait from memory includes what a lease has granted since", async () => {
  const budget = { policy: "short", key: "memory" };
  await makeBusy(budget);
  const at = async (ms, cost) => (await ask(1, { ...budget, cost }, { at: ms }))[0];
  for (const cost of [1, 1, 8]) assert.equal((await at(0, cost)).status, 200);
  const { body } = await at(0, 5); // with a lease of five tokens, from then on
  assert.equal(body.retry_at, NOW + 500);
  for (let i = 0; i < 3; i++) assert.equal((await at(500, 1)).body.source, "lease");
  const refused = await at(500, 9);
  assert.deepEqual([refused.status, refused.body.source, refused.body.retry_at], [429, undefined, NOW + 1_200]);
  assert.equal((await at(1_200, 9)).status, 200);
});

test("a batch of one request is granted and refused from a lease", async () => {
  const askBatch = async (budget) => (await tollgate.post("batch", { requests: [budget] }, { now: NOW })).body;
  const granted = [];
  for (let i = 0; i < BUSY; i++) granted.push(await askBatch({ policy: "many", key: "i" }));
  const { allowed, results } = granted.find(({ source }) => source === "lease");
  assert.deepEqual([allowed, results.length, results[0].allowed, results[0].source], [true, 1, true, undefined]);
  const answers = [];
  await makeBusy({ policy: "short", key: "j" });
  for (let i = 0; i < 40; i++) answers.push(await askBatch({ policy: "short", key: "j" }));
  const refused = answers.findLast(({ source, allowed }) => source === "lease" && !allowed);
  assert.ok(refused, "refused without a call");
  assert.equal(refused.retry_at, refused.results[0].retry_at);
});

test("some requests always reach the object: repetitions, snapshots, batches of two, and all under other policies", async () => {
  const budget = { policy: "many", key: "g" };
  await ask(BUSY, budget);
  const once = await ask(2, budget, { headers: { "idempotency-key": "once" } });
  assert.deepEqual(
    once.map(({ body }) => [body.allowed, body.source]),
    [
      [true, undefined],
      [true, undefined],
    ],
  );
  assert.equal(leased(await ask(5, { ...budget, snapshot: true })), 0);
  const batch = await tollgate.post("batch", { requests: [budget, { policy: "many", key: "h" }] });
  assert.deepEqual([batch.status, batch.body.source], [200, undefined]);
  assert.equal(leased(await ask(20, { policy: "exact", key: "g" })), 0);
});

test("max_lease bounds a lease, and each limit has its own tokens", async () => {
  const few = { policy: "few", key: "i" };
  assert.equal(granted(await ask(BUSY, few)), BUSY);
  const left = await remaining(few);
  assert.ok(left < 1_000 - BUSY && left >= 1_000 - BUSY - 2 * 30, `${left}: one that is spent, and the next`);
  const both = { policy: "both", key: "j", cost: { requests: 1, tokens: 10 } };
  const answers = await ask(110, both);
  assert.equal(granted(answers), 100);
  assert.ok(leased(answers) >= 30, `${leased(answers)} from leases`);
});

test("a policy change withholds leased tokens, and answers every request", async () => {
  const send = (method, policy, body, headers) =>
    tollgate.send({ method, path: `/v1/policies/${policy}`, body: JSON.stringify(body), headers, now: NOW });
  const budget = { policy: "new", key: "k" };
  const one = { lease: "2s", refusal_cache: "0s", limits: [{ name: "x", rate: 1, period: "1day", capacity: 1_000 }] };
  const made = await send("PUT", "new", one, { "if-none-match": "*" });
  assert.equal(made.status, 201);
  assert.ok(leased(await ask(BUSY, budget)) > 0);
  const limits = ["b", "a"].map((name) => ({ name, rate: 1, period: "1day", capacity: 60 }));
  const both = { lease: "2s", refusal_cache: "0s", limits };
  const changed = await send("PUT", "new", both, { "if-match": made.headers.etag });
  assert.equal(changed.status, 200);
  const answers = await ask(70, budget);
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200, 429]));
  assert.ok(granted(answers) <= 60, `${granted(answers)}`);
  assert.ok(leased(answers) > 0);
});
