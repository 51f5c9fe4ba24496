// README.md and the pages of docs work as written: their requests in order, their policies, and their
// links.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import { SignJWT } from "jose";
import { unstable_readConfig as readConfig } from "wrangler";
import { PATHS } from "./answers.mjs";
import { start, TOKEN } from "./workerd.mjs";

const AsyncFunction = (async () => {}).constructor;
const root = new URL("../../", import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), "tollgate-readme-"));
after(() => rmSync(folder, { recursive: true }));

/** The scopes of {@link TOKEN}. */
const OPS = { sha256: createHash("sha256").update(TOKEN).digest("hex"), scopes: ["consume", "adjust", "admin"] };

/** The code of a document in one language. */
function blocks(document, language) {
  const text = readFileSync(join(root, document), "utf8");
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map(([, code]) => code);
}

/** Runs all requests of a document with the policies of wrangler.toml: its script, and the answers. */
async function run(document) {
  const { POLICIES } = readConfig({ config: join(root, "wrangler.toml") }).vars;
  const tollgate = await start({ policies: POLICIES, tokens: { ops: OPS }, registry: true, build: "deployed" });
  const script = blocks(document, "sh")
    .filter((text) => /headers$|curl/m.test(text))
    .join("\n");
  const bash = `set -euo pipefail
    curl() { command curl --silent --show-error --fail-with-body "$@"; }
    ${script.replaceAll("localhost:8787", `localhost:${tollgate.port}`)}`;
  const output = execFileSync("bash", ["-c", bash], { cwd: folder, env: { ...process.env, TOKEN }, encoding: "utf8" });
  await tollgate.stop();
  const answers = output.split("\n").filter(Boolean);
  assert.equal(answers.length, script.match(/^curl/gm).length);
  return { script, answers };
}

for (const document of ["README.md", "docs/http.md", "docs/admin.md"]) {
  test(`every request of ${document} succeeds with the policies of wrangler.toml`, async () => {
    const { answers } = await run(document);
    for (const answer of answers) assert.notEqual(JSON.parse(answer).allowed, false, answer);
  });
}

/** Operators' endpoints with JSON answers, except for listening. */
const PATHS_OF_OPERATORS = [
  ...["policies", "policies/trial", "overrides", "audit"],
  ...["keys/inspect", "keys/explain", "keys/credit", "keys/reset", "keys/block"],
].map((path) => `/v1/${path}`);

for (const [document, paths] of [
  ["docs/http.md", PATHS],
  ["docs/admin.md", PATHS_OF_OPERATORS],
]) {
  test(`${document} shows every endpoint, and each answer with its actual members`, async () => {
    const { script, answers } = await run(document);
    for (const path of paths) assert.match(script, new RegExp(`${path}[ ?']`), `${path} is shown`);
    const names = (text) => new Set(text.match(/"\w+"(?=:)/g));
    let answer;
    let shown = 0;
    for (const line of script.split("\n")) {
      if (line.startsWith("curl")) answer = answers.shift();
      if (!/^# +[{"]/.test(line)) continue;
      shown++;
      for (const name of names(line)) assert.ok(names(answer).has(name), `${name} is not in ${answer}`);
    }
    assert.ok(shown >= 5, `${shown} answers are shown`);
  });
}

test("every link in the documents leads to an existing file and heading", () => {
  const prose = (document) => readFileSync(join(root, document), "utf8").replaceAll(/^ *```.*?^ *```/gms, "");
  const anchor = (heading) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, "")
      .replaceAll(" ", "-");
  const anchors = (document) => [...prose(document).matchAll(/^#+ (.*)$/gm)].map(([, heading]) => anchor(heading));
  const documents = [
    ...["README.md", "CHANGELOG.md", "www/package/README.md", "benches/README.md"],
    ...[".github/CONTRIBUTING.md", ".github/SECURITY.md"],
    ...readdirSync(join(root, "docs")).flatMap((name) => (name.endsWith(".md") ? [`docs/${name}`] : [])),
  ];
  let count = 0;
  for (const document of documents) {
    for (const [, link] of prose(document).matchAll(/\]\(([^)\s]+)\)/g)) {
      // The published package includes its licences.
      if (/^https?:/.test(link) || link.startsWith("LICENSE-")) continue;
      const [path, id] = link.split("#");
      const target = path === "" ? document : join(dirname(document), path);
      assert.ok(existsSync(join(root, target)), `${document}: ${link}`);
      if (id) assert.ok(anchors(target).includes(id), `${document}: ${link}`);
      count++;
    }
  }
  assert.ok(count > 200, `${count} links`);
});

test("the grant in docs/http.md is valid", async () => {
  const code = blocks("docs/http.md", "js").find((text) => text.includes("SignJWT"));
  const secret = randomBytes(32).toString("base64url");
  const mint = new AsyncFunction("SignJWT", "secret", "user", `${code.replace(/^import.*/m, "")}\nreturn grant;`);
  const grant = await mint(SignJWT, secret, { id: "alice" });
  const policies = { api: { rate: 1, period: "1m" } };
  const grantKeys = JSON.stringify({ "2026-11": secret });
  const tollgate = await start({ policies, token: null, grantKeys, build: "deployed" });
  const headers = { authorization: `Bearer ${grant}` };
  assert.equal((await tollgate.consume({ policy: "api" }, { headers })).status, 200);
  assert.equal((await tollgate.post("reset", { policy: "api" }, { headers })).status, 403);
  await tollgate.stop();
});

test("the policies in docs/policies.md have no errors", async () => {
  const toml = blocks("docs/policies.md", "toml").find((text) => text.includes("[vars.POLICIES"));
  const config = join(folder, "wrangler.toml");
  writeFileSync(config, `name = "readme"\nmain = "none.mjs"\ncompatibility_date = "2026-11-01"\n${toml}`);
  const tollgate = await start({ policies: readConfig({ config }).vars.POLICIES });
  assert.equal((await tollgate.send({ method: "GET", path: "/healthz" })).status, 200, tollgate.log);
  await tollgate.stop();
});
