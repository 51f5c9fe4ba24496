// `npx tollgate policies`, on the real service: differences, dry runs, and applies, even interrupted ones.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MATCH, operated, POLICIES, written } from "./operated.mjs";

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

test("policies diff compares meaning, not spelling", async () => {
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
  keys of trial without a bucket start with a new one
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
  // The tests' service adds `write_ahead` to a deployment's policies; these are created unchanged.
  const service = await operated({ policies: { none: "1/s" } });
  const file = (column) => written("each.json", Object.fromEntries(names.map((name, i) => [name, cases[i][column]])));
  assert.equal((await service.run(["policies", "apply", file(0)])).code, 0);
  const { code, stdout, stderr } = await service.run(["policies", "diff", file(1), "--json"]);
  assert.deepEqual([code, stderr], [1, ""]);
  for (const [i, { outcome }] of JSON.parse(stdout).policies.entries())
    assert.equal(outcome, cases[i][2], JSON.stringify(cases[i]));
});

test("a dry run reports what the service would do, and changes nothing", async () => {
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

test("apply sends nothing if the service would refuse one of them, and reports every reason", async () => {
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
  assert.deepEqual([diff.code, diff.stderr], [2, reasons], "the comparison is impossible");
  assert.equal(JSON.parse((await service.run(["policies", "diff", file, "--json"])).stdout).differ, null);
  assert.ok(!service.sent.some(isChange));
  assert.deepEqual(await versions(service), before);
});

test("a concurrent change by somebody else is an error, and is not overwritten", async () => {
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
          "it was changed since it was read: look at it (npx tollgate policies diff conflict.json), then apply again\n",
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

test("the service fails halfway: what was done is reported, and the same command resumes", async () => {
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
    /^tollgate: llm: no answer from http:\/\/127\.0\.0\.1:\d+: .+; it may have been carried out; done: api; not sent: trial; run apply again to resume: what was changed stays changed\n$/,
  );
  service.before = undefined;
  await service.tollgate.restart();
  const again = await service.run(["policies", "apply", file]);
  assert.equal(again.code, 0);
  assert.match(again.stdout, /^1 new, 1 changed, 1 same; /m);
  assert.equal((await service.run(["policies", "apply", file])).stdout.split(";")[0], "0 new, 0 changed, 3 same");
});

test("the service fails during a comparison: nothing was changed, and the exit code is 2", async () => {
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
