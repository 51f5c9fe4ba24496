// The lint, by the service's own Rust: as a function, and as `npx tollgate lint`.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";
import { Bucket } from "../../build/package/index.js";
import { lint } from "../../build/package/lint.js";
import { rate } from "../../build/package/rate.js";
import { root, run, stranger } from "./stranger.mjs";

let folder;
before(async () => {
  ({ folder } = await stranger({ beside: ["wrangler"] }));
});

/** The command's exit code and output. */
const command = async (args, cwd = folder) => {
  const script = `import { execFile } from "node:child_process";
    execFile(process.execPath, ${JSON.stringify([join(folder, "node_modules/tollgate/cli/main.js"), "lint", ...args])}, (error, stdout, stderr) =>
      console.log(JSON.stringify({ code: error?.code ?? 0, stdout, stderr })));`;
  return JSON.parse((await run(process.execPath, ["--input-type=module", "--eval", script], cwd)).stdout);
};
const write = (name, text) => writeFileSync(join(folder, name), text);

const API = `api: token bucket, 20 per 1s, at most 40 at once and 60 within any 1s
  from empty to full in 2s; a crash costs a key at most 20, back after 1s; renaming it resets a key to 40`;

test("knows the time zones of calendars as Intl does", async () => {
  const window = { kind: "fixed_window", rate: 10, calendar: "month", starts: 15 };
  const { errors, policies } = await lint({ paulo: { ...window, zone: "America/Sao_Paulo" } });
  assert.deepEqual(errors, []);
  const [{ summary, limits }] = policies;
  assert.equal(
    summary,
    "paulo: fixed window, 10 per calendar month from day 15 in America/Sao_Paulo, at most 10 at once and 30 within any 31days",
  );
  const [{ calendar, period_ms, within, full_after_ms }] = limits;
  const longest = 31 * 86_400_000;
  assert.deepEqual([calendar, period_ms, full_after_ms], ["month 15 America/Sao_Paulo", longest, longest]);
  assert.deepEqual(within, [{ period_ms: longest, tokens: 30 }], "from one window, over February, to the next");
  for (const zone of ["America/Sao_Paolo", "+03:00", ""]) {
    const wrong = await lint({ paulo: { ...window, zone } });
    assert.equal(wrong.errors.length, 1);
    assert.match(wrong.errors[0], /^POLICIES.paulo.zone: must be the name of a time zone/);
  }
});

test("reports each policy's numbers, description and findings", async () => {
  const { errors, policies } = await lint({ api: "20/s burst 40", once: { rate: 0, period: "1day", capacity: 5 } });
  assert.deepEqual(errors, []);
  const [api, once] = policies;
  assert.deepEqual(api, {
    policy: "api",
    summary: API.split("\n")[0],
    limits: [
      {
        is_enforced: true,
        kind: "token_bucket",
        rate: 20,
        period_ms: 1000,
        capacity: 40,
        long_run: { tokens: 20, period_ms: 1000 },
        burst: 40,
        within: [{ period_ms: 1000, tokens: 60 }],
        full_after_ms: 2000,
        crash: { tokens: 20, back_after_ms: 1000 },
        change_grants: 40,
      },
    ],
    together: [],
    findings: [],
    text: API,
  });
  assert.deepEqual(once.findings, [
    {
      level: "note",
      code: "never_refills",
      text: "with a rate of 0 a spent budget never refills, and its row is never deleted",
    },
  ]);
});

test("its numbers match a bucket: exactly that much can be taken within a period", async () => {
  for (const text of ["20/s burst 40", "3/s burst 1", "7/10ms burst 2", "0.6/ms burst 1", "5/ms burst 3"]) {
    const { policies } = await lint({ p: text });
    const [{ period_ms, tokens }] = policies[0].limits[0].within;
    const bucket = new Bucket(0, rate(text));
    let taken = 0;
    for (let now = 0; now <= period_ms; now++)
      taken += bucket.decide(now, { cost: 1e6, verb: "consumeUpTo" }).tokens ?? 0;
    assert.equal(taken, tokens, text);
  }
});

test("takes JSON as it is written, and reports every error", async () => {
  const exact = await lint('{"p":{"rate":0.1,"period":"1s"}}');
  assert.deepEqual([exact.policies[0].limits[0].rate, exact.policies[0].limits[0].period_ms], [1, 10_000]);
  for (const [policies, errors] of [
    [
      { a: { rate: 5 }, b: 7 },
      ["POLICIES.a.period: is missing", "POLICIES.b: must be a table of fields such as rate and period, not 7"],
    ],
    ['{"p":"1/s","p":"2/s"}', ["POLICIES: gives p twice"]],
    ["{", ["POLICIES: must be a table of policies by name: EOF while parsing an object at line 1 column 1"]],
    [undefined, ["POLICIES: must be a table of policies by name, not null"]],
    [{}, ["POLICIES: defines no policy"]],
    [{ 語: "1/s" }, [`POLICIES."語": a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'`]],
  ])
    assert.deepEqual(await lint(policies), { errors, policies: [] }, JSON.stringify(policies));
});

test("many policies at once, and many calls", async () => {
  const many = Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [`p${i}`, { rate: i + 1, period: "1m" }]));
  const { policies } = await lint(many);
  assert.equal(policies.length, 3000);
  assert.equal(policies.find(({ policy }) => policy === "p2999").limits[0].within[0].tokens, 6000);
  const all = await Promise.all(Array.from({ length: 50 }, (_, i) => lint({ p: `${i + 1}/s` })));
  assert.deepEqual(
    all.map(({ policies }) => policies[0].limits[0].burst),
    Array.from({ length: 50 }, (_, i) => i + 1),
  );
});

test("the module names no path of the machine that built it", () => {
  const wasm = readFileSync(join(root, "build/package/lint.wasm"), "latin1");
  assert.ok(!wasm.includes(root));
});

const OBJECTS = `durable_objects.bindings = [{ name = "KEYS", class_name = "KeyObject" }]\n`;
const JSON_OBJECTS = `"durable_objects": { "bindings": [{ "name": "KEYS", "class_name": "KeyObject" }] }`;

test("the command reports the same for a Wrangler configuration, for each environment", async () => {
  write(
    "wrangler.toml",
    `name = "limits"
${OBJECTS}[vars.POLICIES]
api = "20/s burst 40"
[env.staging]
${OBJECTS}[env.staging.vars.POLICIES.api]
rate = 2.5
period = "1s"
on_error = ["overloaded"]
`,
  );
  const { code, stdout, stderr } = await command([]);
  assert.deepEqual([code, stderr], [0, ""]);
  assert.equal(
    stdout,
    `${API}

env.staging api: token bucket, 5 per 2s, at most 3 at once and 8 within any 2s; fails open on overloaded
  from empty to full in 1s 200ms; a crash costs a key at most 2, back after 800ms; renaming it resets a key to 3
  note: when no decision can be made, requests pass uncounted: it fails open on overloaded (fails_open)
  warning: callers cause \`overloaded\` themselves, so a flood opens the limit that should stop it (flood_opens)

0 errors, 2 policies, 1 warning, 1 note
`,
  );
  write("wrangler.jsonc", `{ /* ours */ "vars": { "POLICIES": { "api": "20/s burst 40" } }, ${JSON_OBJECTS} }`);
  assert.deepEqual(await command(["wrangler.jsonc"]), {
    code: 0,
    stdout: `${API}\n\n0 errors, 1 policy, 0 warnings, 0 notes\n`,
    stderr: "",
  });
});

test("the command reports what each environment lacks, or has too much of", async () => {
  const tokens = (count) =>
    Object.fromEntries(
      Array.from({ length: count }, (_, i) => [
        `backend-${i}`,
        { sha256: "0".repeat(64), scopes: ["consume", "adjust"] },
      ]),
    );
  const api = { POLICIES: { api: "1/s" } };
  const objects = { durable_objects: { bindings: [{ name: "KEYS", class_name: "KeyObject" }] } };
  const whole = { vars: api, ...objects };
  const noObjects = "durable_objects: has no binding KEYS: add one for the class KeyObject";
  const noBinding = `env.e.${noObjects}; an environment inherits no bindings`;
  const noPolicies = "vars.POLICIES: is missing: add policies";
  const tooLong = (place, length) =>
    `${place} has ${length} bytes, and Cloudflare takes at most 5120 in a variable or secret`;
  const rows = [
    [whole, []],
    [{ vars: { POLICIES: JSON.stringify(api.POLICIES) }, ...objects }, []],
    [{ vars: api }, [noObjects]],
    // Code may use the class under another name.
    [{ vars: api, durable_objects: { bindings: [{ name: "LIMITS", class_name: "KeyObject" }] } }, []],
    [{ vars: api, durable_objects: { bindings: [{ name: "REGISTRY", class_name: "PolicyRegistry" }] } }, [noObjects]],
    // An environment inherits neither, and an empty one has nothing.
    [{ ...whole, env: { e: whole, f: {} } }, [...[noObjects, noPolicies].map((line) => `env.f.${line}`)]],
    [{ ...whole, env: { e: { vars: api } } }, [noBinding]],
    [{ ...whole, env: { e: objects } }, [`env.e.${noPolicies}; an environment inherits no variables`]],
    // If each deployment is an environment, there is nothing else to deploy.
    [{ env: { e: whole } }, []],
    [{ ...objects, env: { e: whole } }, [noPolicies]],
    [{ ...whole, vars: { ...api, TOLLGATE_TOKENS: tokens(40) } }, []],
    [
      { ...whole, vars: { ...api, TOLLGATE_TOKENS: tokens(45) } },
      [`${tooLong("vars.TOLLGATE_TOKENS:", JSON.stringify(tokens(45)).length)}: some 40 tokens fit`],
    ],
    [{ ...whole, vars: { ...api, A: "a".repeat(5120) } }, []],
    [{ ...whole, vars: { ...api, A: "a".repeat(5121) } }, [tooLong("vars.A:", 5121)]],
    [{ ...whole, env: { e: { ...whole, vars: { ...api, A: "é".repeat(2561) } } } }, [tooLong("env.e.vars.A:", 5122)]],
  ];
  for (const [config, expected] of rows) {
    write("deployed.jsonc", JSON.stringify({ name: "limits", ...config }));
    const { code, stdout, stderr } = await command(["deployed.jsonc"]);
    const errors = stderr.split("\n").filter(Boolean);
    const what = `${JSON.stringify(config)}\n${stderr}`;
    assert.equal(code, expected.length > 0 ? 1 : 0, what);
    assert.equal(errors.length, expected.length, what);
    for (const [i, line] of expected.entries()) assert.ok(errors[i].startsWith(`error: ${line}`), what);
    assert.match(stdout, new RegExp(`\\b${expected.length} errors?, `), what);
  }
});

test("the command warns of a missing binding where the code may not need it", async () => {
  const api = { POLICIES: { api: "1/s" } };
  const bound = (class_name, name = "OBJECTS") => ({ durable_objects: { bindings: [{ name, class_name }] } });
  const exported = { exports: { Mailbox: { type: "durable-object", storage: "sqlite" } } };
  const migrated = (class_name) => ({ migrations: [{ tag: "v1", new_sqlite_classes: [class_name] }] });
  const unless = ", unless the code passes the option `keys` or uses only `tollgateIn`";
  const missing = (place, end) => `${place}durable_objects: has no binding KEYS: add one for the class KeyObject${end}`;
  const service = { ...bound("Mailbox"), vars: { ...api, TOLLGATE_TOKENS: {} } };
  for (const [config, errors, warnings] of [
    // The policies may be for its own objects.
    [{ vars: api, ...bound("Mailbox") }, [], [missing("", unless)]],
    [{ vars: api, ...exported }, [], [missing("", unless)]],
    [{ vars: api, ...migrated("Mailbox") }, [], [missing("", unless)]],
    // The code may take the namespace from `ctx.exports`.
    [{ vars: api, ...migrated("KeyObject") }, [], [missing("", unless)]],
    [
      { vars: api, ...bound("Mailbox"), env: { e: { vars: api } } },
      [],
      [missing("", unless), missing("env.e.", `${unless}; an environment inherits no bindings`)],
    ],
    // The package's own entry point needs it, and so does code that has it in another environment.
    [service, [missing("", "")], []],
    [{ vars: api, ...bound("Mailbox"), secrets: { required: ["TOLLGATE_GRANT_KEYS"] } }, [missing("", "")], []],
    [{ vars: api, ...bound("Mailbox"), env: { e: { vars: api, ...bound("KeyObject") } } }, [missing("", "")], []],
    [{ vars: api, ...migrated("PolicyRegistry") }, [missing("", "")], []],
  ]) {
    write("deployed.jsonc", JSON.stringify({ name: "limits", ...config }));
    const { code, stdout, stderr } = await command(["deployed.jsonc"]);
    const lines = [...errors.map((line) => `error: ${line}\n`), ...warnings.map((line) => `warning: ${line}\n`)];
    assert.deepEqual([code, stderr], [errors.length > 0 ? 1 : 0, lines.join("")], JSON.stringify(config));
    assert.match(stdout, new RegExp(`\\b${errors.length} errors?, . polic\\w+, ${warnings.length} warnings?, `));
  }
  write("deployed.jsonc", JSON.stringify({ name: "limits", vars: api, ...exported }));
  const { errors, warnings } = JSON.parse((await command(["deployed.jsonc", "--json"])).stdout);
  assert.deepEqual([errors, warnings], [[], [missing("", unless)]]);
});

test("the command says which binding has the wrong name or the wrong class", async () => {
  const api = { POLICIES: { api: "1/s" } };
  const bound = (...bindings) => ({
    durable_objects: {
      bindings: bindings.map(([name, class_name, script_name]) => ({
        name,
        class_name,
        ...(script_name && { script_name }),
      })),
    },
  });
  const exported = (...names) => ({
    exports: Object.fromEntries(names.map((name) => [name, { type: "durable-object", storage: "sqlite" }])),
  });
  const application = { vars: api };
  const service = { vars: { ...api, TOLLGATE_TOKENS: {} } };
  const keys = ["KEYS", "KeyObject"];
  const misnamed = (right, name, read) =>
    `durable_objects: binds ${right} as ${name}, and the service reads ${read}: bind it as ${read}`;
  const other = (name, other, right) => `durable_objects: binds ${name} to the class ${other}: bind it to ${right}`;
  const renamed = (name) => [
    { tag: "v1", new_sqlite_classes: ["KeyObject"] },
    { tag: "v2", renamed_classes: [{ from: "KeyObject", to: name }] },
  ];
  for (const [config, errors, warnings] of [
    // The entry point of the service reads KEYS alone.
    [{ ...service, ...bound(["KEY", "KeyObject"]) }, [misnamed("KeyObject", "KEY", "KEYS")], []],
    [
      { ...service, ...bound(keys), env: { e: { vars: api, ...bound(["KEY", "KeyObject"]) } } },
      [`env.e.${misnamed("KeyObject", "KEY", "KEYS")}`],
      [],
    ],
    [
      { ...application, ...bound(["KEY", "KeyObject"]), secrets: { required: ["TOLLGATE_GRANT_KEYS"] } },
      [misnamed("KeyObject", "KEY", "KEYS")],
      [],
    ],
    [{ ...service, ...bound(["LIMITS", "KeyObject"], keys) }, [], []],
    // Another class than the one that the configuration itself has.
    [
      { ...service, ...bound(["KEYS", "Mailbox"]), ...exported("KeyObject", "Mailbox") },
      [other("KEYS", "Mailbox", "KeyObject")],
      [],
    ],
    [{ ...service, ...bound(["KEYS", "Mailbox"], ["MAIL", "KeyObject"]) }, [other("KEYS", "Mailbox", "KeyObject")], []],
    [
      { ...service, ...bound(["KEYS", "PolicyRegistry"], ["REGISTRY", "KeyObject"]) },
      [other("KEYS", "PolicyRegistry", "KeyObject"), other("REGISTRY", "KeyObject", "PolicyRegistry")],
      [],
    ],
    [{ ...application, ...bound(["KEYS", "PolicyRegistry"]) }, [other("KEYS", "PolicyRegistry", "KeyObject")], []],
    // Code may export a class under another name.
    ...[{}, { migrations: renamed("Budgets") }].map((declared) => [
      { ...service, ...bound(["KEYS", "Budgets"]), ...declared },
      [],
      [`${other("KEYS", "Budgets", "KeyObject")}, unless the code exports KeyObject as Budgets`],
    ]),
    [
      { ...service, ...bound(keys, ["REGISTRY", "Rules"]) },
      [],
      [`${other("REGISTRY", "Rules", "PolicyRegistry")}, unless the code exports PolicyRegistry as Rules`],
    ],
    // An application may take its budgets from elsewhere.
    [
      { ...application, ...bound(["KEYS", "Mailbox"]), ...exported("KeyObject", "Mailbox") },
      [],
      [
        `${other("KEYS", "Mailbox", "KeyObject")}, unless the code exports KeyObject as Mailbox, passes the option \`keys\` or uses only \`tollgateIn\``,
      ],
    ],
    [
      { ...application, ...bound(keys, ["REGISTRY", "Rules"]) },
      [],
      [
        `${other("REGISTRY", "Rules", "PolicyRegistry")}, unless the code exports PolicyRegistry as Rules or uses only \`tollgateIn\``,
      ],
    ],
    [{ ...application, ...bound(["KEYS", "Mailbox"], ["LIMITS", "KeyObject"]) }, [], []],
    // Another Worker's classes have the names that it gives them.
    [{ ...service, ...bound(["KEYS", "Budgets", "limits"], ["REGISTRY", "Rules", "limits"]) }, [], []],
    // Without its registry a service works, but operators cannot change its policies.
    [
      { ...service, ...bound(keys, ["RULES", "PolicyRegistry"]) },
      [],
      [misnamed("PolicyRegistry", "RULES", "REGISTRY")],
    ],
  ]) {
    write("deployed.jsonc", JSON.stringify({ name: "limits", ...config }));
    const { code, stderr } = await command(["deployed.jsonc"]);
    const lines = [...errors.map((line) => `error: ${line}\n`), ...warnings.map((line) => `warning: ${line}\n`)];
    assert.deepEqual([code, stderr], [errors.length > 0 ? 1 : 0, lines.join("")], JSON.stringify(config));
  }
});

test("the command reads policies as JSON, and writes JSON", async () => {
  write("policies.json", `{ "api": "20/s burst 40" }`);
  const { code, stdout } = await command(["policies.json", "--json"]);
  assert.equal(code, 0);
  assert.deepEqual(JSON.parse(stdout), { ...(await lint({ api: "20/s burst 40" })), warnings: [] });
});

test("the command exits with 1 for errors, and with 2 if it cannot tell", async () => {
  write("errors.toml", `${OBJECTS}[vars.POLICIES.api]\nrate = 5\n[env.e]\n${OBJECTS}[env.e.vars.POLICIES]\nb = true\n`);
  const { code, stdout, stderr } = await command(["errors.toml"]);
  assert.deepEqual([code, stdout], [1, "2 errors, 0 policies, 0 warnings, 0 notes\n"]);
  assert.equal(
    stderr,
    "error: POLICIES.api.period: is missing\n" +
      "error: env.e.vars.POLICIES.b: must be a table of fields such as rate and period, not true\n",
  );
  const asJson = await command(["errors.toml", "--json"]);
  assert.equal(asJson.code, 1);
  const { errors, warnings } = JSON.parse(asJson.stdout);
  assert.deepEqual([errors.length, warnings], [2, []]);
  write("broken.toml", "[vars");
  write("none.toml", `name = "none"`);
  for (const [args, said] of [
    [["absent.toml"], /^tollgate: there is no file absent\.toml\n$/],
    [["broken.toml"], /^tollgate: broken\.toml: .*TOML/],
    [
      ["none.toml"],
      /^tollgate: none\.toml has no policies: .* policies in code, which `lint` of tollgate\/lint checks\n$/,
    ],
    [["a", "b"], /^tollgate: there is one argument too many: b\n$/],
    [["--strict"], /^tollgate: Unknown option '--strict'/],
  ]) {
    const { code, stdout, stderr } = await command(args);
    assert.deepEqual([code, stdout], [2, ""], args.join(" "));
    assert.match(stderr, said);
  }
});
