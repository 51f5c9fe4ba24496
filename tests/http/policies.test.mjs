// Policies that operators change while the service runs: the API, and when a change takes effect.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { newToken } from "./credentials.mjs";
import { governed } from "./governed.mjs";
import { readRows, writable, writeRow } from "./rows.mjs";
import { NOW } from "./workerd.mjs";

const admin = newToken("admin");
const all = newToken("consume", "adjust", "admin");
const some = newToken("admin");
some.entry.policies = ["api", "mine"];
const tokens = { ops: admin.entry, all: all.entry, some: some.entry };

const POLICIES = { api: { rate: 10, period: "10s" }, firm: { rate: 1, period: "1s", fixed: true } };

async function started(changes) {
  const service = await governed({ policies: POLICIES, tokens, token: all.text, ...changes });
  const { send } = service;
  return Object.assign(service, {
    get: (path, options) => send("GET", path, undefined, options),
    put: (name, body, headers = { "if-match": "*" }, query = "") =>
      send("PUT", `/v1/policies/${name}${query}`, body, { headers }),
    consume: (policy, key, cost = 1, options) => send("POST", "/v1/consume", { policy, key, cost }, options),
  });
}

/** The first line of a policy's lint. */
const lint = (name, rate, capacity = rate) =>
  `${name}: token bucket, ${rate} per 10s, at most ${capacity} at once and ${capacity + rate} within any 10s`;

test("lists the policies of the deployment, and shows each with its version", async () => {
  const service = await started();
  const { body } = await service.get("/v1/policies");
  assert.deepEqual(
    body.policies.map(({ name, source, fixed }) => [name, source, fixed]),
    [
      ["api", "deployment", false],
      ["firm", "deployment", true],
    ],
  );
  const [api] = body.policies;
  assert.deepEqual([api.version, api.lint[0]], [body.as_of, lint("api", 10)]);
  assertAnswer(await service.get("/v1/policies/api"), {
    status: 200,
    headers: { "content-type": "application/json", etag: `"${api.version}"` },
    body: api,
  });
  assertAnswer(
    await service.get("/v1/policies/other"),
    problem(404, "unknown-policy", "Unknown policy", 'there is no policy "other"'),
  );
});

test("naming a limit keeps its tokens and lets others be added", async () => {
  const service = await started();
  const reserved = await service.consume("api", "alice", 2);
  assert.equal(reserved.status, 200);
  const { body } = await service.consume("api", "alice", 4);
  assert.equal(body.remaining, 4);
  const limits = (...limits) => ({ limits: limits.map(([name, rate, mode = "enforce"]) => ({ name, rate, mode })) });
  const tried = limits(["b", "5/10s", "shadow"], ["a", "10/10s"]);
  const dry = await service.put("api", tried, { "if-match": "*" }, "?dry_run=true");
  assert.ok(dry.body.changes.includes("api/a is the limit that had no name"), dry.text);
  const left = async () => {
    const peek = await service.send("POST", "/v1/peek", { policy: "api", key: "alice" });
    return Object.fromEntries(peek.body.limits.map((limit) => [limit.name, limit.remaining]));
  };
  for (const [policy, expected] of [
    [tried, { a: 4 }],
    [limits(["c", "7/10s"], ["a", "12/10s"]), { c: 7, a: 6 }],
    [limits(["a", "10/10s"]), { a: 4 }],
  ]) {
    assert.equal((await service.put("api", policy)).status, 200);
    assert.deepEqual(await left(), expected);
  }
  const unnamed = await service.put("api", "10/10s");
  assert.equal(unnamed.status, 200);
  assert.equal((await service.send("POST", "/v1/peek", { policy: "api", key: "alice" })).body.remaining, 4);
});

test("a change takes effect here at once; earlier time counts at the old rate, and tokens are carried over", async () => {
  const service = await started();
  assert.equal((await service.consume("api", "alice", 10)).status, 200);
  service.wait(4_000); // 4 tokens at the old rate
  const { version } = (await service.get("/v1/policies/api")).body;
  const slow = { rate: 1, period: "10s", capacity: 10, refusal_cache: "0s" };
  const changed = await service.put("api", slow, { "if-match": `"${version}"` });
  assert.equal(changed.status, 200);
  assert.equal(changed.headers.etag, `"${changed.body.policy.version}"`);
  assert.ok(changed.body.policy.version > version);
  assert.deepEqual(
    [changed.body.dry_run, changed.body.policy.source, changed.body.policy.lint[0]],
    [false, "admin", lint("api", 1, 10)],
  );
  assert.deepEqual(changed.body.changes.slice(2), [
    "api: 1 per 10s instead of 10 per 10s; time before the change counts at the old rate",
    "api: every key keeps its tokens",
    "for every key of api, at the latest ten seconds from then",
  ]);
  service.wait(10_000); // 1 token at the new rate
  const { status, body } = await service.consume("api", "alice", 6);
  assert.deepEqual([status, body.remaining], [429, 5]);
  assert.equal((await service.consume("api", "alice", 5)).status, 200);
});

test("requests follow creations and deletions", async () => {
  const service = await started();
  assert.equal((await service.consume("trial", "a")).status, 404);
  const created = await service.put("trial", "2/10s", { "if-none-match": "*" });
  assert.deepEqual([created.status, created.body.policy.policy], [201, "2/10s"]);
  assert.deepEqual(
    [(await service.consume("trial", "a", 2)).status, (await service.consume("trial", "a")).status],
    [200, 429],
  );
  const gone = await service.send("DELETE", "/v1/policies/trial", undefined, {
    headers: { "if-match": created.headers.etag },
  });
  assert.deepEqual([gone.status, gone.body.policy], [200, null]);
  assert.equal((await service.consume("trial", "a")).status, 404);
  assert.equal((await service.get("/v1/policies/trial")).status, 404);
  const again = await service.put("trial", "2/10s", { "if-none-match": "*" });
  assert.ok(again.body.policy.version > created.body.policy.version);
  assert.equal((await service.consume("trial", "a")).status, 429, "its bucket is still empty");
});

test("a change without a condition, or with an unmet one, changes nothing", async () => {
  const service = await started();
  const { version } = (await service.get("/v1/policies/api")).body;
  const failed = problem(
    412,
    "precondition-failed",
    "Precondition failed",
    `nothing was changed: the policy "api" has the version ${version}`,
    { version, headers: { etag: `"${version}"` } },
  );
  const required = problem(
    428,
    "precondition-required",
    "Precondition required",
    'send `If-Match: "<version>"` to change the version that you know, or `If-None-Match: *` to create a policy',
  );
  assertAnswer(await service.put("api", "1/1s", {}), required);
  assertAnswer(await service.put("api", "1/1s", { "if-match": `"${version - 1}"` }), failed);
  assertAnswer(await service.put("api", "1/1s", { "if-none-match": "*" }), failed);
  const absent = 'nothing was changed: there is no policy "new"; to create it, send `If-None-Match: *`';
  assertAnswer(await service.put("new", "1/1s"), problem(412, "precondition-failed", "Precondition failed", absent));
  for (const headers of [{}, { "if-match": `"${version + 1}"` }]) {
    const { status } = await service.send("DELETE", "/v1/policies/api", undefined, { headers });
    assert.equal(status, headers["if-match"] ? 412 : 428);
  }
  assert.equal(
    (await service.send("DELETE", "/v1/policies/new", undefined, { headers: { "if-match": "*" } })).status,
    404,
  );
  assert.equal((await service.get("/v1/policies/api")).body.version, version);
});

test("a dry run reports what would change, and changes nothing", async () => {
  const service = await started();
  const before = (await service.get("/v1/policies")).body;
  for (const [carry, line] of [
    ["as_is", "api: every key keeps its tokens, but at most 4"],
    ["proportional", "api: every key keeps its share of the capacity: 5 of 10 become 2 of 4"],
    ["additive", "api: every key loses at most 6 tokens: what is spent stays spent"],
    ["reset", "api: every key starts with 4 tokens"],
  ]) {
    const dry = await service.put("api", "4/10s", { "if-match": "*" }, `?dry_run=true&carry=${carry}`);
    assert.deepEqual([dry.status, dry.body.dry_run, dry.headers.etag], [200, true, undefined]);
    assert.equal(dry.body.changes[3], line);
  }
  assert.equal((await service.put("new", "4/10s", { "if-none-match": "*" }, "?dry_run=true")).status, 200);
  const options = { headers: { "if-match": "*" } };
  const dry = await service.send("DELETE", "/v1/policies/api?dry_run=true", undefined, options);
  assert.deepEqual([dry.status, dry.body.policy], [200, null]);
  assert.deepEqual((await service.get("/v1/policies")).body, before);
  assert.equal((await service.get("/v1/audit")).body.acts.length, 2);
});

test("each carry strategy does what it says", async () => {
  for (const [carry, remaining] of [
    ["as_is", 6],
    ["proportional", 12],
    ["additive", 16],
    ["", 16],
    ["reset", 20],
  ]) {
    const service = await started();
    await service.consume("api", "alice", 4);
    await service.put("api", "20/10s", { "if-match": "*" }, carry && `?carry=${carry}`);
    const { body } = await service.send("POST", "/v1/peek", { policy: "api", key: "alice" });
    assert.equal(body.remaining, remaining, carry);
    assert.equal((await service.get("/v1/audit?limit=1")).body.acts[0].carry, carry || "additive");
  }
});

test("an invalid change is explained, and changes nothing", async () => {
  const service = await started();
  const bad = (detail) => problem(400, "bad-request", "Bad request", detail);
  assertAnswer(
    await service.put("api", { rate: -1, burst: 5 }),
    bad(
      "the policy has errors: burst: is not a known field; known fields are kind, rate, period, calendar, starts, zone, capacity, max_debt, initial, " +
        "offset, grains, write_ahead, mode, shards, fixed, carry, reservation_ttl, unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter, limits; rate: must be a " +
        'number from 0 to 9007199254740991 such as 100 or 2.5, or text such as "100/1m" or "20/s burst 40", not -1; period: is missing',
    ),
  );
  assertAnswer(
    await service.put("a%20b", "1/1s", { "if-none-match": "*" }),
    bad("the policy has errors: \"a%20b\": a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'"),
  );
  assertAnswer(
    await service.put("api", { rate: "1/1s", fixed: true }),
    bad("fixed: only a deployment can set it, in wrangler.toml"),
  );
  const spaces = { rate: `1/1s${" ".repeat(4_096)}` };
  assertAnswer(await service.put("api", spaces), bad("a policy has at most 4096 bytes"));
  assert.equal((await service.put("api", "x".repeat(20_000))).status, 413);
  const cut = await service.send("PUT", "/v1/policies/api", undefined, {
    body: "{",
    headers: { "if-match": "*", "content-type": "application/json" },
  });
  assert.match(cut.body.detail, /^the policy has errors: is not valid JSON: EOF/);
  const plain = await service.send(
    "PUT",
    "/v1/policies/api",
    {},
    { headers: { "if-match": "*", "content-type": "text/plain" } },
  );
  assert.equal(plain.status, 415);
  assert.equal((await service.put("api", "1/1s", { "if-match": "*" }, "?dryrun=true")).status, 400);
  const fixed = 'the policy "firm" has `fixed = true`: change it in wrangler.toml, and deploy';
  assertAnswer(await service.put("firm", "9/1s"), problem(409, "policy-fixed", "Policy fixed", fixed));
  for (const [method, path, allow] of [
    ["POST", "/v1/policies", "GET"],
    ["PATCH", "/v1/policies/api", "GET, PUT, DELETE"],
    ["PUT", "/v1/audit", "GET"],
  ]) {
    const { status, headers } = await service.send(method, path, {});
    assert.deepEqual([status, headers.allow], [405, allow]);
  }
  assert.deepEqual(
    (await service.get("/v1/audit")).body.acts.map(({ act }) => act),
    ["policy.created", "policy.created"],
  );
});

test("needs the scope admin, and a restricted token sees and changes only its policies", async () => {
  const service = await started();
  await service.put("mine", "1/1s", { "if-none-match": "*" });
  const consume = newToken("consume");
  const other = await started({ tokens: { consume: consume.entry } });
  const detail = "policies needs a token with the scope admin; this one has consume";
  const { status, body } = await other.get("/v1/policies", { token: consume.text });
  assert.deepEqual([status, body.detail, body.scope], [403, detail, "admin"]);
  assert.equal((await other.get("/v1/audit", { token: "none" })).status, 401);

  const mine = { token: some.text };
  const names = ({ policies }) => policies.map(({ name }) => name);
  assert.deepEqual(names((await service.get("/v1/policies", mine)).body), ["api", "mine"]);
  assert.equal((await service.get("/v1/policies/firm", mine)).status, 403);
  const put = (name) => service.send("PUT", `/v1/policies/${name}`, "2/1s", { ...mine, headers: { "if-match": "*" } });
  assert.deepEqual([(await put("firm")).status, (await put("mine")).status], [403, 200]);
  const { acts } = (await service.get("/v1/audit", mine)).body;
  assert.deepEqual(
    acts.map(({ by, policy }) => [by.split(" ")[0], policy]),
    [
      ["some", "mine"],
      ["all", "mine"],
      ["deployment", "api"],
    ],
  );
});

test("the audit log says who did what, page by page", async () => {
  const service = await started();
  for (let rate = 1; rate <= 5; rate++) {
    service.wait(1_000);
    const headers = { "if-match": "*" };
    await service.send("PUT", "/v1/policies/api", `${rate}/1s`, { token: admin.text, headers });
  }
  const { acts, next } = (await service.get("/v1/audit?limit=2")).body;
  assert.deepEqual(acts, [
    {
      number: 6,
      at: NOW + 5_000,
      by: "ops",
      act: "policy.replaced",
      policy: "api",
      carry: "additive",
      before: "4/1s",
      after: "5/1s",
    },
    {
      number: 5,
      at: NOW + 4_000,
      by: "ops",
      act: "policy.replaced",
      policy: "api",
      carry: "additive",
      before: "3/1s",
      after: "4/1s",
    },
  ]);
  const rest = (await service.get(`/v1/audit?before=${next}`)).body;
  assert.deepEqual([rest.acts.map(({ number }) => number), rest.next], [[4, 3, 2, 1, 0], null]);
  await service.tollgate.kill();
  await service.tollgate.restart();
  assert.deepEqual((await service.get("/v1/audit?limit=2")).body.acts, acts, "kept");
});

test("a service without a registry says so, and answers as always", async () => {
  const service = await started({ registry: false });
  const detail =
    "this deployment has no registry of policies: add the binding REGISTRY, with the class PolicyRegistry, to its configuration";
  for (const path of ["/v1/policies", "/v1/policies/api", "/v1/audit"])
    assertAnswer(await service.get(path), problem(404, "not-found", "Not found", detail));
  const { status, body } = await service.consume("api", "alice");
  assert.deepEqual([status, "stale_policies" in body], [200, false]);
});

test("in another isolate a change takes effect within ten seconds, in the background", async () => {
  const service = await started({ other: { policies: POLICIES, build: "test-clock" } });
  const other = { headers: { "x-version": "other" } };
  let key = 0;
  const limit = async (options) => {
    // A new key each time, whose object knows nothing that the frontend could learn.
    const { status, body } = await service.send("POST", "/v1/peek", { policy: "api", key: `bob ${key++}` }, options);
    assert.deepEqual([status, body.stale_policies], [200, undefined]);
    return body.limit;
  };
  assert.deepEqual([await limit(), await limit(other)], [10, 10]);
  service.wait(1);
  await service.put("api", "7/10s");
  assert.equal(await limit(), 7, "where it was made, at once");
  service.wait(4_998);
  assert.equal(await limit(other), 10);
  service.wait(1); // older than five seconds: it asks, and does not wait
  await limit(other);
  await until(async () => (await limit(other)) === 7);
  // And after a pause the first request waits.
  await service.put("api", "5/10s");
  service.wait(10_001);
  assert.equal(await limit(other), 5);
});

test("an older frontend never takes a bucket back to older numbers", async () => {
  const service = await started({ other: { policies: POLICIES, build: "test-clock" } });
  const other = { headers: { "x-version": "other" } };
  assert.equal((await service.consume("api", "carol", 10, other)).status, 200);
  await service.put("api", "2/10s");
  assert.equal((await service.consume("api", "carol", 1)).status, 429);
  service.wait(4_000);
  // The other isolate still knows 10 per 10s, under which 4 tokens would be back. The object tells it.
  const { status, body } = await service.consume("api", "carol", 1, other);
  assert.deepEqual([status, body.limit, body.remaining], [429, 2, 0]);
});

test("two deployments: the newer applies to both at once, and the older does not revert it", async () => {
  const newer = { api: { rate: 3, period: "10s" }, added: { rate: 1, period: "1s" } };
  const service = await started({ other: { policies: newer, build: "test-clock" } });
  const other = { headers: { "x-version": "other" } };
  const limit = async (options) =>
    (await service.send("POST", "/v1/peek", { policy: "api", key: "dave" }, options)).body.limit;
  assert.equal(await limit(), 10);
  service.wait(60_000);
  assert.equal(await limit(other), 3);
  for (let round = 0; round < 5; round++) {
    service.wait(11_000);
    assert.deepEqual([await limit(), await limit(other)], [3, 3], `round ${round}`);
  }
  const { policies } = (await service.get("/v1/policies")).body;
  assert.deepEqual(
    policies.map(({ name }) => name),
    ["added", "api"],
  );
  // Rolled back: no frontend of the newer one polls for two minutes.
  service.wait(121_000);
  assert.equal(await limit(), 10);
});

test("the registry's rows lost: it starts again from the deployment, with newer versions", async () => {
  const service = await started();
  await service.put("api", "2/10s");
  const { version } = (await service.get("/v1/policies/api")).body;
  await service.tollgate.kill();
  service.tollgate.forget("PolicyRegistry");
  await service.tollgate.restart();
  service.wait(1_000);
  const api = (await service.get("/v1/policies/api")).body;
  assert.deepEqual([api.source, api.lint[0]], ["deployment", lint("api", 10)]);
  assert.ok(api.version > version);
  assert.equal((await service.consume("api", "erin", 10)).status, 200);
});

/** The registry's file. */
const fileOf = ({ tollgate }) => tollgate.databaseFiles().find((path) => path.includes("PolicyRegistry"));

test("unreadable rows of the registry: a policy reverts to the deployment's, only that override is lost", async () => {
  const service = await started();
  const ban = (key) => ({ policy: "api", key, banned: true });
  await service.put("api", "2/10s");
  assert.equal((await service.send("PUT", "/v1/overrides", { overrides: [ban("judy"), ban("karl")] })).status, 200);
  await service.tollgate.kill();
  const file = fileOf(service);
  const [name] = Object.entries(readRows(file)).find(([, row]) => row.includes?.("judy"));
  for (const broken of ["policy:api", name]) writeRow(file, broken, "{");
  await service.tollgate.restart();
  service.wait(1_000);
  const answers = await Promise.all(["judy", "karl", "liam"].map((key) => service.consume("api", key)));
  assert.deepEqual(
    answers.map(({ status, body }) => [status, body.limit, body.banned]),
    [
      [200, 10, undefined],
      [429, 0, true],
      [200, 10, undefined],
    ],
  );
  await service.tollgate.logged(`registry: 2 rows cannot be read: ${name}, policy:api`);
});

test("the registry cannot write: a change is a 503 and changes nothing, and requests go on", async () => {
  const service = await started();
  await service.consume("api", "mary", 0);
  await service.tollgate.kill();
  writable(fileOf(service), "FALSE");
  await service.tollgate.restart();
  const { status, body } = await service.put("api", "2/10s");
  assert.deepEqual([status, body.cause], [503, "failed"]);
  await service.tollgate.logged("the disk is full");
  const ask = () => service.consume("api", "mary", 0);
  assert.deepEqual([(await ask()).status, (await ask()).body.limit], [200, 10]);
  // It also records that a deployment has polled.
  service.wait(60_000);
  await ask();
  await until(async () => (await ask()).body.stale_policies === true);
  assert.equal((await ask()).body.limit, 10);
  await service.tollgate.kill();
  writable(fileOf(service), "TRUE");
  await service.tollgate.restart();
  const api = (await service.get("/v1/policies/api")).body;
  assert.deepEqual([api.source, api.lint[0]], ["deployment", lint("api", 10)]);
  assert.equal((await service.put("api", "2/10s")).status, 200);
});

for (const fault of ["throws", "hangs"]) {
  test(`the registry ${fault}: the last known policies, marked, and no later request waits`, async () => {
    const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
    const service = await started({ around });
    const set = (registry) => ({ headers: { "x-registry": registry } });
    await service.put("api", "7/10s");
    const ask = async (options) => {
      const began = performance.now();
      const answer = await service.consume("api", "frank", 0, options);
      return { ...answer, ms: performance.now() - began };
    };
    assert.deepEqual([(await ask()).body.limit, (await ask()).body.stale_policies], [7, undefined]);
    service.wait(60_000);
    const first = await ask(set(fault));
    assert.deepEqual([first.status, first.body.limit, first.body.stale_policies], [200, 7, true]);
    assert.ok(first.ms < 1_900, `the first waits at most a second: ${first.ms}`);
    await service.tollgate.logged("the registry of policies did not answer");
    for (let round = 0; round < 3; round++) {
      service.wait(4_000);
      const { body, ms } = await ask();
      assert.deepEqual([body.limit, body.stale_policies], [7, true]);
      assert.ok(ms < 900, `no other waits: ${ms}`);
    }
    const refused = await service.consume("api", "frank", 7).then(() => service.consume("api", "frank", 7));
    assert.deepEqual([refused.status, refused.body.stale_policies], [429, true]);
    const requests = [{ policy: "api", key: "grace" }];
    assert.equal((await service.send("POST", "/v1/batch", { requests })).body.stale_policies, true);
    assert.equal((await service.send("POST", "/v1/inspect", requests[0])).body.stale_policies, true);
    // Refusals too: another version of the policies may be the reason.
    for (const [verb, more, kind] of [
      ["consume", { cost: 8 }, "cost-too-large"],
      ["consume", { cost: { tokens: 1 } }, "bad-request"],
      ["consume", { policy: "added" }, "unknown-policy"],
      ["settle", { reservation: "00000000000ff" }, "unknown-reservation"],
    ]) {
      const { body } = await service.send("POST", `/v1/${verb}`, { policy: "api", key: "frank", ...more });
      assert.deepEqual([body.type, body.stale_policies], [`urn:problem-type:tollgate:${kind}`, true]);
    }
    const undecided = await service.consume("api", "judy", 1, { headers: { "x-objects": "throws" } });
    assert.deepEqual([undecided.status, undecided.body.stale_policies], [503, true]);
    const { status, body } = await service.get("/v1/policies");
    assert.deepEqual([status, body.cause], [503, fault === "hangs" ? "timeout" : "failed"]);
    assert.match(body.detail, /^the registry of policies did not answer/);

    service.wait(10_000);
    await ask(set("answers"));
    await until(async () => !("stale_policies" in (await ask()).body));
  });

  test(`the registry ${fault} from the beginning: the policies of the deployment, marked`, async () => {
    const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
    const service = await started({ around });
    const answers = await Promise.all(
      ["a", "b", "c"].map((key) => service.consume("api", key, 1, { headers: { "x-registry": fault } })),
    );
    for (const { status, body } of answers)
      assert.deepEqual([status, body.limit, body.stale_policies], [200, 10, true]);
    await service.tollgate.logged("the registry of policies did not answer");
  });
}

test("a request that the registry rejects fails alone, and rows are not read again", async () => {
  const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
  const service = await started({ around });
  const set = (registry) => ({ headers: { "x-registry": registry } });
  await service.put("api", "7/10s");
  await service.consume("api", "ivan", 0);
  const reads = () => service.tollgate.log.match(/its rows are read/g).length;
  const before = reads();
  for (const [fault, reason] of [
    ["nonsense", "the question of a frontend cannot be read"],
    ["mismatch", "the policies of a frontend do not match their hash"],
  ]) {
    service.wait(11_000);
    const { status, body } = await service.consume("api", "ivan", 0, set(fault));
    assert.deepEqual([status, body.limit, body.stale_policies], [200, 7, true]);
    await service.tollgate.logged(reason);
  }
  service.wait(11_000);
  await service.consume("api", "ivan", 0, set("answers"));
  await until(async () => !("stale_policies" in (await service.consume("api", "ivan", 0)).body));
  assert.equal((await service.get("/v1/policies/api")).body.policy, "7/10s");
  assert.equal(reads(), before);
});

test("what a frontend knows of the registry survives a panic", async () => {
  const around = new URL("faulty-registry.mjs", import.meta.url).pathname;
  const service = await started({ around });
  await service.put("api", "7/10s");
  await service.consume("api", "heidi", 0);
  await service.consume("api", "heidi", 0, { now: "no moment" }); // sets the clock, and panics
  const { status, body } = await service.consume("api", "heidi", 0, { headers: { "x-registry": "throws" } });
  assert.deepEqual([status, body.limit, body.stale_policies], [200, 7, true]);
});

/** Waits for background work. */
async function until(isSo) {
  for (let tries = 0; !(await isSo()); tries++) {
    assert.ok(tries < 200, "it has not happened");
    await new Promise((done) => setTimeout(done, 10));
  }
}
