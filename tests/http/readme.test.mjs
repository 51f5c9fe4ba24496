// What README.md shows works as it is written: its requests one after the other, and its policies.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { unstable_readConfig as readConfig } from "wrangler";
import { start, TOKEN } from "./workerd.mjs";

const root = new URL("../../", import.meta.url).pathname;
const readme = readFileSync(join(root, "README.md"), "utf8");
const blocks = (language) =>
  [...readme.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map(([, text]) => text);
const folder = mkdtempSync(join(tmpdir(), "tollgate-readme-"));
after(() => rmSync(folder, { recursive: true }));

test("every request succeeds with the policies of wrangler.toml", async () => {
  const { POLICIES } = readConfig({ config: join(root, "wrangler.toml") }).vars;
  const tollgate = await start({ policies: POLICIES, build: "deployed" });
  const script = blocks("sh")
    .filter((text) => /headers$|curl/m.test(text))
    .join("\n");
  const verbs = ["consume", "peek", "inspect", "settle", "cancel", "charge", "refund", "reset", "batch"];
  for (const verb of verbs) assert.ok(script.includes(`/v1/${verb} `), `${verb} is shown`);
  const bash = `set -euo pipefail
    curl() { command curl --silent --show-error --fail-with-body "$@"; echo; }
    ${script.replaceAll("localhost:8787", `localhost:${tollgate.port}`)}`;
  const output = execFileSync("bash", ["-c", bash], { cwd: folder, env: { ...process.env, TOKEN }, encoding: "utf8" });
  const answers = output
    .trim()
    .split(/\n+/)
    .map((line) => JSON.parse(line));
  assert.equal(answers.length, script.match(/^curl/gm).length);
  assert.deepEqual(
    answers.filter(({ allowed }) => allowed === false),
    [],
  );
  assert.equal(answers.at(-1).replayed, true, "the repeated request was shown last");
  await tollgate.stop();
});

test("its policies have no mistakes", async () => {
  const toml = blocks("toml").find((text) => text.includes("[vars.POLICIES"));
  const config = join(folder, "wrangler.toml");
  writeFileSync(config, `name = "readme"\nmain = "none.mjs"\ncompatibility_date = "2026-11-01"\n${toml}`);
  const tollgate = await start({ policies: readConfig({ config }).vars.POLICIES });
  assert.equal((await tollgate.send({ method: "GET", path: "/healthz" })).status, 200, tollgate.log);
  await tollgate.stop();
});
