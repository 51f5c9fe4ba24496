// Values that cross between Bucket and the core, in Node and in a browser: whole numbers, booleans, and an infinite longest
// wait.
import assert from "node:assert/strict";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { page, serve, visit } from "./pages.mjs";
import { tryEverything } from "./programs/boundary.mjs";

const checkout = new URL("../../", import.meta.url);
const core = "build/checked.wasm"; // with debug assertions; made by scripts/test
// The package's module has no windows from first use, and no rolling ones.
const vectors = readdirSync(new URL("tests/vectors/", checkout))
  .filter((name) => name.endsWith(".json") && !["first_use.json", "rolling.json"].includes(name))
  .map((name) => readFileSync(new URL(`tests/vectors/${name}`, checkout), "utf8"));

test("in Node", async () => {
  const { instance } = await WebAssembly.instantiate(readFileSync(new URL(core, checkout)));
  assertTried(tryEverything(instance.exports, vectors));
});

test("on a page", async () => {
  mkdirSync(new URL("build/boundary/", checkout), { recursive: true });
  writeFileSync(new URL("build/boundary/index.html", checkout), page("page.js"));
  writeFileSync(
    new URL("build/boundary/page.js", checkout),
    `import { tryEverything } from "/tests/package/programs/boundary.mjs";
    const { instance } = await WebAssembly.instantiateStreaming(fetch("/${core}"));
    globalThis.outcome = tryEverything(instance.exports, ${JSON.stringify(vectors)});`,
  );
  const { url } = await serve(fileURLToPath(checkout));
  assertTried((await visit(`${url}/build/boundary/index.html`)).outcome);
});

function assertTried({ steps, calls }) {
  assert.equal(steps.length, vectors.length);
  assert.ok(steps.every((count) => count > 0) && calls > 4000, JSON.stringify({ steps, calls }));
}
