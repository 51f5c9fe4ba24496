// Granted: what is left, when there is more, and when the budget is full again.
import { test } from "node:test";
import { allowed, assertAnswer } from "./answers.mjs";
import { NOW, start, TOKEN } from "./workerd.mjs";

const POLICIES = {
  api: { rate: 10, period: "10s" },
  thirds: { rate: 3, period: "1s" },
  minute: { rate: 100, period: "1m", capacity: 200 },
  tenth: { rate: 1, period: "100ms" },
  half: { rate: 3, period: "1500ms" },
  daily: { kind: "fixed_window", rate: 5, period: "1day", offset: "1h" },
  rollover: { kind: "fixed_window", rate: 5, period: "10s", capacity: 12, offset: "0s" },
  fresh: { rate: 1, period: "1s", capacity: 10, initial: 2 },
  once: { rate: 0, period: "1s", capacity: 5 },
  none: { rate: 1, period: "1s", capacity: 0 },
  most: { kind: "fixed_window", rate: Number.MAX_SAFE_INTEGER, period: "1s", offset: "0s" },
};
const tollgate = await start({ policies: POLICIES });
const field = (q, w, capacity) => ({ q, w, "tollgate-capacity": capacity });

test("each grant reports what is left and when the budget is full again", async (t) => {
  // In each table one key after another; `at` and `full` in ms after NOW, which is 22:13:20 UTC; t, when
  // there is more than what is left, in s, rounded up.
  const tables = {
    api: [
      field(10, 10, 10),
      // at         cost  remaining  full  t
      [0, /*       */ 0, 10, /*   */ 0, 1], // nothing taken: a caller who takes all ten has one more a second later
      [0, /*       */ 3, 7, /* */ 3_000, 1],
      [1, /*       */ 0, 7, /* */ 3_000, 1], // 999 ms are 1 s
      [500, /*     */ 6, 1, /* */ 9_000, 1], // 7½ were there
      [500, /*     */ 1, 0, /* */ 10_000, 1],
      [1_000, /*   */ 1, 0, /* */ 11_000, 1], // the last one: the next comes in a second, not in ten
      [4_999, /*   */ 3, 0, /* */ 14_000, 1], // the 999 drops beyond three tokens are kept ...
      [5_000, /*   */ 1, 0, /* */ 15_000, 1], // ... so this needs one more
      [999_999, /* */ 10, 0, 1_009_999, 1], // no more than the capacity came back
      [995_000, /* */ 0, 0, 1_009_999, 6], // the clock stepped back 5 s: no time has passed
    ],
    thirds: [
      field(3, 1, 3),
      [0, 3, 0, 1_000, 1],
      [334, 1, 0, 1_334, 1], // 2 drops of 1000 are left over, 2998 are missing
      [667, 1, 0, 1_667, 1],
      [1_000, 1, 0, 2_000, 1], // and after a second nothing was lost to rounding
    ],
    minute: [field(100, 60, 200), [0, 200, 0, 120_000, 1], [600, 1, 0, 120_600, 1]],
    tenth: [field(10, 1, 1), [0, 1, 0, 100, 1], [100, 1, 0, 200, 1]], // 1 per 100 ms is 10 per second
    half: [field(4, 2, 3), [0, 1, 2, 500, 1]], // 3 per 1.5 s are 4 in whole 2 s
    daily: [
      field(5, 86_400, 5),
      [0, 5, 0, 10_000_000, 10_000], // the window ends at 25:00, which is 2 h 46 min 40 s away
      [9_999_999, 0, 0, 10_000_000, 1],
      [10_000_000, 5, 0, 96_400_000, 86_400],
    ],
    rollover: [
      field(5, 10, 12),
      [0, 12, 0, 30_000, 10], // the next window brings 5, the third fills it
      [10_000, 1, 4, 30_000, 10],
      [20_000, 9, 0, 50_000, 10], // 4 rolled over
    ],
    fresh: [field(1, 1, 10), [0, 1, 1, 9_000, 1]], // 2 of 10 at first
    once: [{ q: 5, "tollgate-capacity": 5 }, [0, 4, 1, null], [1e12, 1, 0, null]], // no window: nothing comes back
    none: [field(1, 1, 0), [0, 0, 0, 0]], // it never has any
    // JSON has all digits; structured fields have 15.
    most: [field(999_999_999_999_999, 1, 999_999_999_999_999), [0, Number.MAX_SAFE_INTEGER, 0, 1_000, 1]],
  };
  for (const [policy, [rateLimitPolicy, ...rows]] of Object.entries(tables)) {
    await t.test(policy, async () => {
      for (const [at, cost, remaining, full, seconds] of rows) {
        const now = NOW + at;
        const answer = await tollgate.consume({ policy, key: "alice", cost }, { now });
        const reset_at = full === null ? null : NOW + full;
        const verdict = {
          policy,
          cost,
          limit: POLICIES[policy].capacity ?? POLICIES[policy].rate,
          remaining,
          now,
          reset_at,
        };
        assertAnswer(answer, allowed(verdict, rateLimitPolicy, seconds), `cost ${cost} at ${at}`);
      }
    });
  }
});

test("the cost defaults to 1, and a whole number may have a decimal point", async () => {
  const ask = (cost) => `{"policy":"api","key":"bob"${cost}}`;
  for (const [cost, taken, remaining] of [
    ["", 1, 9],
    [',"cost":1', 1, 8],
    [',"cost":2.0', 2, 6],
    [',"cost":0.3e1', 3, 3],
    [',"cost":-0', 0, 3],
  ]) {
    const answer = await tollgate.send({ body: ask(cost) });
    const verdict = {
      policy: "api",
      cost: taken,
      limit: 10,
      remaining,
      now: NOW,
      reset_at: NOW + (10 - remaining) * 1_000,
    };
    assertAnswer(answer, allowed(verdict, field(10, 10, 10), 1), cost);
  }
});

test("a peek takes nothing", async () => {
  const expected = (cost, remaining) => {
    const reset_at = NOW + (10 - remaining) * 1_000;
    return allowed({ policy: "api", cost, limit: 10, remaining, now: NOW, reset_at }, field(10, 10, 10), 1);
  };
  const ask = (cost) => ({ policy: "api", key: "carol", cost });
  for (const cost of [0, 1, 10])
    assertAnswer(await tollgate.peek(ask(cost)), expected(cost, 10), `fresh, cost ${cost}`);
  assertAnswer(await tollgate.consume(ask(4)), expected(4, 6));
  for (const cost of [0, 6, 6]) assertAnswer(await tollgate.peek(ask(cost)), expected(cost, 6), `spent, cost ${cost}`);
  assertAnswer(await tollgate.consume(ask(6)), expected(6, 0));
});

test("each policy of a key has its own budget", async () => {
  await tollgate.consume({ policy: "api", key: "dave", cost: 10 });
  const verdict = { policy: "minute", cost: 200, limit: 200, remaining: 0, now: NOW, reset_at: NOW + 120_000 };
  const answer = await tollgate.consume({ policy: "minute", key: "dave", cost: 200 });
  assertAnswer(answer, allowed(verdict, field(100, 60, 200), 1));
});

test("equivalent forms of HTTP and JSON make no difference", async () => {
  const body = '\n{ "cost" : 2,\t"key":"er\\u0069n", "policy":"api" }\r\n'; // erin
  const requests = {
    "white space, order, escapes": { body },
    "in pieces": { body: [...body] },
    "a query": { body, path: "/v1/consume?trace=1" },
    "media type": { body, headers: { "content-type": "Application/JSON; charset=utf-8" } },
    scheme: { body, headers: { authorization: `bearer ${TOKEN}` } },
  };
  let remaining = 10;
  for (const [name, request] of Object.entries(requests)) {
    remaining -= 2;
    const reset_at = NOW + (10 - remaining) * 1_000;
    const verdict = { policy: "api", cost: 2, limit: 10, remaining, now: NOW, reset_at };
    assertAnswer(await tollgate.send(request), allowed(verdict, field(10, 10, 10), 1), name);
  }
});
