// `npx tollgate`, as a stranger runs it.
import assert from "node:assert/strict";
import { createHash, createHmac } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { before, test } from "node:test";
import { run, stranger } from "./stranger.mjs";

let folder;
before(async () => {
  ({ folder } = await stranger({ beside: ["wrangler"] }));
});

const SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const KEYS = JSON.stringify({ "2026-11": SECRET, older: `${SECRET}A` });

const tollgate = (args, { cwd = folder, env = {} } = {}) =>
  run(join(folder, "node_modules/.bin/tollgate"), args, cwd, { env }).then(({ stdout }) => stdout);

/** The claims of a grant whose signature is valid, and how many seconds it has left. */
function opened(grant) {
  const [header, payload, signature] = grant.trim().split(".");
  const signed = createHmac("sha256", Buffer.from(SECRET, "base64url")).update(`${header}.${payload}`);
  assert.equal(signature, signed.digest("base64url"));
  const read = (part) => JSON.parse(Buffer.from(part, "base64url").toString());
  assert.deepEqual(read(header), { alg: "HS256", typ: "JWT", kid: "2026-11" });
  const { exp, ...claims } = read(payload);
  return { claims, leftS: exp - Date.now() / 1000 };
}

test("without a command it prints its help", async () => {
  const usage = await tollgate([]);
  for (const args of [["--help"], ["-h"], ["tokens", "--help"]]) assert.equal(await tollgate(args), usage);
  for (const command of ["init", "lint", "token", "grant-key", "grant", "start", "tail", "types"]) {
    assert.match(usage, new RegExp(`^  ${command} `, "m"));
    const own = await tollgate([command, "-h"]);
    assert.deepEqual(
      [...own.matchAll(/^ {2}(\S+)/gm)].map(([, word]) => word),
      [command],
    );
  }
});

test("init writes a service, and overwrites nothing", async () => {
  const said = await tollgate(["init", "My Limits"]);
  const written = join(folder, "My Limits");
  assert.deepEqual(readdirSync(written).sort(), [".gitignore", "index.ts", "package.json", "wrangler.toml"]);
  assert.match(said, /^cd 'My Limits'\nnpm install\nnpm start\nnpx wrangler deploy$/m);
  const { name, dependencies } = JSON.parse(readFileSync(join(written, "package.json"), "utf8"));
  assert.equal(name, "my-limits");
  const { version } = JSON.parse(readFileSync(join(folder, "node_modules/tollgate/package.json"), "utf8"));
  assert.equal(dependencies.tollgate, `^${version}`);
  assert.match(readFileSync(join(written, "wrangler.toml"), "utf8"), /^name = "my-limits"$/m);
  assert.match(readFileSync(join(written, ".gitignore"), "utf8"), /^\.dev\.vars$/m);

  const half = join(folder, "half");
  mkdirSync(half);
  writeFileSync(join(half, "wrangler.toml"), "mine");
  await assert.rejects(tollgate(["init", "half"]), /half has wrangler\.toml already, and nothing was written/);
  assert.deepEqual(readdirSync(half), ["wrangler.toml"]);
  assert.equal(readFileSync(join(half, "wrangler.toml"), "utf8"), "mine");
  const long = `${"a".repeat(53)}-b`; // cut before a hyphen, with which no Worker's name may end
  await tollgate(["init", long]);
  assert.match(readFileSync(join(folder, long, "wrangler.toml"), "utf8"), /^name = "a{53}"$/m);
  await tollgate(["init"], { cwd: await emptyFolder("here") });
  assert.ok(existsSync(join(folder, "here/index.ts")));
});

test("token prints a new token and its hash each time", async () => {
  const seen = new Set();
  for (const [options, lines] of [
    [[], `scopes = ["consume"]\n`],
    [["--scopes", "consume, adjust"], `scopes = ["consume","adjust"]\n`],
    [["--policies", "api,llm.v1"], `scopes = ["consume"]\npolicies = ["api","llm.v1"]\n`],
    [["--policies", "a".repeat(64)], `scopes = ["consume"]\npolicies = ["${"a".repeat(64)}"]\n`],
  ]) {
    const said = await tollgate(["token", "backend", ...options]);
    const [token] = said.match(/^tg_[\w-]{43}$/m);
    const sha256 = createHash("sha256").update(token).digest("hex");
    assert.ok(said.includes(`\n[vars.TOLLGATE_TOKENS.backend]\nsha256 = "${sha256}"\n${lines}`), said);
    assert.ok(!seen.has(token));
    seen.add(token);
  }
});

test("grant signs what was requested, with the first key", async () => {
  const env = { TOLLGATE_GRANT_KEYS: KEYS };
  const plain = opened(await tollgate(["grant", "--key", "alice", "--policies", "api"], { env }));
  assert.deepEqual(plain.claims, { aud: "tollgate", key: "alice", policies: ["api"], verbs: ["consume", "peek"] });
  assert.ok(plain.leftS > 3500 && plain.leftS <= 3600);
  for (const [options, claims, seconds] of [
    [["--key", "[1]"], { key: "[1]" }, 3600],
    [["--key-json", `["tenant","user"]`, "--expires", "90s"], { key: ["tenant", "user"] }, 90],
    [
      ["--key-json", `{"ip":"203.0.113.9"}`, "--verbs", "inspect", "--expires", "10m"],
      { key: { ip: "203.0.113.9" }, verbs: ["inspect"] },
      600,
    ],
    [["--key", "a", "--audience", "eu", "--expires", "1d"], { key: "a", aud: "eu" }, 86_400],
  ]) {
    const grant = opened(await tollgate(["grant", "--policies", "api", ...options], { env }));
    assert.deepEqual(grant.claims, { ...plain.claims, ...claims });
    assert.ok(grant.leftS > seconds - 30 && grant.leftS <= seconds);
  }
});

test("grant finds its key where the local service does, and grant-key creates one", async () => {
  const cwd = await emptyFolder("local");
  const made = await tollgate(["grant-key", "nov"]);
  const [, keys] = made.match(/^(\{"nov":"[\w-]{43}"\})$/m);
  writeFileSync(join(cwd, ".dev.vars"), `TOLLGATE_GRANT_KEYS=${keys}\n`);
  const grant = await tollgate(["grant", "--key", "a", "--policies", "api"], { cwd });
  assert.equal(JSON.parse(Buffer.from(grant.split(".")[0], "base64url")).kid, "nov");
  assert.match(await tollgate(["grant-key"]), /^\{"\d{4}-\d\d-\d\d":"[\w-]{43}"\}$/m);
});

test("types prints the names of policies and limits, wherever policies are configured", async () => {
  const cwd = await emptyFolder("typed");
  const expected = `// Made by \`npx tollgate types\`. Do not edit it: make it again when the policies have changed.

/** The names of the policies, and of their limits if they have several. */
export interface Policies {
  "7": never;
  api: never;
  llm: "requests" | "tokens";
  "per \\"day\\"": never;
}
`;
  const limits = [
    { name: "requests", rate: 60, period: "1m" },
    { name: "tokens", rate: 100, period: "1day" },
  ];
  const policies = {
    llm: { limits, on_error: "open" },
    api: { rate: 1, period: "1s" },
    'per "day"': "1/day",
    7: "7/s",
  };
  const config = { name: "a", vars: { POLICIES: policies } };
  writeFileSync(join(cwd, "policies.json"), JSON.stringify(policies));
  assert.equal(await tollgate(["types", "policies.json"], { cwd }), expected);
  writeFileSync(join(cwd, "other.jsonc"), `// ours\n${JSON.stringify(config)}`);
  assert.equal(await tollgate(["types", "other.jsonc"], { cwd }), expected);
  config.vars.POLICIES = JSON.stringify(policies);
  writeFileSync(join(cwd, "wrangler.json"), JSON.stringify(config));
  assert.equal(await tollgate(["types"], { cwd }), expected);
  const { api, ...others } = policies;
  const apart = { name: "a", vars: { POLICIES: { api } }, env: { staging: { vars: { POLICIES: others } }, dev: {} } };
  writeFileSync(join(cwd, "environments.jsonc"), JSON.stringify(apart));
  assert.equal(await tollgate(["types", "environments.jsonc"], { cwd }), expected);
  assert.equal(await tollgate(["types", "--out", "policies.d.ts"], { cwd }), "");
  assert.equal(readFileSync(join(cwd, "policies.d.ts"), "utf8"), expected);

  await tollgate(["init", "typed/service"]);
  const service = join(cwd, "service");
  assert.match(await tollgate(["types"], { cwd: service }), /^ {2}daily: never;\n {2}llm: "requests" \| "tokens";$/m);
});

test("TypeScript checks what types writes", async () => {
  const cwd = await emptyFolder("checked");
  await tollgate(["init", "checked/service"]);
  await tollgate(["types", "service/wrangler.toml", "--out", "policies.d.ts"], { cwd });
  const asking = `
    import { Client } from "tollgate/client";
    import type { Policies } from "./policies.js";
    const client = new Client<Policies>({ url: "https://tollgate.example.com", token: null });
    client.consume({ policy: "llm", key: "alice", cost: { requests: 1, tokens: 500 } });
    // @ts-expect-error: a misspelt policy
    client.consume({ policy: "lml", key: "alice" });
    // @ts-expect-error: a misspelt limit
    client.consume({ policy: "llm", key: "alice", cost: { requests: 1, token: 500 } });
  `;
  writeFileSync(join(cwd, "asking.ts"), asking);
  const options = "--noEmit --strict --types --module nodenext --target es2022 --lib es2022,dom".split(" ");
  await run("tsc", [...options, "asking.ts"], cwd);
});

test("types asks a service, with the token from the environment", async (t) => {
  const asked = [];
  const answers = [
    [200, { policies: [{ name: "api", policy: "20/s", version: 17 }] }],
    [
      403,
      {
        type: "urn:problem-type:tollgate:forbidden",
        title: "Forbidden",
        status: 403,
        detail: "this token lacks the scope admin",
        scope: "admin",
      },
    ],
    [200, {}],
    [302, {}],
  ];
  const server = createServer((request, response) => {
    const [status, body] = answers.shift();
    asked.push([request.method, request.url, request.headers.authorization]);
    response.writeHead(status, { location: "https://example.com/" }).end(JSON.stringify(body));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}`;
  const env = { TOLLGATE_TOKEN: SECRET };
  const types = () => tollgate(["types", "--url", `${url}/`], { env });
  assert.match(await types(), /^export interface Policies \{\n {2}api: never;\n\}$/m);
  for (const message of [
    /Forbidden \(403\): this token lacks the scope admin; TOLLGATE_TOKEN must have it/,
    /answers 200, but not as Tollgate does: is --url right/,
    /no answer from/,
  ])
    await assert.rejects(types(), message);
  assert.deepEqual(asked, Array(4).fill(["GET", "/v1/policies", `Bearer ${SECRET}`]));
});

test("a Node too old for Wrangler is reported before Wrangler fails on it", async () => {
  const { nodeFault, CONFIGURATIONS } = await import(join(folder, "node_modules/tollgate/cli/configuration.mjs"));
  const { engines } = JSON.parse(readFileSync(join(folder, "node_modules/wrangler/package.json"), "utf8"));
  const [, oldest] = engines.node.match(/^>=(\d+\.\d+)\.0$/);
  for (const version of [`${oldest}.0`, "23.0.0", "100.1.0", process.versions.node])
    assert.equal(nodeFault(version), undefined, version);
  for (const version of ["20.20.2", "22.11.9", "9.99.9"])
    assert.ok(nodeFault(version).includes(`needs Node ${oldest} or newer, and this is ${version}: `), version);
  assert.deepEqual(CONFIGURATIONS, ["wrangler.json", "wrangler.jsonc", "wrangler.toml"]);
  const older = join(folder, "older.mjs"); // as that Node reports itself
  writeFileSync(
    older,
    `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.20.2" } });`,
  );
  for (const args of [["start"], ["lint", "half/wrangler.toml"], ["types", "half/wrangler.toml"]])
    await assert.rejects(tollgate(args, { env: { NODE_OPTIONS: `--import ${older}` } }), /needs Node 22\.12 or newer/);
});

test("a mistake is reported on one line, and is no crash", async () => {
  const asked = ["grant", "--key", "a", "--policies", "api"];
  const files = {
    "wrong.json": "{",
    "list.json": "[]",
    "limits.json": `{"llm":{"limits":1}}`,
    "nameless.json": `{"llm":{"limits":[{"name":"a"},{}]}}`,
    "good.json": `{"api":"1/s"}`,
    "apart.jsonc": `{"vars":{"POLICIES":{"llm":{"limits":[{"name":"a"}]}}},"env":{"b":{"vars":{"POLICIES":{"llm":"1/s"}}}}}`,
    "wrong.toml": "name =\n",
    "empty.toml": `name = "a"\n`,
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  for (const [args, message, keys = KEYS, token = ""] of [
    [["tokens"], /there is no command tokens/],
    [["constructor"], /there is no command constructor/],
    [["token"], /a token has a name/],
    [["token", "back end"], /1 to 40 letters, digits, - and _, not "back end"/],
    [["token", "a", "b"], /one argument too many: b/],
    [
      ["token", "a", "--scopes", "consume,reset"],
      /--scopes cannot have "reset": it is a list of consume, adjust, admin/,
    ],
    [["token", "a", "--policies", "api,"], /--policies has "", which is not a name/],
    [["token", "a", "--policies", "a".repeat(65)], /--policies has "a{65}", which is not a name/],
    [["grant-key", "2026"], /must not be a number: take 'k2026'/],
    [["grant", "--policies", "api"], /a grant is for one key: --key alice/],
    [["grant", "--key", "a"], /one or more policies: --policies api/],
    [["grant", "--key", "a", "--key-json", `["b"]`, "--policies", "api"], /a grant is for one key/],
    [["grant", "--key-json", "[1]", "--policies", "api"], /a list of texts .* not \[1\]/],
    [["grant", "--key-json", "{", "--policies", "api"], /--key-json is not JSON/],
    [[...asked, "--verbs", "reset"], /--verbs cannot have "reset": it is a list of consume, peek,/],
    [[...asked, "--expires", "1 hour"], /90s, 10m, 1h or 1d, not "1 hour"/],
    [[...asked, "--expires", "0s"], /1 to 86400 seconds, not 0/],
    [[...asked, "--expires", "86401s"], /1 to 86400 seconds, not 86401/],
    [[...asked, "--expire", "1h"], /'--expire'/],
    [["types"], /there is no wrangler\.json or wrangler\.jsonc or wrangler\.toml here: name a file/],
    [["types", "none.json"], /there is no file none\.json/],
    [["types", "wrong.json"], /wrong\.json is not JSON: /],
    [["types", "list.json"], /list\.json must have an object with each policy under its name/],
    [["types", "limits.json"], /llm\.limits must be a list of limits, each with a name/],
    [["types", "nameless.json"], /llm\.limits\[1\] must have a name/],
    [["types", "apart.jsonc"], /env\.b: llm\.limits must have the same names in all environments: "a", not never/],
    [["types", "wrong.toml"], /wrong\.toml: Invalid TOML document/],
    [["types", "empty.toml"], /empty\.toml has no policies: they are tables such as/],
    [["types", "list.json", "--url", "https://example.com"], /from a file or from --url, not from both/],
    [["types", "--url", "https://example.com"], /TOLLGATE_TOKEN is not in the environment/],
    [["types", "--url", "example.com"], /--url is not an address such as https:/, KEYS, SECRET],
    [["types", "good.json", "--out", "policies.ts"], /--out is a file of declarations, such as policies\.d\.ts/],
    [["types", "good.json", "--out", "none/policies.d.ts"], /none\/policies\.d\.ts cannot be written: ENOENT/],
    [asked, /neither in the environment nor in \.dev\.vars/, ""],
    [asked, /the keys must be JSON such as/, "secret"],
    [asked, /the keys must be JSON such as/, "{}"],
    [asked, /the key "short" must be base64url of 32 bytes or more/, `{"short":"${SECRET.slice(1)}"}`],
    [asked, /the first key's id must be 1 to 40 letters/, `{"${SECRET}":"k1"}`],
    [
      [
        ...asked,
        "--policies",
        Array(900)
          .fill("p")
          .join(`${"o".repeat(9)},`),
      ],
      /at most 4096 bytes, not \d{5}: name fewer/,
    ],
  ]) {
    await assert.rejects(tollgate(args, { env: { TOLLGATE_GRANT_KEYS: keys, TOLLGATE_TOKEN: token } }), (error) => {
      const said = `${error.message}\n${error.stderr ?? ""}`;
      assert.match(said, message);
      assert.doesNotMatch(said, / {4}at /); // no stack
      assert.doesNotMatch(said, new RegExp(`${SECRET.slice(1)}|secret`)); // nor a secret
      return true;
    });
  }
});

async function emptyFolder(name) {
  const path = join(folder, name);
  mkdirSync(path);
  return path;
}
