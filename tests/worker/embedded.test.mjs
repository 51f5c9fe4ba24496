// Tollgate inside a stranger's Worker: every verb, without HTTP, with the answers that the HTTP API gives.
import assert from "node:assert/strict";
import { test } from "node:test";
import { KEY_SECRET, makeProject, TOKEN, tokens, wranglerDev } from "./stranger.mjs";

const POLICIES = {
  api: { rate: 1, period: "1day", capacity: 10, max_debt: 5, write_ahead: 0 },
  soon: { rate: 10, period: "1s", capacity: 1, max_debt: 10 },
  once: { rate: 0, period: "1day", capacity: 1, write_ahead: 0 },
  tried: { rate: 1, period: "1day", capacity: 1, write_ahead: 0, mode: "shadow" },
  llm: {
    on_error: "open",
    limits: [
      { name: "requests", rate: 1, period: "1day", capacity: 5, write_ahead: 0 },
      { name: "tokens", rate: 1, period: "1day", capacity: 100, write_ahead: 0 },
    ],
  },
};
const project = makeProject("plain", {
  main: "embedded.mjs",
  classes: { KEYS: "KeyObject", COUNTER: "Counter" },
  vars: { POLICIES, TOLLGATE_TOKENS: tokens("consume", "adjust"), TOLLGATE_KEY_SECRET: KEY_SECRET },
});
const plain = await wranglerDev([project]);

const byHttp = (verb, ask, headers) => plain.post(`/v1/${verb}`, ask, { authorization: `Bearer ${TOKEN}`, ...headers });
const embedded = (verb, ask, headers) => plain.post(`/embedded/${verb}`, ask, headers);

/** An answer without members that differ by moment, by key, and between HTTP and the embedded API. */
function comparable({ status, headers, body }) {
  const names = [
    "date",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "vary",
    "server",
    "x-request-id",
  ];
  // By HTTP any page may read an answer; inside a Worker that is the application's choice.
  const kept = [...headers].filter(([name]) => !names.includes(name) && !name.startsWith("access-control-"));
  const text = JSON.stringify({ status, headers: kept, body });
  return JSON.parse(
    text
      .replace(/;t=\d+/g, ";t=0")
      .replace(/"reservation":"\w+"/g, '"reservation":""')
      .replace(/"drops":\d+/g, '"drops":0')
      .replace(/\d{6,}/g, "0"),
  );
}

test("answers each verb as HTTP does, with the same headers", async () => {
  for (const [verb, ask, status] of [
    ["consume", { policy: "api" }, 200],
    ["consume", { policy: "api", cost: 3, snapshot: true }, 200],
    ["consume", { policy: "api", mode: "up_to", cost: 10 }, 200],
    ["consume", { policy: "api", cost: 9 }, 429],
    ["peek", { policy: "api", cost: 9 }, 429],
    ["refund", { policy: "api", cost: 2 }, 200],
    ["charge", { policy: "api", cost: 5 }, 200],
    ["inspect", { policy: "api" }, 200],
    ["reset", { policy: "api" }, 200],
    ["consume", { policy: "llm", cost: { requests: 1, tokens: 90 } }, 200],
    ["consume", { policy: "llm", cost: { requests: 1, tokens: 90 } }, 429],
    ["consume", { policy: "once" }, 200],
    ["consume", { policy: "once" }, 429],
    ["consume", { policy: "tried" }, 200],
    ["consume", { policy: "tried" }, 200],
    ["inspect", { policy: "tried" }, 200],
  ]) {
    const [ours, theirs] = [await embedded(verb, { ...ask, key: "a" }), await byHttp(verb, { ...ask, key: "b" })];
    assert.equal(ours.status, status, `${verb} ${JSON.stringify(ask)}: ${ours.text}\n${plain.log}`);
    const cors = (answer) => [...answer.headers.keys()].filter((name) => name.startsWith("access-control-")).length;
    assert.deepEqual([cors(ours), cors(theirs)], [0, 2]);
    assert.deepEqual(comparable(ours), comparable(theirs), `${verb} ${JSON.stringify(ask)}`);
  }
  for (const [ask, status] of [
    [
      (key) => ({
        requests: [
          { policy: "api", key },
          { policy: "once", key: `${key}-other` },
        ],
      }),
      200,
    ],
    [
      (key) => ({
        requests: [
          { policy: "api", key },
          { policy: "once", key: `${key}-other` },
        ],
      }),
      429,
    ],
  ]) {
    const [ours, theirs] = [await embedded("batch", ask("c")), await byHttp("batch", ask("d"))];
    assert.equal(ours.status, status, ours.text);
    assert.deepEqual(comparable(ours), comparable(theirs));
  }
});

test("what is spent one way is spent for the other: a key has one object", async () => {
  assert.equal((await embedded("consume", { policy: "once", key: "shared" })).status, 200);
  assert.equal((await byHttp("consume", { policy: "once", key: "shared" })).status, 429);
});

test("settles, cancels and extends reservations", async () => {
  for (const [verb, remaining] of [
    ["settle", 8],
    ["cancel", 8],
  ]) {
    const reserve = { policy: "api", key: "reserving", cost: 4, mode: "reserve" };
    const { status, body } = await embedded("consume", reserve);
    assert.equal(status, 200);
    const { reservation } = body;
    const extended = await embedded("extend", { policy: "api", key: "reserving", reservation, cost: 1 });
    assert.deepEqual([extended.status, extended.body.remaining], [200, body.remaining - 1], extended.text);
    const cost = verb === "settle" ? { cost: 2 } : {};
    const closed = await embedded(verb, { policy: "api", key: "reserving", reservation, ...cost });
    assert.deepEqual([closed.status, closed.body.remaining], [200, remaining], closed.text);
  }
});

test("operators see, explain and fill a key; without a registry nothing is recorded, and nothing can be blocked", async () => {
  const keys = (verb, ask) => plain.post(`/keys/${verb}`, { key: "operated", ...ask });
  const budget = { policy: "api" };
  await embedded("consume", { ...budget, key: "operated", cost: 9 });
  const { body: told } = await keys("explain", { ...budget, cost: 2 });
  assert.match(told.explanation, /^Refused: the limit api allows 1 per day, at most 10 at once; 1 are left/);
  const credited = await keys("credit", { ...budget, cost: 3 });
  assert.deepEqual(
    [credited.status, credited.body.after, credited.body.recorded],
    [200, [{ limit: "api", level: 4 }], false],
  );
  assert.deepEqual((await keys("reset", budget)).body.after, [{ limit: "api", level: 10 }]);
  const { status, body } = await keys("inspect");
  assert.deepEqual([status, body.decisions.map(({ action }) => action)], [200, ["reset", "refund", "consume"]]);
  assert.equal((await keys("block", { ...budget, for_ms: 60_000 })).status, 404);
  assert.equal((await keys("inspect", { cost: 1 })).status, 400);
});

test("a wrong request gets the same problem as over HTTP", async () => {
  for (const [verb, ask, status] of [
    ["consume", {}, 400],
    ["consume", [], 400],
    ["consume", null, 400],
    ["consume", { policy: "api", key: "" }, 400],
    ["consume", { policy: "api", key: "a", cost: -1 }, 400],
    ["consume", { policy: "api", key: "a", cost: 99 }, 400],
    ["consume", { policy: "api", key: "a", burst: 1 }, 400],
    ["consume", { policy: "typo", key: "a" }, 404],
    ["consume", { policy: "api", key: "k".repeat(20_000) }, 413],
    ["settle", { policy: "api", key: "a", reservation: "0000000000000" }, 404],
    ["batch", { requests: [] }, 400],
  ]) {
    const [ours, theirs] = [await embedded(verb, ask), await byHttp(verb, ask)];
    assert.equal(ours.status, status, `${verb} ${JSON.stringify(ask).slice(0, 99)}: ${ours.text}`);
    assert.deepEqual(comparable(ours), comparable(theirs));
  }
});

test("a request is repeated safely with an idempotency key", async () => {
  const ask = { policy: "api", key: "repeating", cost: 7 };
  const first = await embedded("consume", ask, { "idempotency-key": "one" });
  const second = await embedded("consume", ask, { "idempotency-key": "one" });
  assert.deepEqual([first.body.remaining, second.body.remaining, second.body.replayed], [3, 3, true]);
  assert.equal((await embedded("consume", { ...ask, cost: 1 }, { "idempotency-key": "one" })).status, 422);
  assert.equal((await embedded("consume", ask, { "idempotency-key": "" })).status, 400);
});

test("acquire waits its turn, and leaves no reservation open", async () => {
  const ask = { policy: "soon", key: "waiting" };
  const acquired = await Promise.all([1, 1, 1].map((cost) => plain.post("/acquire", { ...ask, cost })));
  assert.deepEqual(
    acquired.map(({ status, body }) => [status, body.cost]),
    Array(3).fill([200, 1]),
  );
  const { body } = await plain.post("/embedded/inspect", ask);
  assert.equal(body.open_reservations, 0);
  assert.equal((await plain.post("/acquire", { ...ask, cost: 12 })).body, "cost_never_granted");
});

test("an answer's own members are those of the body, and its status", async () => {
  const { body } = await plain.post("/members/consume", { policy: "api", key: "members" });
  const { status, allowed, remaining, ...others } = body.members;
  assert.deepEqual([status, allowed, remaining], [200, true, 9]);
  assert.deepEqual(Object.keys(others).sort(), ["cost", "limit", "near_limit", "now", "policy", "reset_at"]);
  assert.ok(Object.fromEntries(body.headers).ratelimit.startsWith('"api";r=9;'));
});

test("adds its headers to any response, and reads no body", async () => {
  const own = await plain.send("/apply/own/api/llm");
  assert.equal(own.headers.get("x-same"), "true");
  assert.match(own.headers.get("ratelimit"), /^"api";r=9;t=\d+, "llm\/requests";r=4;t=\d+, "llm\/tokens";r=99;t=\d+$/);
  assert.match(own.headers.get("ratelimit-policy"), /^"api";q=1;w=86400;tollgate-capacity=10, "llm\/requests"/);
  assert.equal(own.headers.get("retry-after"), null);

  const redirect = await plain.send("/apply/redirect/api");
  assert.deepEqual([redirect.status, redirect.headers.get("location")], [302, "https://example.com/"]);
  assert.match(redirect.headers.get("ratelimit"), /^"api";r=8;/);
  assert.equal(redirect.headers.get("x-same"), "false", "a redirect cannot be changed");

  assert.deepEqual((await plain.post("/stream", {})).body, ['"api";r=9', "first", "second"]);

  const again = { key: "applied", policy: "api", cost: 8 };
  assert.equal((await embedded("consume", again)).status, 200);
  const refused = await plain.send("/apply/own/api");
  assert.equal(refused.status, 200, "the response is the caller's");
  assert.ok(Number(refused.headers.get("retry-after")) > 0);
});

test("policies may be in code, and reach the object with the first call", async () => {
  const code = (ask) => plain.post("/code/consume", { policy: "code", key: "in-code", ...ask });
  const statuses = [];
  for (let i = 0; i < 4; i++) statuses.push((await code()).status);
  assert.deepEqual(statuses, [200, 200, 200, 429]);
  assert.deepEqual([(await code({ policy: "api" })).status, (await code({ cost: 4 })).status], [404, 400]);
  assert.doesNotMatch(plain.log, /did not answer/);
});

test("what one namespace has refused, another does not refuse from memory", async () => {
  const ask = (route) => plain.post(`/${route}/consume`, { policy: "api", key: "two namespaces", cost: 8 });
  const answers = [await ask("embedded"), await ask("embedded"), await ask("embedded"), await ask("elsewhere")];
  const said = answers.map(({ status, body }) => [status, body.source]);
  assert.deepEqual(said, [
    [200, undefined],
    [429, undefined],
    [429, "cache"],
    [200, undefined],
  ]);
});

test("the same arguments give the same object", async () => {
  assert.deepEqual((await plain.post("/memoised", {})).body, [true, true, false, true, true, true, false]);
});

// As for `keys: env.KEYS.jurisdiction("eu")`, which returns a new object at each call.
test("a namespace that is a new object for each request still remembers its refusals", async () => {
  const ask = () => plain.post("/renewed/consume", { policy: "api", key: "renewed", cost: 8 });
  const sources = [];
  for (let i = 0; i < 3; i++) sources.push((await ask()).body.source);
  assert.deepEqual(sources, [undefined, undefined, "cache"]);
});

test("with `throws`, anything but a grant is an error with the response", async () => {
  const ask = (verb, ask) => plain.post(`/throwing/${verb}`, ask);
  const taken = { policy: "api", key: "thrown", cost: 8 };
  assert.equal((await ask("consume", taken)).status, 200);
  for (const verb of ["consume", "peek"]) {
    const refused = await ask(verb, taken);
    assert.deepEqual([refused.status, refused.body.policy], [429, "api"], refused.text);
    assert.equal(refused.headers.get("x-code"), "refused");
    assert.equal(refused.headers.get("x-after"), String(refused.body.retry_after_ms));
    assert.equal(refused.headers.get("x-at"), String(refused.body.retry_at));
    const wrong = await ask(verb, { ...taken, policy: "typo" });
    assert.deepEqual([wrong.status, wrong.headers.get("x-code")], [404, "not_granted"]);
  }
  assert.equal((await ask("settle", { ...taken, reservation: "00" })).status, 404, "other verbs return their problems");
});

test("requests bring their limits, and need no policy", async () => {
  const free = { policy: "plan", key: "inline", limits: { rate: "10/1day", write_ahead: 0 } };
  const pro = { ...free, limits: { rate: "1000/1day", write_ahead: 0 } };
  const remaining = async (verb, ask) => (await embedded(verb, ask)).body.remaining;
  assert.equal(await remaining("consume", { ...free, cost: 10 }), 0);
  assert.equal((await embedded("consume", free)).status, 429);
  assert.equal(await remaining("consume", { ...pro, cost: 300 }), 690, "the rest of the larger plan is there at once");
  assert.equal((await embedded("consume", free)).status, 429);
  assert.equal(await remaining("peek", { ...pro, cost: 0 }), 690);
  const { reservation } = (await embedded("consume", { ...pro, mode: "reserve", cost: 90 })).body;
  assert.equal(await remaining("settle", { ...pro, reservation, cost: 10 }), 680);
  assert.equal(await remaining("reset", free), 10);
  const requests = [pro, { policy: "api", key: "inline" }, { ...free, key: "inline-2" }];
  const { body } = await embedded("batch", { requests });
  assert.deepEqual(
    body.results.map(({ remaining }) => remaining),
    [999, 9, 9],
  );
  const wrong = await embedded("consume", { ...free, limits: [{ name: "a", rate: "1/s" }, { name: "b" }] });
  assert.deepEqual([wrong.status, wrong.body.detail], [400, "limits[1].rate: is missing"]);
  const own = await embedded("consume", { ...free, policy: "api" });
  assert.equal(own.body.detail, "api is a policy of this service: leave out `limits`, or use another name");
  const alone = await plain.post("/none/consume", { ...free, key: "inline-3" });
  assert.deepEqual([alone.status, alone.body.remaining], [200, 9]);
});

test("wrong settings throw one error that names them all", async () => {
  const rows = [
    [{}, []],
    [{ without: ["TOLLGATE_KEY_SECRET", "TOLLGATE_TOKENS"] }, []],
    [
      { without: ["KEYS"] },
      [/^KEYS: there is no Durable Object namespace: .* or pass its namespace as the option `keys`$/],
    ],
    [{ without: ["POLICIES"] }, [/^POLICIES: there are no policies: add some to Wrangler's configuration/]],
    [{ POLICIES: { a: { rate: -1 } } }, [/^POLICIES\.a\.rate: must be a number/, /^POLICIES\.a\.period: is missing$/]],
    [{ TOLLGATE_KEY_SECRET: "short" }, [/^the secret TOLLGATE_KEY_SECRET has 5 bytes: it needs 16 random ones$/]],
    [{ TOLLGATE_KEY_SECRET: {} }, [/^TOLLGATE_KEY_SECRET must be text$/]],
    [{ options: { policies: { a: { rate: 1 } } } }, [/^policies\.a\.period: is missing$/]],
    [{ options: { policies: {} } }, []],
    [{ options: { policies: null } }, [/^policies: must be a table of policies by name, not null$/]],
    [
      { options: { policies: { api: { rate: 1, period: "1s" } } } },
      [/^policies\.api: the variable POLICIES has it too; remove one of them$/],
    ],
    [{ POLICIES: "mine", options: { policies: { a: { rate: 1, period: "1s" } } } }, []],
  ];
  for (const [settings, expected] of rows) {
    const { body } = await plain.post("/settings", settings);
    assert.equal(body.length, expected.length, `${JSON.stringify(settings)}: ${JSON.stringify(body)}`);
    for (const [i, pattern] of expected.entries()) assert.match(body[i], pattern);
  }
});

test("a Worker has other Durable Objects and exports beside it, and all state survives a power cut", async () => {
  const spend = () => embedded("consume", { policy: "once", key: "kept" });
  assert.deepEqual([(await spend()).status, (await spend()).status], [200, 429]);
  assert.equal((await plain.post("/counter", {})).body, "1");
  await plain.kill();
  const again = await wranglerDev([project]);
  assert.equal((await again.post("/embedded/consume", { policy: "once", key: "kept" })).status, 429);
  assert.equal((await again.post("/counter", {})).body, "2");
});
