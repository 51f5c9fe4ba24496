// The README is correct: each block of JavaScript runs as a stranger would run it, and an expression with an arrow has the
// value behind the arrow.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { unstable_readConfig as readConfig } from "wrangler";
import { start, TOKEN } from "../http/workerd.mjs";

const root = fileURLToPath(new URL("../../", import.meta.url));
const readme = readFileSync(join(root, "www/package/README.md"), "utf8");
const folder = mkdtempSync(join(tmpdir(), "tollgate-readme-"));
let tollgate;

before(async () => {
  mkdirSync(join(folder, "node_modules"));
  symlinkSync(join(root, "build/package"), join(folder, "node_modules/tollgate"));
  tollgate = await start({
    policies: readConfig({ config: join(root, "wrangler.toml") }).vars.POLICIES,
    build: "deployed",
  });
});
after(async () => {
  await tollgate.stop();
  rmSync(folder, { recursive: true });
});

// Blocks for Workers run in tests/worker.
const blocks = [...readme.matchAll(/^( *)```js\n(.*?)^ *```$/gms)]
  .map(([, indent, text]) => text.replaceAll(new RegExp(`^${indent}`, "gm"), ""))
  .filter((text) => !text.includes('"tollgate/worker"'));

test("has a block for each export", () => {
  for (const name of [
    "Limiter",
    "KeyedLimiter",
    "SharedLimiter",
    "limitFetch",
    "watch",
    "Client",
    "LeasingLimiter",
    "acquire",
    "Twin",
    "Bucket",
    "init",
    "rate",
    "lint",
  ]) {
    assert.ok(
      blocks.some((text) => text.includes(name)),
      name,
    );
  }
  assert.ok(blocks.join().match(/→/g).length >= 15);
});

for (const [i, text] of blocks.entries()) {
  const [title] = text.split("\n").filter((line) => /new |await /.test(line));
  test(`block ${i + 1}: ${title.trim()}`, () => runs(`block-${i}.mjs`, text));
}

test("the backend's recipe serves a twin in a page, and nothing but what it should", async () => {
  const recipe = blocks.find((text) => text.includes("async function limit"));
  await runs(
    "proxy.mjs",
    `${recipe}
    const { Twin } = await import("tollgate");
    const { fetch } = globalThis;
    const sent = [];
    globalThis.fetch = (url, init) => {
      sent.push(JSON.parse(init.body));
      return fetch(url, init);
    };
    const fetcher = { fetch: (url, init) => limit(new Request(url, init), 18) };
    const page = new Client({ url: "https://example.com/limit", token: null, fetcher });
    const twin = new Twin(page, { policy: "api", key: "user:17" });
    assert.equal((await twin.sync()).status, 200);
    assert.equal((await twin.consume(10)).status, 200);
    assert.equal((await twin.consume(10)).predicted, true);
    const fixed = { policy: "demo", key: "user:18", snapshot: true };
    assert.deepEqual(sent, [fixed, { ...fixed, cost: 10 }]);
    for (const verb of ["refund", "reset", "charge"]) {
      await assert.rejects(page[verb]({ policy: "demo", key: "user:18" }), { code: "answer_malformed" }, verb);
    }
    assert.equal(sent.length, 2);`,
  );
});

/** Runs a block as a program, with each arrow turned into an assertion. */
async function runs(name, text) {
  const checked = text
    .replaceAll(/^(.+); \/\/ → (.+)$/gm, (_, expression, value) => `assert.deepEqual(${expression}, ${value});`)
    .replaceAll("localhost:8787", `localhost:${tollgate.port}`);
  const program = join(folder, name);
  writeFileSync(program, `import assert from "node:assert/strict";\n${checked}`);
  await promisify(execFile)(process.execPath, [program], { env: { ...process.env, TOKEN } });
}
