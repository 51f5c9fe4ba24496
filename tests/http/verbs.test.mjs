// Every verb and every mode: the tokens it moves, when they may be used, and how the answer reports it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { allowed, assertAnswer, problem, refused } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  plain: { rate: 1, period: "1s", capacity: 5 },
  debt: { rate: 1, period: "1s", capacity: 5, max_debt: 5 },
  window: { kind: "fixed_window", rate: 5, period: "10s", capacity: 5, max_debt: 5, offset: "0s" },
  once: { rate: 0, period: "1s", capacity: 5, max_debt: 2 },
  spaced: { rate: 1, period: "1s", capacity: 0, max_debt: 2 },
};
const FIELDS = {
  plain: { q: 1, w: 1, "tollgate-capacity": 5 },
  debt: { q: 1, w: 1, "tollgate-capacity": 5 },
  window: { q: 5, w: 10, "tollgate-capacity": 5 },
  once: { q: 5, "tollgate-capacity": 5 },
  spaced: { q: 1, w: 1, "tollgate-capacity": 0 },
};
const TTL = 600_000;
const MOST = Number.MAX_SAFE_INTEGER;
const tollgate = await start({ policies: POLICIES });

const take = (cost) => ["consume", { mode: "take", cost }];
const reserve = (cost, max_wait_ms) => ["consume", { mode: "reserve", cost, max_wait_ms }];
const borrow = (cost, max_wait_ms) => ["consume", { mode: "borrow", cost, max_wait_ms }];
const upTo = (cost) => ["consume", { mode: "up_to", cost }];
const peek = ([, ask]) => ["peek", ask];
const charge = (cost) => ["charge", { cost }];
const refund = (cost) => ["refund", { cost }];
const reset = ["reset", {}];

/**
 * Asks about a new key, row by row: `[at, request, verdict]`. In a verdict `left` is what remains, or negative what is
 * owed; `full`, `ready` and `retry` are moments. All moments are in ms after NOW. With `retry` it is refused, permanently if
 * that is `null`; a `reserve` of anything that is granted opens a reservation.
 */
async function follow(policy, key, rows) {
  for (const [at, [verb, ask], { left, full, ready, retry, tokens }] of rows) {
    const where = `${verb} ${JSON.stringify(ask)} at ${at}`;
    const answer = await tollgate.post(verb, { policy, key, ...ask }, { now: NOW + at });
    const verdict = {
      policy,
      cost: ask.cost ?? (verb === "reset" ? 0 : 1),
      limit: POLICIES[policy].capacity,
      remaining: Math.max(left, 0),
      now: NOW + at,
      reset_at: full === null ? null : NOW + full,
      ...(left < 0 ? { owed: -left } : {}),
      ...(tokens === undefined ? {} : { tokens }),
      ...(verb === "charge" && tokens < (ask.cost ?? 1) ? { unpaid: (ask.cost ?? 1) - tokens } : {}),
      ...(ready === undefined ? {} : { ready_at: NOW + ready }),
      ...(retry == null ? {} : { retry_at: NOW + retry }),
    };
    if (verb === "consume" && ask.mode === "reserve" && ask.cost !== 0 && retry === undefined) {
      assert.match(answer.body.reservation, /^[0-9a-f]{13}$/, where);
      Object.assign(verdict, { reservation: answer.body.reservation, expires_at: NOW + ready + TTL });
    }
    const seconds = (moment) => (moment == null ? Infinity : Math.ceil((moment - at) / 1_000));
    const finite = (value) => (value === Infinity ? undefined : value);
    const t = finite(Math.min(seconds(nextToken(policy, { at, left, full })), seconds(retry)));
    const expected =
      retry === undefined
        ? allowed(verdict, FIELDS[policy], t)
        : refused(verdict, FIELDS[policy], finite(seconds(retry)), t);
    assertAnswer(answer, expected, where);
  }
}

/** When there is more than what is left, in ms after NOW; never if nothing refills or there is no room. */
function nextToken(policy, { at, left, full }) {
  if (policy === "once" || policy === "spaced") return undefined;
  // Windows of 5 open every 10 s. The others have a token a second.
  const windows = Math.ceil((1 + Math.max(left, 0) - left) / 5);
  if (policy === "window") return Math.floor(at / 10_000) * 10_000 + windows * 10_000;
  return full === at ? at + 1_000 : full - (POLICIES[policy].capacity - Math.max(left, 0) - 1) * 1_000;
}

const tables = {
  "take is what is meant without a mode, and takes nothing in advance": {
    debt: [
      [0, take(4), { left: 1, full: 4_000 }],
      [0, ["consume", {}], { left: 0, full: 5_000 }],
      [0, take(1), { left: 0, full: 5_000, retry: 1_000 }],
    ],
  },
  "reserve takes in advance and says when it is ready, within max_wait_ms and down to max_debt": {
    debt: [
      [0, reserve(3), { left: 2, full: 3_000, ready: 0 }],
      [0, reserve(4), { left: -2, full: 7_000, ready: 2_000 }],
      [0, reserve(4), { left: -2, full: 7_000, retry: 1_000 }], // that would owe 6
      [0, reserve(3), { left: -5, full: 10_000, ready: 5_000 }],
      [500, reserve(1, 0), { left: -5, full: 10_000, retry: 6_000 }], // half a token less is still 5
      [5_000, reserve(2, 1_999), { left: 0, full: 10_000, retry: 5_001 }], // it needs 2 000 ms ...
      [5_000, reserve(2, 2_000), { left: -2, full: 12_000, ready: 7_000 }], // ... and here it may wait this long
      [7_999, reserve(1, 0), { left: 0, full: 12_000, retry: 8_000 }], // 0 is now or not at all,
      [8_000, reserve(1, 0), { left: 0, full: 13_000, ready: 8_000 }],
      [8_000, reserve(1), { left: -1, full: 14_000, ready: 9_000 }], // and none is however long
      [8_000, reserve(0), { left: -1, full: 14_000, ready: 9_000 }],
      [8_000, reserve(0, 999), { left: -1, full: 14_000, retry: 8_001 }],
    ],
    plain: [
      [0, reserve(5), { left: 0, full: 5_000, ready: 0 }],
      [0, reserve(1), { left: 0, full: 5_000, retry: 1_000 }], // nothing can be owed, however long one would wait
    ],
    window: [
      [0, reserve(8), { left: -3, full: 20_000, ready: 10_000 }],
      [9_998, reserve(2, 1), { left: -3, full: 20_000, retry: 9_999 }],
      [9_999, reserve(2, 1), { left: -5, full: 20_000, ready: 10_000 }],
    ],
    once: [
      [0, reserve(4), { left: 1, full: null, ready: 0 }],
      [0, reserve(2), { left: 1, full: null, retry: null }], // there is nothing to wait for
    ],
    spaced: [
      [0, reserve(1), { left: -1, full: 1_000, ready: 1_000 }],
      [0, reserve(1), { left: -2, full: 2_000, ready: 2_000 }],
      [0, reserve(1), { left: -2, full: 2_000, retry: 1_000 }],
    ],
  },
  "borrow starts when earlier debt is paid and leaves its own to the next": {
    debt: [
      [0, borrow(5), { left: 0, full: 5_000, ready: 0 }],
      [0, borrow(3), { left: -3, full: 8_000, ready: 0 }],
      [0, borrow(1, 0), { left: -3, full: 8_000, retry: 3_000 }],
      [0, borrow(1, 2_999), { left: -3, full: 8_000, retry: 1 }],
      [1, borrow(1, 2_999), { left: -4, full: 9_000, ready: 3_000 }],
      [1, borrow(2), { left: -4, full: 9_000, retry: 1_000 }], // that would owe almost 6
      [1_000, borrow(2), { left: -5, full: 11_000, ready: 4_000 }],
    ],
    plain: [
      [0, borrow(5, 0), { left: 0, full: 5_000, ready: 0 }],
      [0, borrow(1), { left: 0, full: 5_000, retry: 1_000 }],
    ],
    once: [
      [0, borrow(7), { left: -2, full: null, ready: 0 }],
      [0, borrow(0), { left: -2, full: null, retry: null }],
    ],
  },
  "up_to takes what is there, in whole tokens, and is refused for want of one": {
    debt: [
      [0, upTo(3), { tokens: 3, left: 2, full: 3_000 }],
      [0, upTo(MOST), { tokens: 2, left: 0, full: 5_000 }],
      [0, upTo(3), { left: 0, full: 5_000, retry: 1_000 }],
      [999, upTo(3), { left: 0, full: 5_000, retry: 1_000 }],
      [1_999, upTo(3), { tokens: 1, left: 0, full: 6_000 }],
      [1_999, upTo(0), { tokens: 0, left: 0, full: 6_000 }],
    ],
  },
  "peek says what any mode would, and takes nothing": {
    debt: [
      [0, take(4), { left: 1, full: 4_000 }],
      [0, peek(take(1)), { left: 1, full: 4_000 }],
      [0, peek(take(2)), { left: 1, full: 4_000, retry: 1_000 }],
      [0, peek(reserve(3)), { left: 1, full: 4_000, ready: 2_000 }],
      [0, peek(reserve(3, 1_999)), { left: 1, full: 4_000, retry: 1 }],
      [0, peek(reserve(7)), { left: 1, full: 4_000, retry: 1_000 }],
      [0, peek(borrow(6, 0)), { left: 1, full: 4_000, ready: 0 }],
      [0, peek(borrow(7, 0)), { left: 1, full: 4_000, retry: 1_000 }],
      [0, peek(upTo(3)), { tokens: 1, left: 1, full: 4_000 }],
      [0, take(1), { left: 0, full: 5_000 }],
      [0, peek(upTo(3)), { left: 0, full: 5_000, retry: 1_000 }],
    ],
  },
  "charge is never refused and stops at max_debt": {
    debt: [
      [0, ["charge", {}], { tokens: 1, left: 4, full: 1_000 }],
      [0, charge(6), { tokens: 6, left: -2, full: 7_000 }],
      [0, charge(9), { tokens: 3, left: -5, full: 10_000 }],
      [0, charge(1), { tokens: 0, left: -5, full: 10_000 }],
      [1, charge(MOST), { tokens: 0, left: -5, full: 10_001 }], // what had come back, less than a token
      [1, take(0), { left: -5, full: 10_001, retry: 5_001 }], // even nothing, while in debt
      [1, take(1), { left: -5, full: 10_001, retry: 6_001 }],
      [5_001, take(0), { left: 0, full: 10_001 }],
      [6_001, charge(0), { tokens: 0, left: 1, full: 10_001 }],
    ],
    plain: [
      [0, charge(9), { tokens: 5, left: 0, full: 5_000 }],
      [0, charge(1), { tokens: 0, left: 0, full: 5_000 }],
    ],
    once: [[0, charge(9), { tokens: 7, left: -2, full: null }]],
  },
  "refund pays debt first and stops at the capacity": {
    debt: [
      [0, charge(8), { tokens: 8, left: -3, full: 8_000 }],
      [0, ["refund", {}], { tokens: 1, left: -2, full: 7_000 }],
      [0, refund(4), { tokens: 4, left: 2, full: 3_000 }],
      [500, refund(2), { tokens: 2, left: 4, full: 1_000 }],
      [500, refund(2), { tokens: 0, left: 5, full: 500 }], // only half a token had room
      [500, refund(MOST), { tokens: 0, left: 5, full: 500 }],
    ],
    once: [
      [0, take(5), { left: 0, full: null }],
      [0, refund(2), { tokens: 2, left: 2, full: null }],
      [0, refund(9), { tokens: 3, left: 5, full: 0 }],
    ],
  },
  "reset makes full again, from debt as well": {
    debt: [
      [0, charge(8), { tokens: 8, left: -3, full: 8_000 }],
      [0, reset, { tokens: 8, left: 5, full: 0 }],
      [0, reset, { tokens: 0, left: 5, full: 0 }],
    ],
    window: [
      [1, take(5), { left: 0, full: 10_000 }],
      [5_000, reset, { tokens: 5, left: 5, full: 5_000 }],
      [5_000, take(5), { left: 0, full: 10_000 }],
      [9_999, take(1), { left: 0, full: 10_000, retry: 10_000 }],
      [10_000, take(1), { left: 4, full: 20_000 }],
    ],
    once: [
      [0, take(5), { left: 0, full: null }],
      [0, take(1), { left: 0, full: null, retry: null }],
      [0, reset, { tokens: 5, left: 5, full: 0 }],
    ],
  },
};
for (const [name, byPolicy] of Object.entries(tables)) {
  test(name, async (t) => {
    for (const [policy, rows] of Object.entries(byPolicy)) await t.test(policy, () => follow(policy, name, rows));
  });
}

test("a cost that could never be granted on these terms is an error with the largest that could", async () => {
  for (const [policy, [verb, ask], max] of [
    ["debt", take(6), 5],
    ["debt", reserve(11), 10],
    ["debt", reserve(6, 0), 5],
    ["debt", reserve(8, 2_000), 7], // as much as comes back in two seconds
    ["debt", borrow(11), 10],
    ["debt", borrow(11, 0), 10],
    ["plain", reserve(6), 5],
    ["plain", peek(borrow(6)), 5],
    ["window", reserve(11, 1), 10],
    ["once", reserve(6), 5],
    ["once", borrow(8), 7],
  ]) {
    const detail = `policy ${policy} can never grant ${ask.cost} tokens at once; at most ${max}`;
    const expected = problem(400, "cost-too-large", "Cost too large", detail, { max_cost: max });
    const message = `${policy} ${verb} ${JSON.stringify(ask)}`;
    assertAnswer(await tollgate.post(verb, { policy, key: "alice", ...ask }), expected, message);
    // A window that is about to open grants the most; earlier, waiting helps.
    const most = (options) => tollgate.post("peek", { policy, key: message, ...ask, cost: max }, options);
    const { retry_at = NOW } = (await most()).body;
    assert.equal((await most({ now: retry_at })).status, 200, `${message}, but ${max}`);
  }
});

test("inspect reports the state and the numbers of a budget", async () => {
  const inspection = (policy, at, standing, open_reservations = 0) => {
    const { kind = "token_bucket", rate, period, capacity, max_debt = 0 } = POLICIES[policy];
    const period_ms = { "1s": 1_000, "10s": 10_000 }[period];
    const limits = [{ kind, rate, period_ms, capacity, max_debt, ...standing }];
    const body = { policy, now: NOW + at, open_reservations, limits };
    return { status: 200, headers: { "content-type": "application/json" }, body };
  };
  for (const [policy, before, at, { left, full }, open] of [
    ["plain", [], 0, { left: 5, full: 0 }],
    ["plain", [take(2)], 1_500, { left: 4, full: 2_000 }],
    ["debt", [reserve(4), reserve(4)], 2, { left: -3, full: 8_000 }, 2],
    ["debt", [borrow(7)], 0, { left: -2, full: 7_000 }],
    ["window", [take(5)], 9_999, { left: 0, full: 10_000 }],
    ["window", [take(5)], 10_000, { left: 5, full: 10_000 }],
    ["once", [take(1)], 1e9, { left: 4, full: null }],
    ["spaced", [], 0, { left: 0, full: 0 }],
  ]) {
    const key = JSON.stringify([before, at]);
    for (const [verb, ask] of before) await tollgate.post(verb, { policy, key, ...ask });
    const reset_at = full === null ? null : NOW + full;
    const standing = { remaining: Math.max(left, 0), owed: Math.max(-left, 0), reset_at };
    for (let i = 0; i < 2; i++) {
      const answer = await tollgate.post("inspect", { policy, key }, { now: NOW + at });
      assertAnswer(answer, inspection(policy, at, standing, open), `${policy} ${key}`);
    }
  }
});
