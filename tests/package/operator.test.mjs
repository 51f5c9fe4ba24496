// `npx tollgate policies`, `inspect`, `explain`, `reset`, `credit`, `block`, `overrides` and `audit`, of the real service.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { newToken } from "../http/credentials.mjs";
import { command, folder, NOW, operated } from "./operated.mjs";
import { root } from "./stranger.mjs";

const POLICIES = {
  api: { refusal_cache: "1s", rate: 100, period: "1m", capacity: 200, max_debt: 50, write_ahead: 0 },
  llm: {
    refusal_cache: "1s",
    limits: [
      { name: "requests", rate: 60, period: "1m", write_ahead: 0 },
      { name: "tokens", kind: "fixed_window", rate: 100_000, period: "1day", offset: "0s", write_ahead: 0 },
    ],
  },
  firm: { rate: 1, period: "1s", fixed: true, write_ahead: 0, refusal_cache: "1s" },
};

/** Writes policies into a file of this name, which is returned. */
function written(name, policies) {
  writeFileSync(join(folder, name), typeof policies === "string" ? policies : JSON.stringify(policies));
  return name;
}

const versions = async (service) => {
  const { body } = await service.ask("GET", "/v1/policies");
  return Object.fromEntries(body.policies.map(({ name, version }) => [name, version]));
};

const isChange = ({ method, path }) => method === "PUT" && path.includes("dry_run=false");

test("policies list shows each with its version, in the words of the service", async () => {
  const service = await operated({ policies: POLICIES });
  const { code, stdout, stderr } = await service.run(["policies", "list"]);
  const since = "since 2026-11-20T22:39:36.930+00:00";
  assert.deepEqual([code, stderr], [0, ""]);
  const { policies } = (await service.ask("GET", "/v1/policies")).body;
  const words = Object.fromEntries(policies.map(({ name, lint }) => [name, lint[0].slice(name.length + 2)]));
  assert.equal(
    stdout,
    `api   deployment         ${since}  ${words.api}
firm  deployment, fixed  ${since}  token bucket, 1 per 1s, at most 1 at once and 2 within any 1s
llm   deployment         ${since}  ${words.llm}
`,
  );
  const { text } = await service.ask("GET", "/v1/policies");
  assert.deepEqual(await service.run(["policies", "list", "--json"]), { code: 0, stdout: text, stderr: "" });
  const east = await service.run(["policies", "list"], { env: { TZ: "Asia/Kolkata" } });
  assert.match(east.stdout, /since 2026-11-21T04:09:36\.930\+05:30 /);
});

test("policies diff says whether they are the same, in meaning and not in spelling", async () => {
  const service = await operated({ policies: POLICIES });
  const same = {
    ...POLICIES,
    api: { rate: "100/1m burst 200", max_debt: 50, write_ahead: 0, mode: "enforce", on_error: "closed" },
    firm: { write_ahead: 0, refusal_cache: "1s", fixed: true, period: "1s", rate: 1 },
  };
  const before = await versions(service);
  for (const policies of [POLICIES, same])
    assert.deepEqual(await service.run(["policies", "diff", written("same.json", policies)]), {
      code: 0,
      stdout: "0 new, 0 changed, 3 same\n",
      stderr: "",
    });
  const { llm, ...others } = POLICIES;
  const other = written("other.json", { ...others, api: { ...POLICIES.api, rate: 50 }, trial: "5/1m" });
  const answer = await service.ask("PUT", "/v1/policies/api?dry_run=true", { ...POLICIES.api, rate: 50 }, MATCH);
  const { code, stdout, stderr } = await service.run(["policies", "diff", other]);
  assert.deepEqual([code, stderr], [1, ""]);
  assert.equal(
    stdout,
    `changed api
${answer.body.changes.map((line) => `  ${line}\n`).join("")}new trial
  new: trial: token bucket, 5 per 1m, at most 5 at once and 10 within any 1m
  every key of trial starts with a new bucket
  for every key of trial, at the latest ten seconds from then
1 new, 1 changed, 1 same; only in the service, which is left alone: llm
`,
  );
  const json = await service.run(["policies", "diff", other, "--json"]);
  const { differ, policies, only_in_service } = JSON.parse(json.stdout);
  assert.deepEqual([json.code, differ, only_in_service], [1, true, ["llm"]]);
  assert.deepEqual(policies[0], { name: "api", outcome: "changed", answer: answer.body });
  assert.deepEqual(
    policies.slice(1).map(({ name, outcome }) => [name, outcome]),
    [
      ["firm", "same"],
      ["trial", "new"],
    ],
  );
  assert.deepEqual(await versions(service), before);
  const missing = await service.run(["policies", "diff", written("fewer.json", others)]);
  assert.deepEqual(
    [missing.code, missing.stdout],
    [1, "0 new, 0 changed, 2 same; only in the service, which is left alone: llm\n"],
  );
});

const MATCH = { "if-match": "*" };

test("every field of a policy makes a difference, and every spelling of the same makes none", async () => {
  const bucket = { rate: 100, period: "1m", capacity: 200 };
  const window = { kind: "fixed_window", rate: 10, period: "1day", offset: "6h" };
  const two = (tokens) => ({
    limits: [
      { name: "requests", rate: "60/1m" },
      { name: "tokens", rate: "9/1h", ...tokens },
    ],
  });
  const rows = [
    [bucket, { rate: 99 }, { period: "2m" }, { capacity: 201 }, { max_debt: 1 }, { initial: 5 }, { write_ahead: 3 }],
    [bucket, { kind: "fixed_window" }, { mode: "shadow" }, { mode: "off" }, { on_error: "open" }],
    [bucket, { on_error: ["timeout"] }, { reservation_ttl: "1m" }, { unsettled: "refund" }, { ipv6_prefix: 56 }],
    [bucket, { refusal_cache: "0s" }, { show_key_prefix: 3 }, { notify: ["refused"] }],
    [window, { offset: "7h" }, { rate: 11 }, { capacity: 12 }, { initial: 1 }, { write_ahead: 3 }, { max_debt: 1 }],
    [two(), two({ mode: "shadow" }), two({ name: "words" }), two({ rate: "9/2h" }), two({ write_ahead: 1 })],
  ];
  const spellings = [
    [bucket, "100/1m burst 200", { rate: "100/60s", capacity: 200 }, { ...bucket, max_debt: 0 }],
    [bucket, { ...bucket, ipv6_prefix: 64, unsettled: "keep", reservation_ttl: "600s", on_error: "closed" }],
    [window, { ...window, offset: "360m", capacity: 10 }, { ...window, period: "24h" }],
    [
      two(),
      {
        limits: [
          { period: "1m", name: "requests", rate: 60 },
          { rate: 9, period: "60m", name: "tokens" },
        ],
      },
    ],
  ];
  const cases = [
    ...rows.flatMap(([base, ...changes]) => changes.map((change) => [base, { ...base, ...change }, "changed"])),
    ...spellings.flatMap(([base, ...others]) => others.map((other) => [base, other, "same"])),
  ];
  const names = cases.map((_, i) => `p${i}`);
  // The service of the tests adds `write_ahead` to those of a deployment; these are created as they are.
  const service = await operated({ policies: { none: "1/s" } });
  const file = (column) => written("each.json", Object.fromEntries(names.map((name, i) => [name, cases[i][column]])));
  assert.equal((await service.run(["policies", "apply", file(0)])).code, 0);
  const { code, stdout, stderr } = await service.run(["policies", "diff", file(1), "--json"]);
  assert.deepEqual([code, stderr], [1, ""]);
  for (const [i, { outcome }] of JSON.parse(stdout).policies.entries())
    assert.equal(outcome, cases[i][2], JSON.stringify(cases[i]));
});

test("a dry run says what the service says of it, and changes nothing", async () => {
  const service = await operated({ policies: POLICIES });
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice", cost: 150 });
  const before = [(await service.ask("GET", "/v1/policies")).text, (await service.ask("GET", "/v1/audit")).text];
  const file = written("dry.json", { api: "20/1m", trial: "5/1m" });
  for (const carry of [[], ["--carry", "proportional"]]) {
    const query = carry.length > 0 ? "&carry=proportional" : "";
    const { body } = await service.ask("PUT", `/v1/policies/api?dry_run=true${query}`, "20/1m", MATCH);
    const { code, stdout, stderr } = await service.run(["policies", "apply", file, "--dry-run", ...carry]);
    assert.deepEqual([code, stderr], [0, ""]);
    assert.ok(
      stdout.startsWith(`changed api\n${body.changes.map((line) => `  ${line}\n`).join("")}new trial\n`),
      stdout,
    );
    assert.match(stdout, /^1 new, 1 changed, 0 same; .*: firm, llm\. Nothing was changed$/m);
    const json = await service.run(["policies", "apply", file, "--dry-run", "--json", ...carry]);
    const { dry_run, policies } = JSON.parse(json.stdout);
    assert.deepEqual([json.code, dry_run, policies[0].answer], [0, true, body]);
  }
  assert.ok(!service.sent.some(isChange));
  const after = [(await service.ask("GET", "/v1/policies")).text, (await service.ask("GET", "/v1/audit")).text];
  assert.deepEqual(after, before);
});

test("apply creates and replaces, each from the version that was read, leaves others alone, and changes nothing the second time", async () => {
  const service = await operated({ policies: POLICIES });
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice", cost: 100 });
  const before = await versions(service);
  const file = written("apply.json", { api: "20/1m", trial: "5/1m", firm: POLICIES.firm });
  service.now += 1_000;
  const { code, stdout, stderr } = await service.run(["policies", "apply", file, "--carry", "proportional"]);
  assert.deepEqual([code, stderr], [0, ""]);
  assert.match(stdout, /^changed api\n {2}before: .*\n {2}after: .*\n(?: {2}.*\n)*new trial\n {2}new: .*\n/);
  assert.match(stdout, /^1 new, 1 changed, 1 same; only in the service, which is left alone: llm$/m);
  assert.deepEqual(
    service.sent.filter(isChange).map(({ path, headers }) => [path, headers["if-match"], headers["if-none-match"]]),
    [
      ["/v1/policies/api?dry_run=false&carry=proportional", `"${before.api}"`, undefined],
      ["/v1/policies/trial?dry_run=false&carry=proportional", undefined, "*"],
    ],
  );
  const { remaining } = (await service.ask("POST", "/v1/peek", { policy: "api", key: "alice" })).body;
  assert.equal(remaining, 10, "a half, as before");
  const [acts, changed] = [(await service.ask("GET", "/v1/audit")).text, await versions(service)];
  assert.deepEqual([changed.llm, changed.firm], [before.llm, before.firm]);
  const again = {
    code: 0,
    stdout: "0 new, 0 changed, 3 same; only in the service, which is left alone: llm\n",
    stderr: "",
  };
  assert.deepEqual(await service.run(["policies", "apply", file, "--carry", "reset"]), again);
  assert.equal(service.sent.filter(isChange).length, 2);
  assert.deepEqual([(await service.ask("GET", "/v1/audit")).text, await versions(service)], [acts, changed]);
});

test("apply sends nothing if the service would refuse one of them, and says every reason", async () => {
  const service = await operated({ policies: POLICIES });
  const before = await versions(service);
  const wrong = { api: "20/1m", firm: "9/s", llm: { rate: 5 }, "a b": "1/s", free: { rate: "1/s", fixed: true } };
  const file = written("wrong-policies.json", wrong);
  const reasons = `tollgate: firm: Policy fixed (409): the policy "firm" has \`fixed = true\`: change it in wrangler.toml, and deploy
tollgate: llm: Bad request (400): the policy has errors: period: is missing
tollgate: a b: Bad request (400): the policy has errors: "a%20b": a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'
tollgate: free: Bad request (400): fixed: only a deployment can set it, in wrangler.toml
`;
  for (const more of [[], ["--dry-run"]])
    assert.deepEqual(await service.run(["policies", "apply", file, ...more]), {
      code: 1,
      stdout: "",
      stderr: `${reasons}tollgate: nothing was changed\n`,
    });
  const json = await service.run(["policies", "apply", file, "--json"]);
  assert.deepEqual(
    JSON.parse(json.stdout).policies.map(({ outcome, problem }) => [outcome, problem?.status]),
    [
      ["changed", undefined],
      ["refused", 409],
      ["refused", 400],
      ["refused", 400],
      ["refused", 400],
    ],
  );
  const diff = await service.run(["policies", "diff", file]);
  assert.deepEqual([diff.code, diff.stderr], [2, reasons], "it cannot be told");
  assert.equal(JSON.parse((await service.run(["policies", "diff", file, "--json"])).stdout).differ, null);
  assert.ok(!service.sent.some(isChange));
  assert.deepEqual(await versions(service), before);
});

test("a change by somebody else in the meantime is an error, and is not overwritten", async () => {
  const file = written("conflict.json", { api: "20/1m", llm: "30/1m", trial: "5/1m" });
  for (const more of [[], ["--json"]]) {
    const service = await operated({ policies: POLICIES });
    service.before = async (request) => {
      if (isChange(request) && request.path.startsWith("/v1/policies/llm"))
        await service.ask("PUT", "/v1/policies/llm", "77/1m", MATCH);
    };
    const { code, stdout, stderr } = await service.run(["policies", "apply", file, ...more]);
    const { llm } = await versions(service);
    assert.deepEqual(
      [code, stderr],
      [
        1,
        `tollgate: llm: Precondition failed (412): nothing was changed: the policy "llm" has the version ${llm}; done: api; not sent: trial; ` +
          "somebody has changed it since it was read: look at it (npx tollgate policies diff conflict.json), then apply again\n",
      ],
    );
    const { policies } = (await service.ask("GET", "/v1/policies")).body;
    assert.deepEqual(
      policies.map(({ name, policy }) => [name, policy]),
      [
        ["api", "20/1m"],
        ["firm", POLICIES.firm],
        ["llm", "77/1m"],
      ],
    );
    if (more.length === 0) assert.match(stdout, /^changed api\n(?: {2}.*\n)+$/);
    else
      assert.deepEqual(
        JSON.parse(stdout).policies.map(({ name, outcome, answer, problem }) => [
          name,
          outcome,
          answer?.dry_run,
          problem?.status,
        ]),
        [
          ["api", "changed", false, undefined],
          ["llm", "failed", undefined, 412],
          ["trial", "not_sent", undefined, undefined],
        ],
      );
  }
});

test("the service gone half way: what was done is said, and the same command goes on from there", async () => {
  const service = await operated({ policies: POLICIES });
  const file = written("gone.json", { api: "20/1m", llm: "30/1m", trial: "5/1m" });
  service.before = async (request) => {
    if (isChange(request) && request.path.startsWith("/v1/policies/llm")) await service.tollgate.kill();
  };
  const { code, stdout, stderr } = await service.run(["policies", "apply", file]);
  assert.equal(code, 2);
  assert.match(stdout, /^changed api\n(?: {2}.*\n)+$/);
  assert.match(
    stderr,
    /^tollgate: llm: no answer from http:\/\/127\.0\.0\.1:\d+: .+; it may have been carried out; done: api; not sent: trial; apply again to go on: what is done stays as it is\n$/,
  );
  service.before = undefined;
  await service.tollgate.restart();
  const again = await service.run(["policies", "apply", file]);
  assert.equal(again.code, 0);
  assert.match(again.stdout, /^1 new, 1 changed, 1 same; /m);
  assert.equal((await service.run(["policies", "apply", file])).stdout.split(";")[0], "0 new, 0 changed, 3 same");
});

test("the service gone while it compares: nothing was changed, and it cannot be told", async () => {
  const service = await operated({ policies: POLICIES });
  const file = written("gone-early.json", { api: "20/1m", trial: "5/1m" });
  service.before = async ({ path }) => {
    if (path.startsWith("/v1/policies/trial")) await service.tollgate.kill();
  };
  for (const name of ["diff", "apply"]) {
    await service.tollgate.kill();
    await service.tollgate.restart();
    const { code, stdout, stderr } = await service.run(["policies", name, file]);
    assert.deepEqual([code, stdout], [2, ""]);
    assert.match(stderr, /^tollgate: no answer from http:\/\/127\.0\.0\.1:\d+: [^;\n]+\n$/);
  }
});

test("policies of an environment of Wrangler", async () => {
  const service = await operated({ policies: POLICIES });
  const file = written(
    "staged.toml",
    `name = "limits"
[env.staging.vars.POLICIES]
api = "20/s"
[env.eu.vars.POLICIES.api]
rate = 2.5
period = "1s"
`,
  );
  const { code, stdout } = await service.run(["policies", "diff", file, "--env", "eu"]);
  assert.equal(code, 1);
  assert.match(stdout, /after: api: token bucket, 5 per 2s, /);
  for (const [args, message] of [
    [[], "staged.toml has no policies outside of environments: there are those of --env staging, --env eu"],
    [["--env", "us"], "staged.toml has no policies for the environment us: there are those of --env staging, --env eu"],
  ])
    assert.deepEqual(await service.run(["policies", "apply", file, ...args]), {
      code: 2,
      stdout: "",
      stderr: `tollgate: ${message}\n`,
    });
  const plain = await service.run(["policies", "diff", written("plain.json", { api: "1/s" }), "--env", "eu"]);
  assert.match(plain.stderr, /plain\.json has no policies for the environment eu: leave --env out\n$/);
});

test("inspect and explain say how a key stands, and why", async () => {
  const service = await operated({ policies: POLICIES });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("consume", { policy: "api", key: "alice", cost: 199 });
  await ask("consume", { policy: "api", key: "alice", cost: 5 });
  await ask("charge", { policy: "api", key: "alice", cost: 21 });
  const cost = { requests: 1, tokens: 50_000 };
  const { body } = await ask("consume", { policy: "llm", key: "alice", cost, mode: "reserve" });
  const { object } = (await ask("keys/inspect", { key: "alice" })).body;
  const { code, stdout, stderr } = await service.run(["inspect", "alice"]);
  assert.deepEqual([code, stderr], [0, ""]);
  assert.equal(
    stdout,
    `object ${object} at 2026-11-20T22:39:36.930+00:00

buckets
  api           owes 20 tokens                 100 per 1m, at most 200, debt at most 50       full in 2m 12s, 2026-11-20T22:41:48.930+00:00
  llm/requests  59 of 60 tokens left           60 per 1m, at most 60                          full in 1s, 2026-11-20T22:39:37.930+00:00
  llm/tokens    50 000 of 100 000 tokens left  100 000 in each window of 1d, at most 100 000  full in 1h 20m, 2026-11-21T00:00:00.000+00:00

reservations
  ${body.reservation}  llm/requests 1, llm/tokens 50 000  opened 2026-11-20T22:39:36.930+00:00  expires 2026-11-20T22:49:36.930+00:00, then keep

held for batches: none

latest decisions
  2026-11-20T22:39:36.930+00:00  reserve  llm  50 000  allowed
  2026-11-20T22:39:36.930+00:00  charge   api  21      allowed
  2026-11-20T22:39:36.930+00:00  consume  api  5       refused by api, until 2026-11-20T22:39:39.330+00:00
  2026-11-20T22:39:36.930+00:00  consume  api  199     allowed
`,
  );
  for (const [args, verb, asked] of [
    [["inspect", "alice"], "inspect", { key: "alice" }],
    [["explain", "alice", "--policy", "api"], "explain", { policy: "api", key: "alice" }],
    [
      ["explain", "alice", "--policy", "llm", "--cost", `{"requests":2,"tokens":60000}`],
      "explain",
      { policy: "llm", key: "alice", cost: { requests: 2, tokens: 60_000 } },
    ],
    [
      ["explain", "--key-json", `["t","u"]`, "--policy", "api", "--cost", "5"],
      "explain",
      { policy: "api", key: ["t", "u"], cost: 5 },
    ],
    [["inspect", "--key-json", `{"ip":"192.0.2.1"}`], "inspect", { key: { ip: "192.0.2.1" } }],
  ]) {
    const { text, body } = await ask(`keys/${verb}`, asked);
    assert.deepEqual(await service.run([...args, "--json"]), { code: 0, stdout: text, stderr: "" });
    if (verb === "explain")
      assert.deepEqual(await service.run(args), { code: 0, stdout: `${body.explanation}\n`, stderr: "" });
  }
});

test("reset, credit and block say what there was before and after", async () => {
  const service = await operated({ policies: POLICIES });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("charge", { policy: "api", key: "alice", cost: 220 });
  await ask("consume", { policy: "llm", key: "alice", cost: { requests: 1, tokens: 99_000 } });
  const at = "at 2026-11-20T22:39:36.930+00:00";
  for (const [args, stdout] of [
    [
      ["credit", "alice", "--policy", "api", "--cost", "21"],
      `gave tokens of api to "alice" ${at}\n  api  owes 20 tokens  ->  1 token\n`,
    ],
    [["credit", "alice", "--policy", "api"], `gave tokens of api to "alice" ${at}\n  api  1 token  ->  2 tokens\n`],
    [
      ["credit", "alice", "--policy", "llm", "--cost", `{"requests":0,"tokens":500}`],
      `gave tokens of llm to "alice" ${at}\n  llm/requests  59 tokens     ->  59 tokens\n  llm/tokens    1 000 tokens  ->  1 500 tokens\n`,
    ],
    [["reset", "alice", "--policy", "api"], `reset api of "alice" ${at}\n  api  2 tokens  ->  200 tokens\n`],
    [
      ["block", "alice", "--policy", "api", "--for", "90s"],
      `blocked "alice" from api for 1m 30s
  before  no override
  after   an override that bans it; npx tollgate explain says until when
  1 key or prefix: under an override; time before the change counts as the policy says
  tokens stay as they are, up to the new capacity; at the latest ten seconds from then
`,
    ],
    [
      ["block", "alice", "--policy", "api", "--for", "10s"],
      `blocked "alice" from api for 10s
  before  another override, which npx tollgate audit shows
  after   an override that bans it; npx tollgate explain says until when
  1 key or prefix: under another override; time before the change counts as the one before says
  tokens stay as they are, up to the new capacity; at the latest ten seconds from then
`,
    ],
  ])
    assert.deepEqual(await service.run(args), { code: 0, stdout, stderr: "" });
  const refused = await ask("consume", { policy: "api", key: "alice" });
  assert.deepEqual([refused.status, refused.body.banned], [429, true]);
  service.now += 10_000;
  assert.equal((await ask("consume", { policy: "api", key: "alice" })).status, 200);
  for (const [args, member] of [
    [["reset", "bob", "--policy", "api"], "after"],
    [["credit", "bob", "--policy", "api"], "after"],
    [["block", "bob", "--policy", "api", "--for", "366d"], "created"],
  ]) {
    const { code, stdout } = await service.run([...args, "--json"]);
    assert.equal(code, 0);
    assert.ok(member in JSON.parse(stdout) && stdout.indexOf("\n") === stdout.length - 1, stdout);
  }
});

test("without a registry an act is done, and it says that the audit log has no line of it", async () => {
  const service = await operated({ policies: POLICIES, registry: false });
  const { code, stdout } = await service.run(["reset", "alice", "--policy", "api"]);
  assert.equal(code, 0);
  assert.match(
    stdout,
    /\n {2}the audit log has no line of it, for the registry did not answer; the service's own log has one\n$/,
  );
  const listed = await service.run(["policies", "list"]);
  assert.deepEqual([listed.code, listed.stdout], [1, ""]);
  assert.match(
    listed.stderr,
    /^tollgate: Not found \(404\): this deployment has no registry of policies: add the binding REGISTRY/,
  );
});

test("while the registry does not answer, that is said beside what is answered", async () => {
  const around = new URL("../http/faulty-registry.mjs", import.meta.url).pathname;
  const service = await operated({ policies: POLICIES, around });
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice" });
  service.now += 60_000;
  await service.ask("POST", "/v1/consume", { policy: "api", key: "alice" }, { "x-registry": "throws" });
  const explained = await service.run(["explain", "alice", "--policy", "api"]);
  assert.equal(explained.code, 0);
  assert.match(explained.stdout, /^Allowed: /);
  assert.equal(explained.stderr, "tollgate: its policies may be out of date, for their registry does not answer\n");
  const listed = await service.run(["policies", "list"]);
  assert.deepEqual([listed.code, listed.stdout], [1, ""]);
  assert.match(listed.stderr, /^tollgate: Unavailable \(503\): the registry of policies did not answer/);
});

test("a key is a text as it is, and cannot speak to the terminal", async () => {
  const service = await operated({ policies: POLICIES });
  const wild = "\u001b[31mroot\u202e\n--help";
  for (const [args, key, shown] of [
    [["[1]"], "[1]", '"[1]"'],
    [["--", "--help"], "--help", '"--help"'],
    [[wild], wild, String.raw`"\u001b[31mroot\u{202e}\n--help"`],
    [["--key-json", `["a","b"]`], ["a", "b"], '["a","b"]'],
    [["--key-json", `"-x"`], "-x", '"-x"'],
  ]) {
    await service.ask("POST", "/v1/consume", { policy: "api", key, cost: 3 });
    const { code, stdout, stderr } = await service.run(["reset", "--policy", "api", ...args]);
    assert.deepEqual([code, stderr], [0, ""]);
    assert.equal(stdout.split("\n")[0], `reset api of ${shown} at 2026-11-20T22:39:36.930+00:00`);
    assert.match(stdout, /197 tokens {2}-> {2}200 tokens/);
  }
  await service.run(["block", wild, "--policy", "api", "--for", "1h"]);
  const { stdout } = await service.run(["overrides", "list"]);
  assert.ok(stdout.startsWith(String.raw`api  key "\u001b[31mroot\u{202e}\n--help"  blocked  until `), stdout);
});

test("an override is removed, of a key or of a prefix, and only that one", async () => {
  const service = await operated({ policies: POLICIES });
  const overrides = [
    { policy: "api", key: "alice", banned: true },
    { policy: "api", key: ["t", "u"], multiple: 2 },
    { policy: "api", prefix: "alice", multiple: 3 },
    { policy: "llm", key: "alice", unlimited: true },
  ];
  await service.ask("PUT", "/v1/overrides", { overrides });
  const left = async () => (await service.ask("GET", "/v1/overrides")).body.overrides.length;
  for (const [args, line, rest] of [
    [["alice", "--policy", "api"], 'removed the override of the key "alice" under api', 3],
    [["alice", "--policy", "api"], 'there is no override of the key "alice" under api', 3],
    [["--prefix", "alice", "--policy", "api"], 'removed the override of the prefix "alice" under api', 2],
    [["--key-json", '["t","u"]', "--policy", "api"], 'removed the override of the key ["t","u"] under api', 1],
  ]) {
    const { code, stdout, stderr } = await service.run(["overrides", "remove", ...args]);
    assert.deepEqual([code, stdout.split("\n")[0], stderr, await left()], [0, line, "", rest]);
  }
  const { stdout } = await service.run(["overrides", "remove", "alice", "--policy", "llm", "--json"]);
  assert.equal(JSON.parse(stdout).removed, 1);
});

test("overrides list and audit read page after page, and print the answers as they came", async () => {
  const service = await operated({ policies: POLICIES });
  const overrides = Array.from({ length: 1_200 }, (_, i) => ({ policy: "api", key: `key ${i}`, multiple: i + 1 }));
  await service.ask("PUT", "/v1/overrides", { overrides });
  const others = [
    { policy: "llm", prefix: "trial:", unlimited: true, until: Number.MAX_SAFE_INTEGER },
    { policy: "llm", key: { ip: "192.0.2.1" }, banned: true, until: NOW + 60_000 },
    { policy: "llm", key: ["t", "u"], limits: [{ name: "requests", rate: "1/s" }] },
  ];
  await service.ask("PUT", "/v1/overrides", { overrides: others });
  const rows = (await service.run(["overrides", "list"])).stdout.split("\n").filter(Boolean);
  assert.equal(rows.length, 1_203);
  assert.ok(rows.some((row) => /^api {2}key "key 1199" +1200 times the policy +for good +since 2026-/.test(row)));
  const { as_of } = (await service.ask("GET", "/v1/overrides?limit=1")).body; // no two changes have the same moment
  const since = `since ${new Date(as_of).toISOString().replace("Z", "+00:00")}`;
  const some = (await service.run(["overrides", "list", "--policy", "llm"])).stdout.split("\n").filter(Boolean);
  assert.deepEqual(some.map((row) => row.replaceAll(/ {2,}/g, "  ")).sort(), [
    `llm  key ["t","u"]  {"limits":[{"name":"requests","rate":"1/s"}]}  for good  ${since}`,
    `llm  key {"ip":"192.0.2.1"}  blocked  until 2026-11-20T22:40:36.930+00:00  ${since}`,
    `llm  prefix "trial:"  without limits  until 9 007 199 254 740 991 ms after 1970  ${since}`,
  ]);
  const first = await service.ask("GET", "/v1/overrides");
  const second = await service.ask("GET", `/v1/overrides?after=${first.body.next}`);
  const json = await service.run(["overrides", "list", "--json"]);
  assert.deepEqual([json.code, json.stdout], [0, first.text + second.text]);

  for (let cost = 1; cost <= 130; cost++)
    await service.ask("POST", "/v1/keys/credit", { policy: "api", key: "a", cost });
  const acts = (await service.run(["audit"])).stdout.split("\n").filter(Boolean);
  assert.equal(acts.length, 3 * 20);
  const { object } = (await service.ask("POST", "/v1/keys/inspect", { key: "a" })).body;
  assert.deepEqual(acts.slice(0, 3), [
    `2026-11-20T22:39:36.930+00:00  ops  key.credited  api  key ${object}`,
    "  before  api 200 tokens",
    "  after   api 200 tokens",
  ]);
  const pages = (await service.run(["audit", "--limit", "120", "--json"])).stdout;
  const latest = await service.ask("GET", "/v1/audit?limit=100");
  const earlier = await service.ask("GET", `/v1/audit?limit=20&before=${latest.body.next}`);
  assert.equal(pages, latest.text + earlier.text);
  const all = (await service.run(["audit", "--limit", "1000"])).stdout;
  assert.match(
    all,
    /deployment [0-9a-f]{16} +policy\.created +api *\n {2}before {2}nothing\n {2}after {3}\{.*"rate":100,/,
  );
});

test("long work says on stderr how far it is", async () => {
  const service = await operated({ policies: POLICIES });
  const file = written("long.json", { api: "20/1m", llm: "30/1m", trial: "5/1m" });
  const overrides = Array.from({ length: 1_001 }, (_, i) => ({ policy: "api", key: `key ${i}`, multiple: 2 }));
  await service.ask("PUT", "/v1/overrides", { overrides });
  for (const [args, isSlow, line] of [
    [["policies", "apply", file], ({ path }) => path === "/v1/policies/llm?dry_run=true", "compared 1 of 3 policies"],
    [["policies", "apply", file], ({ path }) => path === "/v1/policies/trial?dry_run=false", "changed 1 of 2 policies"],
    [["overrides", "list"], ({ path }) => path.includes("after="), "read 1 000 overrides"],
  ]) {
    const said = Promise.withResolvers();
    service.before = (request) => (isSlow(request) ? said.promise : undefined);
    if (line.startsWith("changed")) await service.ask("DELETE", "/v1/policies/trial", undefined, MATCH);
    if (line.startsWith("changed")) await service.ask("PUT", "/v1/policies/api", "1/s", MATCH);
    const heard = (stderr) => stderr.includes(line) && said.resolve();
    const { code, stderr } = await service.run(args, { heard });
    assert.equal(code, 0);
    assert.ok(stderr.startsWith(`tollgate: ${line}\n`), stderr);
  }
});

test("what is wrong is said on one line, with what would be right, and the exit code says whose no it is", async () => {
  const [consumer, narrow] = [newToken("consume"), newToken("admin")];
  narrow.entry.policies = ["api"];
  const service = await operated({ policies: POLICIES, tokens: { app: consumer.entry, some: narrow.entry } });
  const stranger = createServer((request, response) => {
    if (request.url.startsWith("/away")) response.writeHead(302, { location: service.url });
    if (request.url.startsWith("/broken")) response.writeHead(502);
    response.end(request.url.startsWith("/text") ? "hello" : "{}");
  });
  await new Promise((done) => stranger.listen(0, "127.0.0.1", done));
  after(() => stranger.close());
  const elsewhere = `http://127.0.0.1:${stranger.address().port}`;
  const closed = createServer();
  await new Promise((done) => closed.listen(0, "127.0.0.1", done));
  const { port } = closed.address();
  await new Promise((done) => closed.close(done));
  const list = ["policies", "list"];
  const secret = "tg_a-secret-in-the-wrong-place";
  for (const [args, env, code, message] of [
    [
      list,
      { TOLLGATE_TOKEN: secret },
      1,
      `Unauthorized (401): send a valid token, or a grant that has not expired, as \`Authorization: Bearer <token>\`; TOLLGATE_TOKEN is not a token of ${service.url}`,
    ],
    [
      list,
      { TOLLGATE_TOKEN: consumer.text },
      1,
      "Forbidden (403): policies needs a token with the scope admin; this one has consume; TOLLGATE_TOKEN must have it: npx tollgate token ops --scopes admin",
    ],
    [["reset", "a", "--policy", "llm"], { TOLLGATE_TOKEN: narrow.text }, 1, /^Forbidden \(403\): .*api/],
    [
      ["reset", "a", "--policy", "apo"],
      {},
      1,
      'Unknown policy (404): there is no policy "apo"; there are api, firm, llm',
    ],
    [
      ["block", "a", "--policy", "apo", "--for", "1h"],
      {},
      1,
      'Bad request (400): nothing was changed: overrides[0].policy: there is no policy "apo"; npx tollgate policies list shows those that there are',
    ],
    [["explain", "a", "--policy", "api", "--cost", `{"a":1}`], {}, 1, /^Bad request \(400\): /],
    [["inspect", "--key-json", "[1]"], {}, 1, /^Bad request \(400\): /],
    [["inspect", ""], {}, 1, /^Bad request \(400\): `key` /],
    [
      ["block", "a", "--policy", "api", "--for", "367d"],
      {},
      1,
      /^Bad request \(400\): `for_ms` must be from \d+ to 31622400000, not 31708800000$/,
    ],
    [["audit", "--limit", "0"], {}, 2, '--limit is how many acts, 1 or more, not "0"'],
    [
      list,
      { TOLLGATE_URL: "" },
      2,
      "TOLLGATE_URL is not in the environment: the service, such as https://limits.example.com",
    ],
    [
      list,
      { TOLLGATE_TOKEN: "" },
      2,
      "TOLLGATE_TOKEN is not in the environment: a token of the service with the scope admin",
    ],
    [list, { TOLLGATE_URL: secret }, 2, "TOLLGATE_URL is not an address such as https://limits.example.com"],
    [
      list,
      { TOLLGATE_TOKEN: `${secret}\nmore` },
      2,
      "TOLLGATE_TOKEN has characters that no token has, such as spaces or line breaks",
    ],
    [
      list,
      { TOLLGATE_URL: "http://limits.example.com" },
      2,
      "TOLLGATE_URL must begin with https:, or the token would travel in clear; http: is for this machine",
    ],
    [list, { TOLLGATE_URL: "http://localhost.example.com" }, 2, /must begin with https:/],
    [
      list,
      { TOLLGATE_URL: `https://me:${secret}@limits.example.com` },
      2,
      "TOLLGATE_URL is an address alone, without a user, a password, a query or a fragment",
    ],
    [
      list,
      { TOLLGATE_URL: `http://127.0.0.1:${port}/` },
      2,
      /^no answer from http:\/\/127\.0\.0\.1:\d+: connect ECONNREFUSED/,
    ],
    [
      ["reset", "a", "--policy", "api"],
      { TOLLGATE_URL: `http://127.0.0.1:${port}` },
      2,
      /ECONNREFUSED.*; it may have been carried out$/,
    ],
    [list, { TOLLGATE_URL: `${elsewhere}/away` }, 2, /^no answer from .*: unexpected redirect$/],
    ...["", "/text", "/broken"].map((path) => [
      list,
      { TOLLGATE_URL: `${elsewhere}${path}` },
      2,
      new RegExp(`answers ${path === "/broken" ? 502 : 200}, but not as Tollgate does: is TOLLGATE_URL right\\?$`),
    ]),
    [["audit"], { TOLLGATE_URL: elsewhere }, 2, /but not as Tollgate does/],
    [
      ["policies"],
      {},
      2,
      "policies needs a word more: npx tollgate policies list, npx tollgate policies diff, npx tollgate policies apply",
    ],
    [["policies", "delete"], {}, 2, /^there is no command policies delete: npx tollgate policies list, /],
    [
      ["overrides", "toString"],
      {},
      2,
      "there is no command overrides toString: npx tollgate overrides list, npx tollgate overrides remove",
    ],
    [["policies", "apply"], {}, 2, "name the file with the policies: npx tollgate policies apply wrangler.toml"],
    [["policies", "apply", "none.json"], {}, 2, "there is no file none.json"],
    [
      ["policies", "apply", "none.json", "--carry", "over"],
      {},
      2,
      '--carry is as_is, proportional, additive, reset, not "over"',
    ],
    [["inspect"], {}, 2, /^give one key: a text, or --key-json '\["tenant","user"\]'/],
    [["inspect", "a", "--key-json", `"b"`], {}, 2, /^give one key: /],
    [["inspect", "a", "b"], {}, 2, "there is one argument too many: b"],
    [["inspect", "--key-json", "a"], {}, 2, /^--key-json is not JSON: /],
    [["inspect", "a", "--policy", "api"], {}, 2, /^Unknown option '--policy'/],
    [["explain", "a"], {}, 2, "explain is about one policy: --policy api"],
    [
      ["credit", "a", "--policy", "api", "--cost", "x"],
      {},
      2,
      `--cost is a number, or one for each limit: --cost '{"requests":1}', not "x"`,
    ],
    [["block", "a", "--policy", "api"], {}, 2, "a key is blocked for a time: --for 1h"],
    [["block", "a", "--policy", "api", "--for", "1w"], {}, 2, '--for is a time such as 90s, 10m, 1h or 1d, not "1w"'],
    [["overrides", "remove", "a"], {}, 2, "an override is of one policy: --policy api"],
    [["overrides", "remove", "--policy", "api"], {}, 2, /^give one key: /],
    [["overrides", "remove", "a", "--policy", "api", "--prefix", "a"], {}, 2, "give a key or a prefix, not both"],
    [["inspect", "a", "--token", secret], {}, 2, /^Unknown option '--token'/],
  ]) {
    const said = await service.run(args, { env });
    const where = JSON.stringify([args, env, said]);
    assert.deepEqual([said.code, said.stdout], [code, ""], where);
    const [line, ...rest] = said.stderr.split("\n");
    assert.deepEqual(rest, [""], where);
    if (typeof message === "string") assert.equal(line, `tollgate: ${message}`);
    else assert.match(line.replace(/^tollgate: /, ""), message);
    assert.doesNotMatch(said.stderr, new RegExp(`${secret}|${service.token}|${consumer.text}`));
  }
  assert.deepEqual((await service.ask("GET", "/v1/audit")).body.acts.length, 3, "nothing was done");
});

test("help on each command, and no more than that", async () => {
  const whole = (await command(["--help"])).stdout;
  for (const [name, flag] of [
    ["policies", "--help"],
    ["inspect", "-h"],
    ["explain", "-h"],
    ["reset", "-h"],
    ["credit", "-h"],
    ["block", "-h"],
    ["overrides", "-h"],
    ["audit", "-h"],
  ]) {
    const { code, stdout } = await command([name, "anything", flag]);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`^Usage: npx tollgate <command>\n\n  ${name} `));
    const shown = [...stdout.matchAll(/^ {2}(\S+)/gm)].map(([, word]) => word);
    assert.deepEqual([...new Set(shown)], [name]);
    assert.match(stdout, /Exit codes: 0 done; 1 /);
    assert.ok(stdout.split("\n").every((line) => line === "" || whole.includes(`${line}\n`)));
  }
});

test("colours are for terminals, and never with NO_COLOR", async () => {
  const service = await operated({ policies: POLICIES });
  const explain = ["explain", "alice", "--policy", "api"];
  const TERM = "xterm-256color";
  const { stdout } = await service.run(explain, { terminal: true, env: { TERM } });
  assert.deepEqual([stdout.slice(0, 14), stdout.trimEnd().slice(-5)], ["\u001b[32mAllowed: ", "\u001b[39m"]);
  assert.match((await service.run(explain, { terminal: true, env: { TERM, NO_COLOR: "1" } })).stdout, /^Allowed: /);
  assert.match((await service.run(explain, { env: { FORCE_COLOR: "1" } })).stdout, /^Allowed: /);
});

test("the commands of the README do what it shows", async () => {
  const readme = readFileSync(join(root, "www/package/README.md"), "utf8");
  const [, section] = readme.match(/^## Operating a service$(.*?)^## /ms);
  const [, limits] = section.match(/^```json\n(.*?)^```$/ms);
  written("limits.json", limits);
  const shown = [...section.matchAll(/^```console\n(.*?)^```$/gms)].flatMap(([, block]) =>
    block.split(/^\$ npx tollgate /m).slice(1),
  );
  // As its text is, but for the defaults of tests.
  const api = { rate: 100, period: "1m", capacity: 200, refusal_cache: "1s" };
  const policies = { api, daily: "1000/1day" };
  const service = await operated({ policies });
  const ask = (verb, body) => service.ask("POST", `/v1/${verb}`, body);
  await ask("consume", { policy: "daily", key: "alice", cost: 1 });
  service.now += 3_600_000;
  await ask("consume", { policy: "api", key: "alice", cost: 198 });
  await ask("consume", { policy: "api", key: "alice", cost: 5 });
  const used = new Set();
  for (const example of shown) {
    const [line, ...output] = example.split("\n");
    const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, word]) => quoted ?? word);
    used.add(words[0]);
    if (words[0] === "policies") used.add(words[1]);
    const { stdout, stderr } = await service.run(words);
    assert.equal(stdout + stderr, `${output.join("\n").trimEnd()}\n`, line);
  }
  const commands = [
    "policies",
    "list",
    "diff",
    "apply",
    "inspect",
    "explain",
    "reset",
    "credit",
    "block",
    "overrides",
    "audit",
  ];
  assert.deepEqual([...used].sort(), commands.sort());
});
