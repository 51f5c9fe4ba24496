// Decisions as they are made: a listener sees those of all isolates, and without listeners nothing is sent.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { newToken } from "./credentials.mjs";
import { KEY_SECRET, NOW, start } from "./workerd.mjs";

const all = newToken("consume", "admin");
const some = newToken("admin");
some.entry.policies = ["api", "llm"];
const consumer = newToken("consume");
all.entry.inline = true;
const tokens = { all: all.entry, some: some.entry, consumer: consumer.entry };

const DAY = { period: "1day" };
const POLICIES = {
  api: { rate: 2, ...DAY },
  llm: {
    limits: [
      { name: "requests", rate: 9, ...DAY },
      { name: "tokens", rate: 2, ...DAY },
    ],
  },
  tried: { rate: 1, ...DAY, mode: "shadow" },
};

/** Two frontends with a registry; each call of it is in the log. Moments are the test's. */
async function started(changes) {
  const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
  const settings = { policies: POLICIES, tokens, token: all.text, registry: true, around };
  const other = { policies: POLICIES, build: "test-clock", around };
  const tollgate = await start({ ...settings, other, ...changes });
  after(() => tollgate.stop());
  let now = NOW;
  const ask = (body, { other = false, headers, path = "/v1/consume" } = {}) =>
    tollgate.send({
      path,
      body: JSON.stringify(body),
      now,
      headers: { ...(other && { "x-version": "other" }), ...headers },
    });
  const listen = (query = "", token = all.text) =>
    tollgate.send({ method: "GET", path: `/v1/decisions${query}`, now, headers: { authorization: `Bearer ${token}` } });
  return {
    tollgate,
    ask,
    listen,
    /** Listens until `enough` is true of what has arrived, a moment after the answers. Without the cursor and constant members. */
    async received(first, query, enough, token) {
      const seen = { decisions: [], omitted: 0, interrupted: false };
      let { cursor } = first.body;
      for (let tries = 0; !enough(seen); tries++) {
        if (tries === 300) throw new Error(`not seen: ${JSON.stringify(seen)}\n${tollgate.log}`);
        await new Promise((done) => setTimeout(done, 20));
        const { status, body } = await listen(`?${query}${query && "&"}after=${cursor}`, token);
        assert.deepEqual([status, body.poll_after_ms], [200, 1_000]);
        cursor = body.cursor;
        seen.decisions.push(...body.decisions);
        seen.omitted += body.omitted;
        seen.interrupted ||= body.interrupted;
      }
      return seen;
    },
    /** How often the registry was called. */
    calls: (method) => tollgate.log.split(`registry: ${method}\n`).length - 1,
    wait: (ms) => {
      now += ms;
    },
  };
}

const count = (expected) => (seen) => seen.decisions.length + seen.omitted >= expected;
const objectOf = (key) => createHmac("sha256", KEY_SECRET).update(key).digest("hex").slice(0, 32);

test("a listener at one frontend sees decisions made at another, and never a key", async () => {
  const service = await started();
  const key = "a-secret-key";
  const first = await service.listen();
  assertAnswer(first, {
    status: 200,
    headers: { "content-type": "application/json" },
    body: { decisions: [], omitted: 0, interrupted: false, cursor: first.body.cursor, poll_after_ms: 1_000 },
  });
  const other = { other: true };
  const statuses = [];
  for (const [body, options] of [
    [{ policy: "api", key, cost: 2 }],
    [{ policy: "api", key }],
    [{ policy: "llm", key, cost: { requests: 1, tokens: 2 } }],
    [{ policy: "llm", key, cost: { requests: 1, tokens: 1 } }],
    [{ policy: "api", key, cost: 3 }],
    [{ policy: "llm", key, cost: { requests: 1, tokens: 3 } }],
    [{ policy: "tried", key, cost: 1 }],
    [{ policy: "tried", key, cost: 1 }],
    [{ policy: "plan", key, limits: "1/1day" }],
    [{ requests: ["api", "tried"].map((policy) => ({ policy, key, cost: 1 })) }, { path: "/v1/batch" }],
    [{ policy: "api", key }, { path: "/v1/peek" }],
  ])
    statuses.push((await service.ask(body, { ...other, ...options })).status);
  assert.deepEqual(statuses, [200, 429, 200, 429, 400, 400, 200, 200, 200, 429, 429]);
  const seen = await service.received(first, "", count(11));
  const [at, object, retry_at] = [NOW, objectOf(key), NOW + 43_200_000];
  const one = (policy, outcome, cost, more) => ({ at, policy, outcome, source: "object", cost, object, ...more });
  const tooLarge = (policy, more) => ({ at, policy, outcome: "never", source: "frontend", cost: 3, ...more });
  assert.deepEqual(seen, {
    decisions: [
      one("api", "allowed", 2, { remaining: 0 }),
      one("api", "refused", 1, { remaining: 0, retry_at }),
      one("llm", "allowed", 2, { remaining: 0, limit: "tokens" }),
      one("llm", "refused", 1, { remaining: 0, retry_at, limit: "tokens" }),
      tooLarge("api"),
      tooLarge("llm", { limit: "tokens" }),
      one("tried", "allowed", 1),
      one("tried", "allowed", 1, { refused_in_shadow: true }),
      one("(inline)", "allowed", 1, { remaining: 0 }),
      one("api", "refused", 1, { remaining: 0, retry_at }),
      one("tried", "dropped", 1, { refused_in_shadow: true }),
    ],
    omitted: 0,
    interrupted: false,
  });
  assert.ok(!JSON.stringify(seen).includes(key) && !service.tollgate.log.includes(key));
});

test("decisions by shards belong to one key, and say that `remaining` is that of one shard", async () => {
  const service = await started({ policies: { ...POLICIES, hot: { rate: 4, ...DAY, shards: 2 } } });
  const first = await service.listen();
  const statuses = [];
  for (let i = 0; i < 5; i++) statuses.push((await service.ask({ policy: "hot", key: "a" })).status);
  assert.deepEqual(statuses, [200, 200, 200, 200, 429]);
  const { decisions } = await service.received(first, "", count(5));
  for (const { object, shards, remaining } of decisions)
    assert.deepEqual([object, shards, remaining <= 1], [objectOf("a"), 2, true]);
});

test("a busy frontend learns about a listener five seconds after its last poll", async () => {
  const service = await started();
  const other = { other: true };
  assert.equal((await service.ask({ policy: "api", key: "a" }, other)).status, 200);
  const first = await service.listen();
  service.wait(4_999);
  await service.ask({ policy: "api", key: "b" }, other);
  service.wait(1);
  const polls = service.calls("poll");
  await service.ask({ policy: "api", key: "c" }, other); // asks in the background
  while (service.calls("poll") === polls) await new Promise((done) => setTimeout(done, 10));
  await service.ask({ policy: "api", key: "d" }, other);
  const { decisions } = await service.received(first, "", ({ decisions }) =>
    decisions.some(({ object }) => object === objectOf("d")),
  );
  const objects = decisions.map(({ object }) => object);
  assert.ok(!objects.includes(objectOf("a")) && !objects.includes(objectOf("b")), "that was before");
});

test("filters: by policy, by outcome, and by the policies of the token", async () => {
  const service = await started();
  const queries = ["policy=api", "outcome=refused,never", "policy=api&outcome=allowed", "policy=(inline)", ""];
  const firsts = await Promise.all(queries.map((query) => service.listen(query && `?${query}`)));
  const restricted = await service.listen("", some.text);
  for (const other of [false, true]) {
    for (const policy of ["api", "api", "api", "tried"]) await service.ask({ policy, key: "x" }, { other });
    await service.ask({ policy: "plan", key: "x", limits: "1/1day" }, { other });
  }
  const shown = ({ decisions }) => decisions.map(({ policy, outcome }) => `${policy} ${outcome}`).sort();
  const expected = [
    [2, 0, 4, 0, 0],
    [0, 0, 4, 0, 1],
    [2, 0, 0, 0, 0],
    [0, 1, 0, 0, 1],
    [2, 1, 4, 2, 1],
  ].map(([allowed, inline, refused, tried, inlineRefused]) =>
    [
      ...Array(allowed).fill("api allowed"),
      ...Array(refused).fill("api refused"),
      ...Array(tried).fill("tried allowed"),
      ...Array(inline).fill("(inline) allowed"),
      ...Array(inlineRefused).fill("(inline) refused"),
    ].sort(),
  );
  for (const [i, query] of queries.entries())
    assert.deepEqual(shown(await service.received(firsts[i], query, count(expected[i].length))), expected[i], query);
  const seen = await service.received(restricted, "", count(6), some.text);
  assert.deepEqual(shown(seen), expected[0], "only policies of the token");
});

test("a flood is truncated, and what is left out is counted", async () => {
  const service = await started();
  const first = await service.listen();
  const floods = [false, true].map((other) =>
    Promise.all(Array.from({ length: 300 }, (_, i) => service.ask({ policy: "api", key: `${i % 7}` }, { other }))),
  );
  await Promise.all(floods);
  const seen = await service.received(first, "", count(600));
  assert.equal(seen.decisions.length + seen.omitted, 600);
  const batches = service.calls("show");
  assert.ok(seen.decisions.length <= 50 * batches && seen.omitted > 0, `${seen.decisions.length} in ${batches}`);
  assert.ok(batches <= 20, `${batches} batches: each isolate sends one in a second`);
});

test("nothing is sent without listeners, or after the last one has left", async () => {
  const service = await started();
  const work = async () => {
    for (const other of [false, true])
      for (let i = 0; i < 20; i++) await service.ask({ policy: "api", key: `${i}` }, { other });
  };
  await work();
  assert.deepEqual([service.calls("show"), service.calls("poll")], [0, 3], "the first brings the policies, too");
  const first = await service.listen();
  service.wait(10_001); // each asks the registry before it answers
  await work();
  await service.received(first, "", count(40));
  service.wait(15_000); // later than the listener's last request
  const sent = service.calls("show");
  await work();
  service.wait(4_000);
  await work();
  await new Promise((done) => setTimeout(done, 300)); // a batch would be sent after a tenth of a second
  assert.equal(service.calls("show"), sent);
  const again = await service.listen(`?after=${first.body.cursor}`);
  assert.equal(again.body.interrupted, true, "it learns that it has missed something");
});

test("a registry that does not answer delays nothing, and lost decisions are counted", async () => {
  const service = await started();
  const first = await service.listen();
  await service.ask({ policy: "api", key: "a" });
  await service.received(first, "", count(1));
  const blocked = { headers: { "x-registry": "throws" } };
  assert.equal((await service.ask({ policy: "api", key: "a" }, blocked)).status, 200);
  await service.tollgate.logged("the registry did not take over decisions");
  await service.ask({ policy: "api", key: "a" }, { headers: { "x-registry": "answers" } });
  const seen = await service.received(first, "", count(3));
  assert.deepEqual([seen.decisions.length, seen.omitted], [2, 1]);
});

test("rejects wrong parameters, methods and scopes", async () => {
  const service = await started();
  assert.equal((await service.listen("", consumer.text)).status, 403);
  assert.equal((await service.ask({}, { path: "/v1/decisions" })).status, 405);
  for (const [query, detail] of [
    [
      "?outcome=denied",
      '`outcome` is a list of allowed, refused, never, banned, unlimited, replayed, dropped, degraded, unavailable, with commas between them, not "denied"',
    ],
    ["?after=7", '`after` must be the `cursor` of an earlier answer, not "7"'],
    ["?key=a", 'there is no parameter "key" here; there is policy, outcome, after'],
  ])
    assertAnswer(await service.listen(query), problem(400, "bad-request", "Bad request", detail));
  for (const [policy, token, known] of [
    ["apo", all.text, "api, llm, tried"],
    ["tried", some.text, "api, llm"],
  ]) {
    const detail = `there is no policy "${policy}"; there are ${known}`;
    const expected = problem(404, "unknown-policy", "Unknown policy", detail);
    assertAnswer(await service.listen(`?policy=${policy}`, token), expected);
  }
  const outcomes = ["allowed", "refused", "never", "banned"];
  const queries = outcomes.flatMap((outcome) => ["api", "llm", "tried", "(inline)"].map((p) => [outcome, p]));
  for (const [outcome, policy] of queries)
    assert.equal((await service.listen(`?outcome=${outcome}&policy=${policy}`)).status, 200);
  const detail = "16 listeners are connected, each with its own filter: stop one, or use the filter of one of them";
  assertAnswer(await service.listen(), problem(409, "too-many-listeners", "Too many listeners", detail));
  assert.equal((await service.listen("?outcome=never&policy=llm")).status, 200);

  const team = await started();
  const detailOf = async (query, token) => (await team.listen(query, token)).body.detail;
  for (const outcome of outcomes) assert.equal(await detailOf(`?outcome=${outcome}`, some.text), undefined);
  const own =
    "4 listeners with this restricted token are connected, each with its own filter: stop one, or use the filter of one of them";
  assertAnswer(
    await team.listen("?outcome=dropped", some.text),
    problem(409, "too-many-listeners", "Too many listeners", own),
  );
  assert.equal(await detailOf("?outcome=dropped", all.text), undefined, "others have their room");

  const alone = await started({ registry: false, other: undefined, around: undefined });
  assert.match((await alone.listen()).body.detail, /^this deployment has no registry of policies: /);
});
