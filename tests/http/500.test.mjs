// The deployment has errors: its log names every one of them, its answers none.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { KEY_SECRET, start } from "./workerd.mjs";

const detail = "this deployment has errors in its settings; its log names them";
const misconfigured = problem(500, "misconfigured", "Misconfigured", detail);
const policies = { api: { rate: 10, period: "10s" } };

const rows = {
  "every field of every policy": {
    settings: {
      policies: {
        fine: { rate: 1, period: "1s" },
        a: { rate: -1, period: 60, burst: 5, capacity: 1.5 },
        "b c": { rate: 1, period: "1s" },
        d: { kind: "leaky", period: "1us", initial: "2" },
        e: 7,
        f: { rate: 1 },
        g: { rate: 1, period: "0s" },
        h: { rate: 7, period: "1day", capacity: 9_007_199_254_740_991 },
        i: { rate: 1, period: "1s", offset: "1s" },
        j: { kind: "fixed_window", rate: 1, period: "1s", offset: "1s" },
        k: { rate: 1, period: "1s", initial: 2 },
        l: { rate: 2 ** 53, period: "1s" },
        m: null,
        o: { rate: 7, period: "1day", max_debt: 9_007_199_254_740_991 },
        p: { rate: 1, period: "1s", write_ahead: -1, on_error: "ajar", unsettled: 1, reservation_ttl: 5 },
        q: { limits: [], rate: 7 },
        r: { limits: [{ rate: 7, period: "1s" }, { name: "a b" }, { name: "a", on_error: "open" }, { name: "a" }, 5] },
        s: { limits: Array.from({ length: 9 }, (_, i) => ({ name: `${i}`, rate: 1, period: "1s" })) },
        __proto__x: [],
        ["n".repeat(65)]: { rate: 1, period: "1s" },
      },
    },
    log: [
      "error in POLICIES.a.burst: is not a field here; those are kind, rate, period, capacity, max_debt, initial, offset, " +
        "write_ahead, on_error, reservation_ttl, unsettled, limits",
      "error in POLICIES.a.rate: must be a whole number from 0 to 9007199254740991, not -1",
      'error in POLICIES.a.period: must be text with a unit, such as "90s", not 60',
      "error in POLICIES.a.capacity: must be a whole number from 0 to 9007199254740991, not 1.5",
      "error in POLICIES.b c: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
      'error in POLICIES.d.kind: must be "token_bucket" or "fixed_window"',
      "error in POLICIES.d.rate: is missing",
      'error in POLICIES.d.period: must be whole milliseconds, not "1us"',
      'error in POLICIES.d.initial: must be a whole number from 0 to 9007199254740991, not "2"',
      "error in POLICIES.e: is not a table of rate, period, ...",
      "error in POLICIES.f.period: is missing",
      "error in POLICIES.g.period: a period of 0 ms is too short: at least 1 ms",
      "error in POLICIES.h.capacity: a capacity of 9007199254740991 is too large to stay exact at this rate and period: " +
        "at most 182437484",
      "error in POLICIES.i.offset: a token bucket has no windows, so it takes no offset",
      "error in POLICIES.j.offset: an offset of 1000 ms is not within one period: at most 999 ms",
      "error in POLICIES.k.initial: 2 initial tokens are more than the capacity: at most 1",
      "error in POLICIES.l.rate: must be a whole number from 0 to 9007199254740991, not 9007199254740992",
      "error in POLICIES.m: is not a table of rate, period, ...",
      "error in POLICIES.o.max_debt: a max_debt of 9007199254740991 is too large to stay exact with this capacity: " +
        "at most 182437477",
      "error in POLICIES.p.write_ahead: must be a whole number from 0 to 9007199254740991, not -1",
      'error in POLICIES.p.on_error: must be "closed" or "open"',
      'error in POLICIES.p.unsettled: must be "keep" or "refund"',
      'error in POLICIES.p.reservation_ttl: must be text with a unit, such as "90s", not 5',
      "error in POLICIES.q.rate: is not a field here; those are limits, on_error, reservation_ttl, unsettled",
      "error in POLICIES.q.limits: must be a list of 1 to 8 limits",
      "error in POLICIES.r.limits[0]: must have a name, by which answers and costs refer to it",
      "error in POLICIES.r.limits[1]: name: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
      "error in POLICIES.r.limits[2].on_error: is not a field here; those are name, kind, rate, period, capacity, " +
        "max_debt, initial, offset, write_ahead",
      "error in POLICIES.r.limits[2].rate: is missing",
      "error in POLICIES.r.limits[2].period: is missing",
      "error in POLICIES.r.limits[3]: is the second limit named a",
      "error in POLICIES.r.limits[4]: is not a table of name, rate, period, ...",
      "error in POLICIES.s.limits: must be a list of 1 to 8 limits",
      "error in POLICIES.__proto__x: is not a table of rate, period, ...",
      `error in POLICIES.${"n".repeat(65)}: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII`,
    ],
  },
  "no policy": { settings: { policies: {} }, log: ["error in POLICIES: names no policy"] },
  "no policies": { settings: { policies: null }, log: ["error in POLICIES: is not an object of policies by name: "] },
  "a list of policies": {
    settings: { policies: [] },
    log: ["error in POLICIES: is not an object of policies by name: "],
  },
  "policies as text": {
    settings: { policies: "{}" },
    log: ["error in POLICIES: is not an object of policies by name: "],
  },
  "no secrets": {
    settings: { policies, token: null, keySecret: null },
    log: [
      "mistake: the secret TOLLGATE_TOKEN is missing: set it with `wrangler secret put TOLLGATE_TOKEN`",
      "mistake: the secret TOLLGATE_KEY_SECRET is missing: set it with `wrangler secret put TOLLGATE_KEY_SECRET`",
    ],
  },
  "secrets that are too short": {
    settings: { policies, token: "t0ken-of-15-by!", keySecret: "" },
    log: [
      "mistake: the secret TOLLGATE_TOKEN has 15 bytes: it needs 16, from a random generator",
      "mistake: the secret TOLLGATE_KEY_SECRET has 0 bytes: it needs 16, from a random generator",
    ],
  },
  "policies and secrets at once": {
    settings: { policies: { p: {} }, token: null },
    log: [
      "error in POLICIES.p.rate: is missing",
      "error in POLICIES.p.period: is missing",
      "mistake: the secret TOLLGATE_TOKEN is missing: set it with `wrangler secret put TOLLGATE_TOKEN`",
    ],
  },
};

for (const [name, { settings, log }] of Object.entries(rows)) {
  test(name, async () => {
    const tollgate = await start({ policies, ...settings });
    const body = '{"policy":"fine","key":"alice"}';
    for (const request of [
      { body },
      { path: "/v1/peek", body },
      { method: "GET", path: "/healthz" },
      { body, headers: { authorization: null } },
      { body, headers: { authorization: "Bearer " } }, // equal to a token that is not there
      { path: "/nothing" },
    ]) {
      assertAnswer(await tollgate.send(request), misconfigured, JSON.stringify(request));
    }
    for (const line of log) await tollgate.logged(line);
    await tollgate.stop(); // everything is in the log now
    const lines = tollgate.log.split("\n").filter((line) => line.includes("mistake"));
    assert.equal(lines.length, log.length, `each mistake once, and no other:\n${tollgate.log}`);
    for (const secret of [settings.token, KEY_SECRET]) assert.ok(!secret || !tollgate.log.includes(secret));
  });
}
