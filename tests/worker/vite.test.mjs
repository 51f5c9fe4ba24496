// A Worker with Tollgate in a project of Vite with Cloudflare's plugin: developed, and built.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { KEY_SECRET, makeProject, run, serve } from "./stranger.mjs";

const POLICIES = { once: { rate: 0, period: "1day", capacity: 1, write_ahead: 0 } };
const project = makeProject("vite", {
  main: "embedded.mjs",
  classes: { KEYS: "KeyObject", COUNTER: "Counter" },
  vars: { POLICIES, TOLLGATE_KEY_SECRET: KEY_SECRET },
});
writeFileSync(
  join(project, "vite.config.mjs"),
  `import { cloudflare } from "@cloudflare/vite-plugin";
  export default { plugins: [cloudflare({ inspectorPort: false })], server: { fs: { allow: [".."] } } };`,
);

for (const [name, start] of [
  ["developed", () => serve("vite", ["dev", "--port", "0"], project)],
  ["built", () => serve("vite", ["preview", "--port", "0"], project)],
]) {
  test(`${name}, with objects on disk through a power cut`, async () => {
    if (name === "built") await run("vite", ["build"], project);
    let vite = await start();
    const ask = { policy: "once", key: name };
    const first = await vite.post("/embedded/consume", ask);
    assert.equal(first.status, 200, `${first.text}\n${vite.log}`);
    assert.equal((await vite.post("/embedded/consume", ask)).status, 429);
    assert.equal((await vite.post("/code/consume", { policy: "code", key: name })).status, 200);
    await vite.kill();
    vite = await start();
    assert.equal((await vite.post("/embedded/consume", ask)).status, 429);
    await vite.kill();
  });
}
