// Leases of trusted clients: `POST /v1/lease`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const backend = newToken("consume");
const server = newToken("adjust");
const DAYS = { rate: 1, period: "1day", lease: "2s" };
const POLICIES = {
  days: { ...DAYS, capacity: 100 },
  few: { ...DAYS, capacity: 100, max_lease: 5 },
  short: { rate: 10, period: "1s", capacity: 10, lease: "2s", refusal_cache: "1s" },
  exact: { rate: 1, period: "1day", capacity: 100 },
  tried: { ...DAYS, capacity: 100, mode: "shadow" },
  llm: {
    lease: "2s",
    limits: [
      { name: "requests", rate: 1, period: "1day", capacity: 10 },
      { name: "tokens", rate: 1, period: "1day", capacity: 1_000 },
    ],
  },
};
const tollgate = await start({ policies: POLICIES, tokens: { backend: backend.entry, server: server.entry } });

const lease = (request, { at = 0, ...options } = {}, service = tollgate) =>
  service.post("lease", request, { now: NOW + at, ...options });
const give = (budget, lease, spent) => ({ ...budget, returned: [{ lease, spent }] });

/** The tokens left in a budget beside all leases. */
async function remaining(budget, at = 0, service = tollgate) {
  const { body } = await service.post("peek", budget, { now: NOW + at });
  return body.limits?.map(({ remaining }) => remaining) ?? body.remaining;
}

test("a lease has at most half of what is available, and its times are the server's", async () => {
  const budget = { policy: "days", key: "a" };
  const { status, body } = await lease({ ...budget, tokens: 30 });
  const { lease: id, ...rest } = body;
  assert.match(id, /^[0-9a-f]{16}$/);
  assert.equal(status, 200);
  assert.deepEqual(rest, { policy: "days", now: NOW, tokens: 30, from: NOW, until: NOW + 2_000, remaining: 100 });
  assert.equal((await lease({ ...budget, tokens: 1_000 })).body.tokens, 35);
  assert.equal(await remaining(budget), 35);
  assert.equal((await lease({ ...budget, policy: "few", tokens: 30 })).body.tokens, 5);
});

test("returned tokens come back once, spent ones do not", async () => {
  const budget = { policy: "days", key: "b" };
  const { lease: id } = (await lease({ ...budget, tokens: 40 })).body;
  assert.equal(await remaining(budget), 60);
  for (let times = 0; times < 3; times++) {
    const { status, body } = await lease(give(budget, id.toUpperCase(), 15));
    assert.deepEqual([status, body.tokens, body.lease, body.retry_at], [200, 0, undefined, undefined]);
    assert.equal(await remaining(budget), 85);
  }
});

test("spending more than was leased counts as all of it, and an unknown lease as nothing", async () => {
  const budget = { policy: "days", key: "c" };
  const { lease: id } = (await lease({ ...budget, tokens: 40 })).body;
  await lease(give(budget, id, 2 ** 53 - 1));
  assert.equal(await remaining(budget), 60);
  await lease(give(budget, "0123456789abcdef", 0));
  await lease(give({ ...budget, key: "another" }, id, 0));
  assert.equal(await remaining(budget), 60);
  assert.equal(await remaining({ ...budget, key: "another" }), 100);
});

test("the lease of a vanished client is withheld for three more seconds, then counts as spent", async () => {
  const budget = { policy: "days", key: "d" };
  const { lease: id } = (await lease({ ...budget, tokens: 40 })).body;
  assert.equal(await remaining(budget, 4_999), 60);
  assert.equal(await remaining(budget, 60_000), 60);
  await lease(give(budget, id, 0), { at: 60_000 });
  assert.equal(await remaining(budget, 60_000), 60, "too late");
  const late = { ...budget, key: "late" };
  const again = (await lease({ ...late, tokens: 40 })).body.lease;
  await lease(give(late, again, 10), { at: 4_999 });
  assert.equal(await remaining(late, 4_999), 90, "late, but not too late");
});

test("a restart of the object changes nothing", async () => {
  const own = await start({ policies: POLICIES });
  const budget = { policy: "days", key: "e" };
  const { lease: id } = (await lease({ ...budget, tokens: 40 }, {}, own)).body;
  await own.kill();
  await own.restart();
  assert.equal(await remaining(budget, 0, own), 60);
  await lease(give(budget, id, 7), {}, own);
  await own.kill();
  await own.restart();
  await lease(give(budget, id, 0), {}, own);
  assert.equal(await remaining(budget, 0, own), 93);
});

test("two clients never get more than is available", async () => {
  const budget = { policy: "days", key: "f" };
  let leased = 0;
  for (let times = 0; times < 20; times++) leased += (await lease({ ...budget, tokens: 60 })).body.tokens;
  assert.ok(leased > 90 && leased <= 100, `${leased}`);
  const rest = await remaining(budget);
  assert.equal(leased + rest, 100);
});

test("a cost is taken as by consume, and the rest is leased", async () => {
  const budget = { policy: "short", key: "g" };
  const taken = (await lease({ ...budget, cost: 2, tokens: 3 })).body;
  assert.deepEqual([taken.allowed, taken.tokens, taken.remaining], [true, 3, 8]);
  assert.equal(await remaining(budget), 5);
  assert.equal((await lease({ ...budget, cost: 5 })).body.allowed, true);
  // Nothing is left: future tokens are leased.
  const refused = (await lease({ ...budget, cost: 1, tokens: 4 })).body;
  assert.deepEqual([refused.allowed, refused.tokens > 0], [false, true]);
  assert.ok(refused.from > NOW && refused.retry_at >= refused.from, `${refused.from - NOW}`);
});

test("without tokens the answer says exactly when there is one", async () => {
  const budget = { policy: "days", key: "h" };
  await tollgate.post("consume", { ...budget, cost: 100 }, { now: NOW });
  const { body } = await lease({ ...budget, tokens: 10 });
  assert.deepEqual([body.tokens, body.lease, body.allowed], [0, undefined, undefined]);
  assert.equal(body.retry_at, NOW + 86_400_000);
  assert.equal(body.retry_after_ms, 86_400_000);
  assert.equal((await lease({ ...budget, tokens: 10 }, { at: 86_399_999 })).body.tokens, 0);
  assert.equal((await lease({ ...budget, tokens: 10 }, { at: 86_400_000 })).body.tokens, 1);
});

test("each limit has its own tokens, written as a cost", async () => {
  const budget = { policy: "llm", key: "i" };
  const { body } = await lease({ ...budget, tokens: { requests: 2, tokens: 300 }, cost: { requests: 1, tokens: 50 } });
  assert.deepEqual(body.tokens, { requests: 2, tokens: 300 });
  assert.deepEqual(await remaining(budget), [7, 650]);
  await lease(give(budget, body.lease, { requests: 1, tokens: 300 }));
  assert.deepEqual(await remaining(budget), [8, 650]);
});

test("an Idempotency-Key takes once and leases once", async () => {
  const budget = { policy: "days", key: "j" };
  const headers = { "idempotency-key": "once" };
  const first = (await lease({ ...budget, cost: 5, tokens: 10 }, { headers })).body;
  assert.deepEqual([first.allowed, first.tokens, first.replayed], [true, 10, undefined]);
  const again = (await lease({ ...budget, cost: 5, tokens: 10 }, { headers })).body;
  assert.deepEqual([again.allowed, again.tokens, again.replayed], [true, 0, true]);
  assert.equal(await remaining(budget), 85);
});

test("under a policy in shadow nothing is leased, and everything passes", async () => {
  const { body } = await lease({ policy: "tried", key: "k", cost: 1, tokens: 10 });
  assert.deepEqual([body.allowed, body.tokens], [true, 0]);
});

test("rejects malformed requests, and needs the scope adjust", async () => {
  const budget = { policy: "days", key: "l" };
  for (const [request, detail] of [
    [{ ...budget, tokens: 0 }, "`tokens` must be at least 1, of each limit; to lease none, leave it out"],
    [{ policy: "exact", key: "l", tokens: 1 }, "policy exact has no `lease`: its tokens cannot be leased"],
    [give(budget, "123", 0), 'returned[0]: `lease` must be a lease\'s id of 16 hex digits, not "123"'],
  ]) {
    const { status, body } = await lease(request);
    assert.deepEqual([status, body.detail], [400, detail]);
  }
  assert.equal((await lease({ policy: "none", key: "l", tokens: 1 })).status, 404);
  const tooLarge = await lease({ ...budget, cost: 101, tokens: 1 });
  assert.deepEqual([tooLarge.status, tooLarge.body.max_cost], [400, 100]);
  const with_ = (token) => ({ headers: { authorization: `Bearer ${token.text}` } });
  const forbidden = await lease({ ...budget, tokens: 1 }, with_(backend));
  assert.deepEqual([forbidden.status, forbidden.body.scope], [403, "adjust"]);
  assert.equal((await lease({ ...budget, tokens: 1 }, with_(server))).status, 200);
});
