// docs/recipes.md is correct: each line limits an address as its framework would call it.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import express from "express";
import { createApp, defineEventHandler, toNodeListener, toWebHandler } from "h3";
import { Bucket } from "../../build/package/index.js";
import { KeyedLimiter, rateLimit } from "../../build/package/node.js";
import { listen, send } from "./servers.mjs";
import { root, stranger } from "./stranger.mjs";

const page = readFileSync(join(root, "docs/recipes.md"), "utf8");
const [, helper] = page.match(/^```js\n(\/\/ refusal\.js\n.*?)^```$/ms);
const { folder } = await stranger({ beside: ["h3"] });

let recipes = 0;

/** The module of a framework's line, with a limiter of its own. `imports` gives what it has from the framework. */
async function recipe(framework, imports = "") {
  const [, code] = page.match(new RegExp(`^\\| ${framework} \\| \`.*?\` \\| \`(.*)\` \\|$`, "m"));
  const name = `${framework.toLowerCase()}${++recipes}`;
  writeFileSync(join(folder, `refusal-${name}.js`), helper);
  writeFileSync(join(folder, `${name}.js`), `import { refusal } from "./refusal-${name}.js";\n${imports}\n${code}\n`);
  return import(pathToFileURL(join(folder, `${name}.js`)));
}

/** Fails unless `request` gets 100 answers of 200 for an address, then a 429, and others for another address. */
async function limits(request) {
  for (let i = 0; i < 100; i++) assert.equal((await request("127.0.0.1")).status, 200);
  const refused = await request("127.0.0.1");
  assert.equal(refused.status, 429);
  const after = refused.headers["retry-after"] ?? refused.headers.get("retry-after");
  assert.equal(after, "1");
  assert.equal((await request("127.0.0.2")).status, 200);
}

const passed = () => new Response("passed");

test("Next, also without a proxy", async () => {
  const { proxy } = await recipe("Next");
  const get = (headers) => proxy(new Request("https://example.com", { headers })) ?? passed();
  await limits((ip) => get({ "x-real-ip": ip }));
  // As of `next dev` and health checks.
  for (let i = 0; i < 101; i++) assert.equal(get({}).status, 200);
});

/** As frameworks do while they prerender. */
const noAddress = () => {
  throw new Error("Cannot read clientAddress during prerendering");
};

test("the first recipe is how to match a server's windows", () => {
  const [first, then] = page.match(/^## .*/gm);
  assert.deepEqual([first, then], [`## A server's "N per window"`, "## Jest"]);
  const [, sum, windows] = page.match(/let `rate` and `capacity` add up to (\d+);.*a `fixed_window` of (\d+) /);
  const now = Date.UTC(2026, 10, 20, 12, 0, 59);
  const minute = { periodMs: 60_000 };
  const within = new Bucket(now, { rate: sum - 1, capacity: 1, ...minute });
  let most = 0;
  for (let at = now; at <= now + 60_000; at++) most += Number(within.tryConsume(at));
  assert.ok(most > 95 && most <= 100, `${most} within a minute`);
  const clock = new Bucket(now, { kind: "fixed_window", rate: Number(windows), ...minute });
  assert.deepEqual(
    [clock.tryConsume(now, 100), clock.tryConsume(now + 999), clock.tryConsume(now + 1000, 100)],
    [true, false, true],
  );
});

test("SvelteKit, also while it prerenders", async () => {
  const { handle } = await recipe("SvelteKit", "const building = false;");
  await limits((ip) => handle({ event: { getClientAddress: () => ip }, resolve: passed }));
  const { handle: prerender } = await recipe("SvelteKit", "const building = true;");
  assert.equal(prerender({ event: { getClientAddress: noAddress }, resolve: passed }).status, 200);
});

test("Astro, also while it prerenders", async () => {
  const { onRequest } = await recipe("Astro");
  await limits((clientAddress) => onRequest({ isPrerendered: false, clientAddress }, passed));
  const context = Object.defineProperty({ isPrerendered: true }, "clientAddress", { get: noAddress });
  assert.equal(onRequest(context, passed).status, 200);
});

test("Nuxt, by its server", async () => {
  const { default: middleware } = await recipe("Nuxt", `import { defineEventHandler, getRequestIP } from "h3";`);
  const app = createApp().use(middleware);
  const port = await listen(toNodeListener(app.use(defineEventHandler(() => "passed"))));
  await limits((from) => send(port, "/", { from }));
  // Calls of its own, while it renders, have no address.
  assert.equal(await (await toWebHandler(app)(new Request("https://example.com"))).text(), "passed");
});

test("React Router, behind Express", async () => {
  const [, line] = page.match(/^\| React Router \| .*? \| `(.*?)`/m);
  const app = express();
  const limiter = new KeyedLimiter({ rate: 100, periodMs: 60_000 });
  new Function("app", "rateLimit", "limiter", line)(app, rateLimit, limiter);
  app.use((_, response) => response.end("passed"));
  const port = await listen(app);
  await limits((from) => send(port, "/", { from }));
});
