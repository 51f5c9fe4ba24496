// `tollgate/hono` on Node, in front of an app that is called as its server calls it, and once by its server. tests/worker has it on
// Cloudflare Workers, and environments.test.mjs on Deno and Bun.
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { createAdaptorServer } from "@hono/node-server";
import { Hono } from "hono";
import { rateLimit } from "../../build/package/hono.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { FakeClock, START } from "./clock.mjs";
import { fresh } from "./fresh.mjs";
import { send as sendTo } from "./servers.mjs";

/** An app with a limit of 2 a minute in front of it, and what sends it requests from an address. */
function served(options = {}, limitOf = rateLimit) {
  const limiter = new KeyedLimiter({ rate: 2, periodMs: 60_000 }, { clock: new FakeClock(START) });
  const app = new Hono();
  app.use(limitOf({ limiter, ...options }));
  app.all("*", (c) => c.text("passed", Number(c.req.header("x-status") ?? 200), { "X-Own": "kept" }));
  app.onError((error, c) => c.text(`${error.code}: ${error.message}`, 500));
  const send = (headers = {}, { method = "GET", address = "192.0.2.1" } = {}) =>
    app.request("/", { method, headers }, { incoming: { socket: { remoteAddress: address } } });
  return { app, send };
}

test("each address has a limit, and every response says what is left", async () => {
  const { send } = served();
  const passed = await send();
  assert.deepEqual([passed.status, await passed.text(), passed.headers.get("x-own")], [200, "passed", "kept"]);
  assert.equal(passed.headers.get("ratelimit"), `"default";r=1;t=30`);
  assert.equal(passed.headers.get("ratelimit-policy"), `"default";q=2;w=60;tollgate-capacity=2`);
  await send();
  const refused = await send();
  assert.deepEqual([refused.status, refused.headers.get("retry-after")], [429, "30"]);
  assert.equal(refused.headers.get("content-type"), "application/problem+json");
  assert.equal((await refused.json()).retry_at, START + 30_000);
  for (const [address, status] of [
    ["::ffff:192.0.2.1", 429],
    ["192.0.2.2", 200],
    ["2001:db8::1", 200],
    ["2001:db8::2", 200],
    ["2001:db8::3", 429],
  ])
    assert.equal((await send({}, { address })).status, status, address);
});

test("Hono's server for Node has the address of the connection", async (t) => {
  const { app } = served();
  const server = createAdaptorServer({ fetch: app.fetch });
  await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => server.close());
  const send = async (from) => (await sendTo(server.address().port, "/", { from })).status;
  const statuses = [await send("127.0.0.1"), await send("127.0.0.1"), await send("127.0.0.1"), await send("127.0.0.2")];
  assert.deepEqual(statuses, [200, 200, 429, 200]);
});

test("a browser's preflight is not counted", async () => {
  const { send } = served();
  const headers = { origin: "https://app.example", "access-control-request-method": "POST" };
  for (let i = 0; i < 3; i++) assert.equal((await send(headers, { method: "OPTIONS" })).headers.get("ratelimit"), null);
});

test("the functions in the options have Hono's context", async () => {
  const { send } = served({
    key: (c) => c.req.header("x-user"),
    cost: (c) => Number(c.req.header("x-cost") ?? 1),
    skip: (c) => c.req.header("x-internal") === "yes",
    onRefused: ({ retry_after_ms }, c) => c.text(`later, ${c.req.path}: ${retry_after_ms}`, 429),
  });
  assert.equal((await send({ "x-user": "alice", "x-cost": "2" })).headers.get("ratelimit"), `"default";r=0;t=30`);
  const refused = await send({ "x-user": "alice" });
  assert.deepEqual([refused.status, await refused.text()], [429, "later, /: 30000"]);
  assert.equal(refused.headers.get("retry-after"), "30");
  assert.equal(refused.headers.get("ratelimit"), `"default";r=0;t=30`);
  assert.equal((await send({ "x-user": "alice", "x-internal": "yes" })).headers.get("ratelimit"), null);
  assert.equal((await send({ "x-user": "bob", "x-cost": "3" })).status, 400);
});

test("if only failed requests are charged, others cost nothing", async () => {
  const { send } = served({ failedOnly: true });
  const statuses = [];
  for (const status of [200, 302, 401, 200, 500, 200]) statuses.push((await send({ "x-status": `${status}` })).status);
  assert.deepEqual(statuses, [200, 302, 401, 200, 500, 429]);
});

test("no header changes the address, and one warning says so", async (t) => {
  const warn = t.mock.method(console, "warn", () => {});
  for (const name of ["x-forwarded-for", "forwarded", "x-real-ip"]) {
    warn.mock.resetCalls();
    const { rateLimit } = await fresh("hono.js");
    const { send } = served({}, rateLimit);
    const statuses = [];
    for (const address of ["198.51.100.1", "198.51.100.2", "198.51.100.3"])
      statuses.push((await send({ [name]: address, "cf-connecting-ip": address })).status);
    await served({}, rateLimit).send({ [name]: "198.51.100.1" });
    assert.deepEqual([statuses, warn.mock.callCount()], [[200, 200, 429], 1], name);
    const [text] = warn.mock.calls[0].arguments;
    assert.match(text, /with `.*` has come from 192\.0\.2\.1.*pass a `key` function/);
    assert.equal(text.split("`")[1].toLowerCase(), name);
  }
});

test("a client that has gone before its request is read is no error, and its request does not pass", async () => {
  const errors = [];
  const { app } = served();
  app.onError((error, c) => {
    errors.push(error);
    return c.text("failed", 500);
  });
  const response = await app.request("/", {}, { incoming: { socket: { destroyed: true } } });
  assert.deepEqual([response.status, await response.text(), errors], [499, "", []]);
});

test("without a connection or a limiter, the error says what is missing", async () => {
  const { app } = served();
  const unknown = await app.request("/");
  assert.match(await unknown.text(), /^address_missing: .*app\.request\(.*remoteAddress: "192\.0\.2\.1".*`key`/);
  const code = "limiter_unknown";
  assert.throws(() => rateLimit({ policy: "api" }), { name: "TollgateError", code, message: /except on Cloudflare/ });
});
