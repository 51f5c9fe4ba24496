// `npx tollgate`, as a stranger runs it.
import assert from "node:assert/strict";
import { createHash, createHmac } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";
import { run, stranger } from "./stranger.mjs";

let folder;
before(async () => {
  ({ folder } = await stranger());
});

const SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const KEYS = JSON.stringify({ "2026-11": SECRET, older: `${SECRET}A` });

const tollgate = (args, { cwd = folder, env = {} } = {}) =>
  run(join(folder, "node_modules/.bin/tollgate"), args, cwd, { env }).then(({ stdout }) => stdout);

/** The claims of a grant whose signature holds, and how many seconds it has left. */
function opened(grant) {
  const [header, payload, signature] = grant.trim().split(".");
  const signed = createHmac("sha256", Buffer.from(SECRET, "base64url")).update(`${header}.${payload}`);
  assert.equal(signature, signed.digest("base64url"));
  const read = (part) => JSON.parse(Buffer.from(part, "base64url").toString());
  assert.deepEqual(read(header), { alg: "HS256", typ: "JWT", kid: "2026-11" });
  const { exp, ...claims } = read(payload);
  return { claims, leftS: exp - Date.now() / 1000 };
}

test("without a command it explains itself", async () => {
  const usage = await tollgate([]);
  for (const command of ["init", "lint", "token", "grant-key", "grant", "start"])
    assert.match(usage, new RegExp(`^  ${command} `, "m"));
  for (const args of [["--help"], ["token", "--help"], ["init", "-h"]]) assert.equal(await tollgate(args), usage);
});

test("init writes a service, and never over anything", async () => {
  const said = await tollgate(["init", "My Limits"]);
  const written = join(folder, "My Limits");
  assert.deepEqual(readdirSync(written).sort(), [".gitignore", "index.js", "package.json", "wrangler.toml"]);
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
  const long = `${"a".repeat(53)}-b`; // cut after the hyphen, with which no Worker's name may end
  await tollgate(["init", long]);
  assert.match(readFileSync(join(folder, long, "wrangler.toml"), "utf8"), /^name = "a{53}"$/m);
  await tollgate(["init"], { cwd: await emptyFolder("here") });
  assert.ok(existsSync(join(folder, "here/index.js")));
});

test("token prints a token and its hash, which are new each time", async () => {
  const seen = new Set();
  for (const [options, lines] of [
    [[], `scopes = ["consume"]\n`],
    [["--scopes", "consume, adjust"], `scopes = ["consume","adjust"]\n`],
    [["--policies", "api,llm"], `scopes = ["consume"]\npolicies = ["api","llm"]\n`],
  ]) {
    const said = await tollgate(["token", "backend", ...options]);
    const [token] = said.match(/^tg_[\w-]{43}$/m);
    const sha256 = createHash("sha256").update(token).digest("hex");
    assert.ok(said.includes(`\n[vars.TOLLGATE_TOKENS.backend]\nsha256 = "${sha256}"\n${lines}`), said);
    seen.add(token);
  }
  assert.equal(seen.size, 3);
});

test("grant signs what was asked, with the first key", async () => {
  const env = { TOLLGATE_GRANT_KEYS: KEYS };
  const plain = opened(await tollgate(["grant", "--key", "alice", "--policies", "api"], { env }));
  assert.deepEqual(plain.claims, { aud: "tollgate", key: "alice", policies: ["api"], verbs: ["consume", "peek"] });
  assert.ok(plain.leftS > 3500 && plain.leftS <= 3600);
  for (const [options, claims, seconds] of [
    [["--key", `["tenant","user"]`, "--expires", "90s"], { key: ["tenant", "user"] }, 90],
    [
      ["--key", `{"ip":"203.0.113.9"}`, "--verbs", "inspect", "--expires", "10m"],
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

test("grant finds its key where the local service has it, and grant-key makes one", async () => {
  const cwd = await emptyFolder("local");
  const made = await tollgate(["grant-key", "nov"]);
  const [, keys] = made.match(/^(\{"nov":"[\w-]{43}"\})$/m);
  writeFileSync(join(cwd, ".dev.vars"), `TOLLGATE_GRANT_KEYS=${keys}\n`);
  const grant = await tollgate(["grant", "--key", "a", "--policies", "api"], { cwd });
  assert.equal(JSON.parse(Buffer.from(grant.split(".")[0], "base64url")).kid, "nov");
  assert.match(await tollgate(["grant-key"]), /^\{"\d{4}-\d\d-\d\d":"[\w-]{43}"\}$/m);
});

test("a mistake is named, on one line, and is no crash", async () => {
  const asked = ["grant", "--key", "a", "--policies", "api"];
  for (const [args, message, keys = KEYS] of [
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
    [["grant-key", "2026"], /must not be a number: take 'k2026'/],
    [["grant", "--policies", "api"], /a grant is for one key: --key alice/],
    [["grant", "--key", "a"], /one or more policies: --policies api/],
    [["grant", "--key", "[1]", "--policies", "api"], /a list of texts .* not \[1\]/],
    [["grant", "--key", "{", "--policies", "api"], /--key is not valid JSON/],
    [[...asked, "--verbs", "reset"], /--verbs cannot have "reset": it is a list of consume, peek,/],
    [[...asked, "--expires", "1 hour"], /90s, 10m, 1h or 1d, not "1 hour"/],
    [[...asked, "--expires", "0s"], /1 to 86400 seconds, not 0/],
    [[...asked, "--expires", "86401s"], /1 to 86400 seconds, not 86401/],
    [[...asked, "--expire", "1h"], /'--expire'/],
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
    await assert.rejects(tollgate(args, { env: { TOLLGATE_GRANT_KEYS: keys } }), (error) => {
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
