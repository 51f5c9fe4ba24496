// A page with a grant, in Chromium, that calls the service itself: it may do what its grant says, and nothing else.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { mintGrant } from "../../build/package/mint.js";
import { start } from "../http/workerd.mjs";
import { page, serve, visit } from "./pages.mjs";

const policies = { api: { rate: 0, period: "1day", capacity: 10 }, other: { rate: 1, period: "1s" } };
const grantKeys = JSON.stringify({ k1: randomBytes(32).toString("base64url") });
const tollgate = await start({ policies, grantKeys, build: "deployed" });

// The page's own backend, which knows who is asking.
let minted = 0;
const backend = createServer(async (_, response) => {
  minted++;
  const grant = await mintGrant(grantKeys, { key: "alice", policies: ["api"], expiresInS: 600 });
  response.writeHead(200, { "access-control-allow-origin": "*" }).end(grant);
});
await new Promise((listening) => backend.listen(0, "127.0.0.1", listening));

const folder = mkdtempSync(join(tmpdir(), "tollgate-grants-"));
after(() => {
  backend.closeAllConnections();
  backend.close();
  rmSync(folder, { recursive: true });
});

test("its own key works, from another origin; other keys, policies and verbs do not; one grant serves all calls", async () => {
  writeFileSync(
    join(folder, "page.js"),
    `import { Client, Twin } from "tollgate";
    import { renewing } from "tollgate/grants";
    const token = renewing(async () => (await fetch(BACKEND)).text());
    const client = new Client({ url: SERVICE, token });
    const twin = new Twin(client, { policy: "api", key: "alice" });
    const asks = {
      own: () => client.consume({ policy: "api" }),
      named: () => client.consume({ policy: "api", key: "alice" }),
      twin: () => twin.consume(),
      anotherKey: () => client.consume({ policy: "api", key: "bob" }),
      anotherPolicy: () => client.consume({ policy: "other" }),
      reset: () => client.reset({ policy: "api" }),
      refund: () => client.refund({ policy: "api" }),
      inspect: () => client.inspect({ policy: "api" }),
    };
    const answers = await Promise.all(Object.entries(asks).map(async ([name, ask]) => [name, (await ask()).status]));
    const { remaining } = await client.peek({ policy: "api", cost: 0 });
    globalThis.outcome = { ...Object.fromEntries(answers), remaining };`,
  );
  writeFileSync(join(folder, "index.html"), page("bundle.js"));
  const entry = (name) => fileURLToPath(new URL(`../../build/package/${name}.js`, import.meta.url));
  await build({
    entryPoints: [join(folder, "page.js")],
    outfile: join(folder, "bundle.js"),
    bundle: true,
    format: "esm",
    alias: { tollgate: entry("index"), "tollgate/grants": entry("grants") },
    define: {
      BACKEND: JSON.stringify(`http://127.0.0.1:${backend.address().port}/`),
      SERVICE: JSON.stringify(`http://127.0.0.1:${tollgate.port}`),
    },
  });
  const { url } = await serve(folder);
  const { outcome } = await visit(`${url}/index.html`);
  const allowed = { own: 200, named: 200, twin: 200 };
  const forbidden = { anotherKey: 403, anotherPolicy: 403, reset: 403, refund: 403, inspect: 403 };
  assert.deepEqual(outcome, { ...allowed, ...forbidden, remaining: 7 });
  assert.equal(minted, 1);
});
