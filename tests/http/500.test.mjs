// The deployment has errors: its log names every one of them, its answers none.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { KEY_SECRET, start } from "./workerd.mjs";

const detail = "the settings of this deployment have errors; its log lists them";
const NO_OBJECTS =
  "KEYS: no Durable Object namespace is bound under this name: add a binding for the class KeyObject to Wrangler's configuration, " +
  "and to each [env.ENVIRONMENT] of it, which inherits no bindings";
const NO_POLICIES =
  "POLICIES: there are no policies: add some to Wrangler's configuration, as [vars.POLICIES.NAME], and to each environment of it, " +
  "as [env.ENVIRONMENT.vars.POLICIES.NAME], which inherits no variables";
const policies = { api: { rate: 10, period: "10s" } };
const NAME_RULE = "a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'";

const NO_CREDENTIAL =
  "settings: TOLLGATE_TOKENS: has no token, and TOLLGATE_GRANT_KEYS is not set: without any of them no " +
  "request can be answered";

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
        j: { rate: 1, period: "1s", max_debt: "endless", key: ["a"], jitter: "2h" },
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
      "settings: POLICIES.a.burst: is not a known field; known fields are kind, rate, period, calendar, starts, zone, capacity, max_debt, initial, offset, " +
        "grains, write_ahead, mode, shards, fixed, carry, reservation_ttl, unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter, limits",
      'settings: POLICIES.a.rate: must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as "100/1m" or "20/s burst 40", not -1',
      'settings: POLICIES.a.period: must be text with a unit, such as "90s", not 60',
      "settings: POLICIES.a.capacity: must be a whole number from 0 to 9007199254740991, not 1.5",
      `settings: POLICIES."b c": ${NAME_RULE}`,
      'settings: POLICIES.d.kind: must be "token_bucket", "fixed_window", "rolling_window" or "slots"',
      "settings: POLICIES.d.rate: is missing",
      'settings: POLICIES.d.period: must be whole milliseconds, not "1us"',
      'settings: POLICIES.d.initial: must be a whole number from 0 to 9007199254740991, not "2"',
      "settings: POLICIES.e: must be a table of fields such as rate and period, not 7",
      "settings: POLICIES.f.period: is missing",
      "settings: POLICIES.g.period: a period of 0 ms is too short: at least 1 ms",
      "settings: POLICIES.h.capacity: a capacity of 9007199254740991 is too large to stay exact at this rate and period: " +
        "at most 182437484",
      "settings: POLICIES.i.offset: a token bucket has no windows, and those from first use open then: neither takes an offset",
      'settings: POLICIES.j.max_debt: must be a whole number from 0 to 9007199254740991, or "unlimited", not "endless"',
      "settings: POLICIES.j.key: must be [], for one budget that all share; for a budget for each key, leave it out, not an array",
      "settings: POLICIES.j.jitter: must be at most 1h: refused callers would be told to stay away for longer",
      "settings: POLICIES.k.initial: 2 initial tokens are more than the capacity: at most 1",
      'settings: POLICIES.l.rate: must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as "100/1m" or "20/s burst 40", not 9007199254740992',
      "settings: POLICIES.m: must be a table of fields such as rate and period, not null",
      "settings: POLICIES.o.max_debt: a max_debt of 9007199254740991 is too large to stay exact with this capacity: " +
        "at most 182437477",
      "settings: POLICIES.p.write_ahead: must be a whole number from 0 to 9007199254740991, not -1",
      'settings: POLICIES.p.on_error: must be "closed", "open", or a list of causes to open for: "overloaded", "timeout", ' +
        '"failed"',
      'settings: POLICIES.p.unsettled: must be "keep" or "refund"',
      'settings: POLICIES.p.reservation_ttl: must be text with a unit, such as "90s", not 5',
      "settings: POLICIES.q.rate: is not a known field; known fields are limits, mode, shards, fixed, carry, reservation_ttl, " +
        "unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter",
      "settings: POLICIES.q.limits: must be a list of 1 to 8 limits",
      "settings: POLICIES.r.limits[0]: must have a name: costs and answers refer to a limit by its name",
      `settings: POLICIES.r.limits[1]: name: ${NAME_RULE}`,
      "settings: POLICIES.r.limits[2].on_error: is not a known field; known fields are name, kind, rate, period, calendar, starts, zone, capacity, " +
        "max_debt, initial, offset, grains, write_ahead, mode",
      "settings: POLICIES.r.limits[2].rate: is missing",
      "settings: POLICIES.r.limits[2].period: is missing",
      "settings: POLICIES.r.limits[3]: a limit before it is named a too",
      "settings: POLICIES.r.limits[4]: must be a table of fields such as name, rate and period, not 5",
      "settings: POLICIES.s.limits: must be a list of 1 to 8 limits",
      "settings: POLICIES.__proto__x: must be a table of fields such as rate and period, not an array",
      `settings: POLICIES."${"n".repeat(65)}": ${NAME_RULE}`,
    ],
  },
  "an empty table of policies": { settings: { policies: {} }, log: [], missing: [NO_POLICIES] },
  "no policies": { settings: { policies: null }, log: [], missing: [NO_POLICIES] },
  "no policies but a registry, which may have some": {
    settings: { policies: null, registry: true },
    log: [],
    missing: [NO_POLICIES],
  },
  "no objects": { settings: { keys: null }, log: [], missing: [NO_OBJECTS] },
  "something else in place of the objects": {
    settings: { keys: `text = "KeyObject"` },
    log: [],
    missing: [NO_OBJECTS],
  },
  "neither objects nor policies, and a secret that is too short": {
    settings: { keys: null, policies: null, keySecret: "short" },
    log: ["settings: the secret TOLLGATE_KEY_SECRET has 5 bytes: it needs 16 random ones"],
    missing: [NO_OBJECTS, NO_POLICIES],
  },
  "something else in place of the registry": {
    settings: { registry: `text = "PolicyRegistry"` },
    log: [
      "settings: REGISTRY: is not a Durable Object namespace: bind the class PolicyRegistry under this name, or nothing",
    ],
  },
  "a list of policies": {
    settings: { policies: [] },
    log: ["settings: POLICIES: must be a table of policies by name, not an array"],
  },
  "policies as text": {
    settings: { policies: "{}" },
    log: ['settings: POLICIES: must be a table of policies by name, not "{}"'],
  },
  "no secrets": {
    settings: { policies, token: null, keySecret: null },
    log: [
      NO_CREDENTIAL,
      "settings: the secret TOLLGATE_KEY_SECRET is missing: set it with `wrangler secret put TOLLGATE_KEY_SECRET`",
    ],
  },
  "a secret that is too short": {
    settings: { policies, keySecret: "" },
    log: ["settings: the secret TOLLGATE_KEY_SECRET has 0 bytes: it needs 16 random ones"],
  },
  "a crash that could cost more than a key can have": {
    settings: { policies: { p: { rate: 100, period: "1m", capacity: 200, write_ahead: 100_000 } } },
    log: ["settings: POLICIES.p.write_ahead: 100000 tokens are more than the capacity: at most 200"],
  },
  "lengths of time beyond what can be kept": {
    settings: {
      policies: {
        a: { rate: 1, period: "1s", reservation_ttl: "20000000000000000s" },
        b: { kind: "fixed_window", rate: 1, period: "1s", offset: "20000000000000000s" },
        c: { rate: 1, period: "99999999999999999999s" },
      },
    },
    log: [
      'settings: POLICIES.a.reservation_ttl: "20000000000000000s" is too long: at most 2251799813685248ms, some 71 000 years',
      'settings: POLICIES.b.offset: "20000000000000000s" is too long: at most 2251799813685248ms, some 71 000 years',
      'settings: POLICIES.c.period: "99999999999999999999s" is too long: at most 2251799813685248ms, some 71 000 years',
    ],
  },
  "causes that are none": {
    settings: {
      policies: {
        a: { rate: 1, period: "1s", on_error: [] },
        b: { rate: 1, period: "1s", on_error: ["timeout", "late"] },
        c: { rate: 1, period: "1s", on_error: ["timeout", "failed", "overloaded"] }, // right
      },
    },
    log: ["a", "b"].map((name) => {
      const causes = '"overloaded", "timeout", "failed"';
      return `settings: POLICIES.${name}.on_error: must be "closed", "open", or a list of causes to open for: ${causes}`;
    }),
  },
  "a mistake beside names that every JavaScript object has": {
    settings: {
      policies: Object.fromEntries([
        ...["constructor", "__proto__", "toString", "hasOwnProperty"].map((name) => [name, { rate: 1, period: "1s" }]),
        ["p", { period: "1s" }],
        ["valueOf", 7],
      ]),
    },
    log: [
      "settings: POLICIES.p.rate: is missing",
      "settings: POLICIES.valueOf: must be a table of fields such as rate and period, not 7",
    ],
  },
  "names that would break the lines of the log": {
    settings: { policies: { "a\nsettings: b": 7, p: { rate: 1, period: "1s", "x\r\ny": 1 } } },
    log: [
      `settings: POLICIES."a\\nsettings: b": ${NAME_RULE}`,
      'settings: POLICIES.p."x\\r\\ny": is not a known field; known fields are kind, ',
    ],
  },
  "policies and secrets at once": {
    settings: { policies: { p: {} }, token: null },
    log: ["settings: POLICIES.p.rate: is missing", "settings: POLICIES.p.period: is missing", NO_CREDENTIAL],
  },
  "every field of tokens and grants": {
    settings: {
      policies,
      token: null,
      tokens: {
        fine: { sha256: "0".repeat(64), scopes: ["consume"] },
        a: { sha256: "0".repeat(64), scopes: ["consume"] },
        b: { sha256: "tg_the-token-itself", scopes: ["write", "adjust"], policies: [] },
        c: 7,
        "d e": {},
      },
      grantKeys: JSON.stringify({ short: "AAAA", padded: `${"A".repeat(43)}=` }),
      audience: "",
    },
    log: [
      "settings: TOLLGATE_TOKENS.a.sha256: is that of fine too: make a token for each",
      "settings: TOLLGATE_TOKENS.b.sha256: must be the 64 hexadecimal digits of the token's SHA-256, never the token itself",
      "settings: TOLLGATE_TOKENS.b.scopes: there is no scope write; there are consume, adjust, admin",
      "settings: TOLLGATE_TOKENS.b.policies: must be a list of one or more names of policies; leave it out for all of them",
      "settings: TOLLGATE_TOKENS.c: must be an object of sha256, scopes and perhaps policies",
      "settings: TOLLGATE_TOKENS: the name of entry 4 is not valid: it must be 1 to 40 ASCII letters, digits, '_', '-' or '.'",
      "settings: TOLLGATE_GRANT_KEYS.short: has 3 bytes: HS256 needs 32 random ones or more",
      "settings: TOLLGATE_GRANT_KEYS.padded: must be random bytes in base64url, without padding",
      "settings: TOLLGATE_AUDIENCE: is empty: it must be the `aud` of grants, or not be set",
    ],
  },
  "tokens as text that is not JSON": {
    settings: { policies, token: null, tokens: "tg_the-token-itself" },
    log: ["settings: TOLLGATE_TOKENS: is not valid JSON: it must be an object of tokens by name"],
  },
  "every field of sessions": {
    settings: {
      policies,
      sessions: {
        policy: "visits",
        policies: ["api", "apo"],
        verbs: ["consume", "reset"],
        ttl: "25h",
        verify_url: "http://verifier.example.com/",
        secret: "0123456789abcdef",
      },
      captchaSecret: "short",
    },
    log: [
      "settings: TOLLGATE_SESSIONS: needs a key in TOLLGATE_GRANT_KEYS, which signs the grants",
      "settings: the secret TURNSTILE_SECRET has 5 bytes: it needs 16 random ones",
      "settings: TOLLGATE_SESSIONS: secret is not a field of it; its fields are policy, policies, verbs, ttl, verify_url, hostname, action",
      "settings: TOLLGATE_SESSIONS.policy: there is no policy visits",
      "settings: TOLLGATE_SESSIONS.policies: there is no policy apo",
      "settings: TOLLGATE_SESSIONS.verbs: must be a list of one or more of consume, peek, inspect, settle, cancel, extend, batch",
      'settings: TOLLGATE_SESSIONS.ttl: must be a length of time from "1s" to "1day", such as "1h"',
      "settings: TOLLGATE_SESSIONS.verify_url: must begin with https://, or with http:// and localhost or 127.0.0.1, and be ASCII " +
        "without '@', '#' and '\\'",
    ],
  },
  "sessions as text that is not JSON, and no secret": {
    settings: { policies, sessions: "yes", grantKeys: JSON.stringify({ k: "A".repeat(43) }) },
    log: [
      "settings: the secret TURNSTILE_SECRET is missing: set it with `wrangler secret put TURNSTILE_SECRET`",
      "settings: TOLLGATE_SESSIONS: is not valid JSON: it must be an object of policy, policies and perhaps verbs, ttl, verify_url, hostname and action",
    ],
  },
  "an empty table of tokens": { settings: { policies, token: null, tokens: {} }, log: [NO_CREDENTIAL] },
};

for (const [name, { settings, log: others, missing = [] }] of Object.entries(rows)) {
  test(`the settings have errors: ${name}`, async () => {
    const tollgate = await start({ policies, ...settings });
    const log = [...missing.map((line) => `settings: ${line}`), ...others];
    const said = [detail, ...missing].join(". ");
    const body = '{"policy":"fine","key":"alice"}';
    for (const request of [
      { body },
      { path: "/v1/peek", body },
      { method: "GET", path: "/healthz?probe=1" },
      { method: "GET", path: "/v1/policies" },
      { body, headers: { authorization: null } },
      { body, headers: { authorization: "Bearer " } }, // equal to a token that is not set
      { path: "/nothing" },
    ]) {
      const status = request.path?.startsWith("/healthz") ? 503 : 500;
      const misconfigured = problem(status, "misconfigured", "Misconfigured", said);
      assertAnswer(await tollgate.send(request), misconfigured, JSON.stringify(request));
    }
    for (const line of log) await tollgate.logged(line);
    await tollgate.stop(); // everything is in the log now
    const lines = tollgate.log.split("\n").filter((line) => line.includes("settings: "));
    assert.equal(lines.length, log.length, `each error once, and no other:\n${tollgate.log}`);
    for (const secret of [settings.token, KEY_SECRET, "tg_", settings.grantKeys])
      assert.ok(!secret || !tollgate.log.includes(secret));
  });
}

test("names that every JavaScript object inherits are ordinary names", async () => {
  const names = ["constructor", "__proto__", "toString", "hasOwnProperty", "valueOf", "toJSON"];
  const tollgate = await start({
    policies: Object.fromEntries(names.map((name) => [name, { rate: 1, period: "1s", capacity: 5 }])),
  });
  assert.equal((await tollgate.send({ method: "GET", path: "/healthz" })).status, 200, tollgate.log);
  for (const policy of names) {
    const { status, body } = await tollgate.consume({ policy, key: "alice" });
    assert.deepEqual([status, body.policy, body.remaining], [200, policy, 4]);
  }
  await tollgate.stop();
});
