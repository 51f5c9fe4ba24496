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
      "settings: POLICIES.a.burst: is not a field here; those are kind, rate, period, capacity, max_debt, initial, offset, " +
        "write_ahead, on_error, reservation_ttl, unsettled, limits",
      "settings: POLICIES.a.rate: must be a whole number from 0 to 9007199254740991, not -1",
      'settings: POLICIES.a.period: must be text with a unit, such as "90s", not 60',
      "settings: POLICIES.a.capacity: must be a whole number from 0 to 9007199254740991, not 1.5",
      "settings: POLICIES.b c: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
      'settings: POLICIES.d.kind: must be "token_bucket" or "fixed_window"',
      "settings: POLICIES.d.rate: is missing",
      'settings: POLICIES.d.period: must be whole milliseconds, not "1us"',
      'settings: POLICIES.d.initial: must be a whole number from 0 to 9007199254740991, not "2"',
      "settings: POLICIES.e: is not a table of rate, period, ...",
      "settings: POLICIES.f.period: is missing",
      "settings: POLICIES.g.period: a period of 0 ms is too short: at least 1 ms",
      "settings: POLICIES.h.capacity: a capacity of 9007199254740991 is too large to stay exact at this rate and period: " +
        "at most 182437484",
      "settings: POLICIES.i.offset: a token bucket has no windows, so it takes no offset",
      "settings: POLICIES.j.offset: an offset of 1000 ms is not within one period: at most 999 ms",
      "settings: POLICIES.k.initial: 2 initial tokens are more than the capacity: at most 1",
      "settings: POLICIES.l.rate: must be a whole number from 0 to 9007199254740991, not 9007199254740992",
      "settings: POLICIES.m: is not a table of rate, period, ...",
      "settings: POLICIES.o.max_debt: a max_debt of 9007199254740991 is too large to stay exact with this capacity: " +
        "at most 182437477",
      "settings: POLICIES.p.write_ahead: must be a whole number from 0 to 9007199254740991, not -1",
      'settings: POLICIES.p.on_error: must be "closed" or "open"',
      'settings: POLICIES.p.unsettled: must be "keep" or "refund"',
      'settings: POLICIES.p.reservation_ttl: must be text with a unit, such as "90s", not 5',
      "settings: POLICIES.q.rate: is not a field here; those are limits, on_error, reservation_ttl, unsettled",
      "settings: POLICIES.q.limits: must be a list of 1 to 8 limits",
      "settings: POLICIES.r.limits[0]: must have a name, by which answers and costs refer to it",
      "settings: POLICIES.r.limits[1]: name: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
      "settings: POLICIES.r.limits[2].on_error: is not a field here; those are name, kind, rate, period, capacity, " +
        "max_debt, initial, offset, write_ahead",
      "settings: POLICIES.r.limits[2].rate: is missing",
      "settings: POLICIES.r.limits[2].period: is missing",
      "settings: POLICIES.r.limits[3]: is the second limit named a",
      "settings: POLICIES.r.limits[4]: is not a table of name, rate, period, ...",
      "settings: POLICIES.s.limits: must be a list of 1 to 8 limits",
      "settings: POLICIES.__proto__x: is not a table of rate, period, ...",
      `settings: POLICIES.${"n".repeat(65)}: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII`,
    ],
  },
  "no policy": { settings: { policies: {} }, log: ["settings: POLICIES: names no policy"] },
  "no policies": { settings: { policies: null }, log: ["settings: POLICIES: is not an object of policies by name: "] },
  "a list of policies": {
    settings: { policies: [] },
    log: ["settings: POLICIES: is not an object of policies by name: "],
  },
  "policies as text": {
    settings: { policies: "{}" },
    log: ["settings: POLICIES: is not an object of policies by name: "],
  },
  "no secrets": {
    settings: { policies, token: null, keySecret: null },
    log: [
      "settings: the secret TOLLGATE_TOKEN is missing: set it with `wrangler secret put TOLLGATE_TOKEN`",
      "settings: the secret TOLLGATE_KEY_SECRET is missing: set it with `wrangler secret put TOLLGATE_KEY_SECRET`",
    ],
  },
  "secrets that are too short": {
    settings: { policies, token: "t0ken-of-15-by!", keySecret: "" },
    log: [
      "settings: the secret TOLLGATE_TOKEN has 15 bytes: it needs 16, from a random generator",
      "settings: the secret TOLLGATE_KEY_SECRET has 0 bytes: it needs 16, from a random generator",
    ],
  },
  "policies and secrets at once": {
    settings: { policies: { p: {} }, token: null },
    log: [
      "settings: POLICIES.p.rate: is missing",
      "settings: POLICIES.p.period: is missing",
      "settings: the secret TOLLGATE_TOKEN is missing: set it with `wrangler secret put TOLLGATE_TOKEN`",
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
    const lines = tollgate.log.split("\n").filter((line) => line.includes("settings: "));
    assert.equal(lines.length, log.length, `each error once, and no other:\n${tollgate.log}`);
    for (const secret of [settings.token, KEY_SECRET]) assert.ok(!secret || !tollgate.log.includes(secret));
  });
}
