// docs/testing.md is correct: its tests run as written, in Vitest's plugin for Workers.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { root } from "../package/stranger.mjs";
import { folder, makeProject, run } from "./stranger.mjs";

const page = readFileSync(join(root, "docs/testing.md"), "utf8");
const [config, workers, timers] = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
const POLICY = { rate: 100, period: "1m", capacity: 200, refusal_cache: "1m" };
const WORKER = `
  import { rateLimited } from "tollgate/worker";
  export { KeyObject } from "tollgate/worker";
  export default { fetch: rateLimited({ policy: "api" }, () => new Response("passed")) };`;

/** Runs these test files, and rejects with what Vitest prints unless all of them pass. */
function vitest(name, files, policy = POLICY) {
  mkdirSync(join(folder, name), { recursive: true });
  writeFileSync(join(folder, `${name}.mjs`), WORKER);
  const project = makeProject(name, { main: `${name}.mjs`, vars: { POLICIES: { api: policy } } });
  writeFileSync(join(project, "vitest.config.js"), config.replace("wrangler.toml", "wrangler.json"));
  for (const [file, code] of Object.entries(files)) writeFileSync(join(project, file), code);
  // As written, with time for a busy machine.
  return run("vitest", ["run", "--testTimeout", "100000"], project, { env: { NO_COLOR: "1" } });
}

/** The same test again, with what `change` makes of it. */
const again = (change = (text) => text) =>
  change(`${workers}\n${workers.slice(workers.indexOf("\ntest(")).replace('test("', 'test("again, ')}`);

test("each test starts clean, and time passes for the Worker and its objects", async () => {
  const fake = timers.replace("@jest/globals", "vitest").replaceAll("jest", "vi");
  const { stdout } = await vitest("tested", { "workers.test.js": again(), "timers.test.js": fake });
  assert.match(stdout, /Tests +3 passed \(3\)/);
});

test("only an isolate that forgets starts clean after a refusal", async () => {
  const policy = { ...POLICY, period: "1day" };
  const untilRefused = (text) => text.replaceAll(/^ {2}vi\.advanceTimersByTime.*?(?=^\}\);)/gms, "");
  const { stdout } = await vitest("forgetting", { "workers.test.js": again(untilRefused) }, policy);
  assert.match(stdout, /Tests +2 passed \(2\)/);
  const remembering = again(untilRefused).replace("  forget();\n", "");
  const running = vitest("remembering", { "workers.test.js": remembering }, policy);
  await assert.rejects(running, /Tests +1 failed \| 1 passed \(2\)/);
});

test("only an isolate that forgets starts clean after a lease", async () => {
  const policy = { rate: 1, period: "1day", capacity: 1000, lease: "10s" };
  const leasing = workers
    .slice(0, workers.indexOf("\ntest("))
    .replace("  vi.useRealTimers();\n", "")
    .concat(`
    /** What is left of 1000 after as many requests as bring a lease. */
    async function leased() {
      let field;
      for (let i = 0; i < 100; i++) {
        const headers = { "CF-Connecting-IP": "192.0.2.1" };
        field = (await exports.default.fetch("https://example.com/", { headers })).headers.get("RateLimit");
      }
      return field;
    }
    test.each(["once", "again"])("%s", async () => expect(await leased()).toMatch(/^"api";r=900;/));`);
  const { stdout } = await vitest("leasing", { "workers.test.js": leasing }, policy);
  assert.match(stdout, /Tests +2 passed \(2\)/);
  const remembering = leasing.replace("  forget();\n", "");
  await assert.rejects(
    vitest("leased", { "workers.test.js": remembering }, policy),
    /Tests +1 failed \| 1 passed \(2\)/,
  );
});
