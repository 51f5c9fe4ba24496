// docs/testing.md is correct: its test for Jest runs as written. tests/worker has the rest.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { root, run, stranger } from "./stranger.mjs";

const page = readFileSync(join(root, "docs/testing.md"), "utf8");

test("Jest, with fake timers", async () => {
  const { folder } = await stranger({ beside: ["jest", "@jest/globals"] });
  const [, code] = page.match(/^```js\n(import [^\n]* "@jest\/globals";\n.*?)^```$/ms);
  const [, flag] = page.match(/`NODE_OPTIONS=(\S+) npx jest`/);
  writeFileSync(join(folder, "waits.test.js"), code);
  const jest = (env) => run("jest", ["--rootDir", folder, "--testTimeout=100000", "waits.test.js"], folder, { env });
  const { stderr } = await jest({ NODE_OPTIONS: flag });
  assert.match(stderr, /Tests: +1 passed, 1 total/);
});
