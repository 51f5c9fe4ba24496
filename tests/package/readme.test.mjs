// The README is true: each block of JavaScript runs as a stranger would run it, and an expression with an arrow has the value
// behind the arrow.
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

const blocks = [...readme.matchAll(/^( *)```js\n(.*?)^ *```$/gms)].map(([, indent, text]) =>
  text.replaceAll(new RegExp(`^${indent}`, "gm"), ""),
);

test("has a block for each export", () => {
  for (const name of ["Limiter", "SharedLimiter", "limitFetch", "watch", "Client", "Twin", "Bucket", "init"]) {
    assert.ok(
      blocks.some((text) => text.includes(name)),
      name,
    );
  }
  assert.ok(blocks.join().match(/→/g).length >= 15);
});

for (const [i, text] of blocks.entries()) {
  test(`block ${i + 1}: ${text
    .split("\n")
    .find((line) => /new /.test(line))
    ?.trim()}`, async () => {
    const checked = text.replaceAll(
      /^(.+); \/\/ → (.+)$/gm,
      (_, expression, value) => `assert.deepEqual(${expression}, ${value});`,
    );
    const program = join(folder, `block-${i}.mjs`);
    writeFileSync(
      program,
      `import assert from "node:assert/strict";\n${checked.replaceAll("localhost:8787", `localhost:${tollgate.port}`)}`,
    );
    await promisify(execFile)(process.execPath, [program], { env: { ...process.env, TOKEN } });
  });
}
