// Refused: when to retry, by RateLimit and Retry-After, and a grant at that time.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, refused } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  api: { rate: 10, period: "10s" },
  thirds: { rate: 3, period: "1s" },
  slow: { rate: 7, period: "1day" },
  fast: { rate: 2_000, period: "1s" },
  daily: { kind: "fixed_window", rate: 5, period: "1day", offset: "1h" },
  rollover: { kind: "fixed_window", rate: 5, period: "10s", capacity: 12, offset: "0s" },
  once: { rate: 0, period: "1s", capacity: 5 },
  none: { rate: 0, period: "1s" },
  empty: { rate: 1, period: "1s", capacity: 10, initial: 0 },
};
const FIELDS = {
  api: { q: 10, w: 10, "tollgate-capacity": 10 },
  thirds: { q: 3, w: 1, "tollgate-capacity": 3 },
  slow: { q: 7, w: 86_400, "tollgate-capacity": 7 },
  fast: { q: 2_000, w: 1, "tollgate-capacity": 2_000 },
  daily: { q: 5, w: 86_400, "tollgate-capacity": 5 },
  rollover: { q: 5, w: 10, "tollgate-capacity": 12 },
  once: { q: 5, "tollgate-capacity": 5 },
  empty: { q: 1, w: 1, "tollgate-capacity": 10 },
};
const tollgate = await start({ policies: POLICIES });

// The cost taken first; then each row is refused: at, cost, tokens left, full again, retry at, Retry-After, and `t` if
// there are more tokens before there are enough. All moments in ms after NOW, which is 22:13:20 UTC.
const tables = {
  api: [
    [0, 10],
    [0, 1, 0, 10_000, 1_000, 1],
    [1, 1, 0, 10_000, 1_000, 1], // 999 ms are 1 s
    [999, 1, 0, 10_000, 1_000, 1], // and so is 1 ms
    [999, 2, 0, 10_000, 2_000, 2, 1], // 1 001 ms are 2 s
    [1_000, 2, 1, 10_000, 2_000, 1],
    [1_000, 10, 1, 10_000, 10_000, 9, 1],
    [-59_999, 1, 0, 10_000, 1_000, 61], // it waits for a clock that stepped back
    [9_999, 10, 9, 10_000, 10_000, 1],
  ],
  thirds: [
    [0, 3],
    [0, 1, 0, 1_000, 334, 1], // a third of a second, rounded up: at 333 ms one drop is missing
    [333, 1, 0, 1_000, 334, 1],
    [333, 3, 0, 1_000, 1_000, 1],
    [999, 3, 2, 1_000, 1_000, 1],
  ],
  slow: [
    [0, 7],
    [0, 1, 0, 86_400_000, 12_342_858, 12_343], // 86 400 000 / 7 = 12 342 857.14…
    [12_342_857, 1, 0, 86_400_000, 12_342_858, 1],
  ],
  fast: [
    [0, 2_000],
    [0, 1, 0, 1_000, 1, 1], // half a millisecond: whole milliseconds are the clock's
    [0, 3, 0, 1_000, 2, 1],
  ],
  daily: [
    [0, 5],
    [0, 1, 0, 10_000_000, 10_000_000, 10_000],
    [9_999_000, 5, 0, 10_000_000, 10_000_000, 1],
    [9_999_999, 5, 0, 10_000_000, 10_000_000, 1],
  ],
  rollover: [
    [0, 12],
    [0, 1, 0, 30_000, 10_000, 10],
    [0, 11, 0, 30_000, 30_000, 30, 10], // three windows, not one
    [10_000, 6, 5, 30_000, 20_000, 10],
  ],
  once: [
    [0, 3],
    [0, 3, 2, null],
    [1e12, 5, 2, null],
  ],
  empty: [
    [0, 0],
    [0, 1, 0, 10_000, 1_000, 1],
    [999, 1, 0, 10_000, 1_000, 1], // it refills from its first request on, not from now
    [1_000, 10, 1, 10_000, 10_000, 9, 1],
  ],
};

for (const [policy, [[first, spent], ...rows]] of Object.entries(tables)) {
  test(`${policy}: each refusal is complete, and changes nothing`, async () => {
    const ask = (cost) => ({ policy, key: "alice", cost });
    assert.equal((await tollgate.consume(ask(spent), { now: NOW + first })).status, 200);
    for (const [at, cost, remaining, full, retry, ...seconds] of rows) {
      const verdict = {
        policy,
        cost,
        limit: FIELDS[policy]["tollgate-capacity"],
        remaining,
        now: NOW + at,
        reset_at: full === null ? null : NOW + full,
      };
      if (retry !== undefined) verdict.retry_at = NOW + retry;
      const expected = refused(verdict, FIELDS[policy], ...seconds);
      for (const verb of ["consume", "peek", "consume"]) {
        assertAnswer(await tollgate[verb](ask(cost), { now: NOW + at }), expected, `${verb} ${cost} at ${at}`);
      }
    }
  });
}

test("refused until retry_at and granted at it, however many requests come in between", async () => {
  for (const [policy, cost] of [
    ["api", 3],
    ["thirds", 1],
    ["slow", 2],
    ["fast", 5],
    ["daily", 4],
    ["rollover", 11],
    ["empty", 2],
  ]) {
    const ask = { policy, key: "bob", cost };
    const { capacity, rate, initial } = POLICIES[policy];
    await tollgate.consume({ ...ask, cost: initial ?? capacity ?? rate });
    const { retry_at } = (await tollgate.consume(ask)).body;
    const wait = retry_at - NOW;
    for (let i = 0; i < 20; i++) {
      const now = NOW + Math.floor(((wait - 1) * i) / 19);
      const { status, body } = await tollgate.consume(ask, { now });
      assert.deepEqual([status, body.retry_at], [429, retry_at], `${policy} ${now - NOW} of ${wait} ms later`);
    }
    assert.equal((await tollgate.peek(ask, { now: retry_at })).status, 200, policy);
    assert.equal((await tollgate.consume(ask, { now: retry_at })).status, 200, policy);
  }
});

test("a client that waits as long as Retry-After says is served", async () => {
  for (const policy of ["api", "thirds", "slow", "fast", "daily", "rollover", "empty"]) {
    const { capacity, rate, initial } = POLICIES[policy];
    const ask = { policy, key: "carol" };
    await tollgate.consume({ ...ask, cost: initial ?? capacity ?? rate });
    const { status, headers } = await tollgate.consume(ask);
    assert.equal(status, 429);
    const now = NOW + Number(headers["retry-after"]) * 1_000;
    assert.equal((await tollgate.consume(ask, { now })).status, 200, policy);
  }
});

test("a clock that steps back by more than a minute is followed, and locks no client out", async () => {
  const ask = { policy: "slow", key: "dave" };
  await tollgate.consume({ ...ask, cost: 7 });
  const wait = 12_342_858;
  const now = NOW - 10 * 86_400_000;
  const { status, body } = await tollgate.consume(ask, { now });
  assert.deepEqual([status, body.retry_at], [429, now + wait], "not the eleven days until the old clock's moment");
  assert.equal((await tollgate.consume(ask, { now: now + wait - 1 })).status, 429);
  assert.equal((await tollgate.consume(ask, { now: now + wait })).status, 200);
});

test("a clock that steps back by up to a minute: no time passes, and nothing is granted twice", async () => {
  const ask = { policy: "slow", key: "erin" };
  const { body: emptied } = await tollgate.consume({ ...ask, cost: 7 });
  const { retry_at } = (await tollgate.consume(ask)).body;
  for (const ms of [1, 60_000]) {
    const { status, body } = await tollgate.consume(ask, { now: NOW - ms });
    assert.deepEqual([status, body.retry_at], [429, retry_at], `${ms} ms back`);
  }
  assert.equal(emptied.remaining, 0);
  assert.equal((await tollgate.consume(ask, { now: retry_at - 1 })).status, 429);
  assert.equal((await tollgate.consume(ask, { now: retry_at })).status, 200);
});

test("a capacity of 0 refuses every cost, without a retry time", async () => {
  const none = { policy: "none", key: "alice" };
  for (const cost of [1, 2, 1_000_000]) {
    for (const mode of [undefined, "reserve", "borrow"]) {
      const { status, headers, body } = await tollgate.consume({ ...none, cost, mode });
      assert.deepEqual([status, headers["retry-after"], body.allowed], [429, undefined, false], `${cost} ${mode}`);
      assert.equal(
        body.detail,
        `policy none has 0 of 0 tokens left and the cost is ${cost}; with a capacity of 0 nothing can pass`,
      );
    }
  }
  const requests = [none, { policy: "api", key: "none" }];
  assert.equal((await tollgate.post("batch", { requests })).status, 429);
  assert.equal((await tollgate.peek({ policy: "api", key: "none" })).body.remaining, 10);
  assert.equal((await tollgate.consume({ ...none, cost: 0 })).status, 200);
  assert.equal(
    (await tollgate.consume({ policy: "once", key: "alice-2", cost: 6 })).status,
    400,
    "more than ever passes",
  );
});
