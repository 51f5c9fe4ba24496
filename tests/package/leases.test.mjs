// LeasingLimiter against the real Worker, by the real clock.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "../../build/package/client.js";
import { LeasingLimiter } from "../../build/package/leases.js";
import { newToken } from "../http/credentials.mjs";
import { start } from "../http/workerd.mjs";

const DAYS = { rate: 1, period: "1day", lease: "2s" };
const server = newToken("consume", "adjust");
const tollgate = await start({
  policies: {
    many: { ...DAYS, capacity: 100_000 },
    days: { ...DAYS, capacity: 60 },
    exact: { ...DAYS, capacity: 60, lease: undefined },
    llm: {
      lease: "2s",
      limits: ["requests", "tokens"].map((name) => ({ name, rate: 1, period: "1day", capacity: 900 })),
    },
  },
  tokens: { server: server.entry },
  build: "deployed",
});
const url = `http://127.0.0.1:${tollgate.port}`;
let calls = 0;
const fetcher = {
  fetch: (...request) => {
    calls++;
    return fetch(...request);
  },
};
const client = new Client({ url, token: server.text, fetcher });

const limiters = [];
function make(options) {
  const limiter = new LeasingLimiter(client, options);
  limiters.push(limiter);
  return limiter;
}
after(() => Promise.all(limiters.map((limiter) => limiter.close())));

/** The tokens left in a budget beside all leases. */
async function remaining(budget) {
  const { remaining, limits } = await client.peek(budget);
  return limits?.map(({ remaining }) => remaining) ?? remaining;
}

test("a busy key needs few calls, and closing the limiter returns unspent tokens", async () => {
  const limiter = make({ policy: "many" });
  const budget = { policy: "many", key: "a" };
  calls = 0;
  let granted = 0;
  // A fixed number, however long they take on a busy machine.
  while (granted <= 5_000) {
    for (let times = 0; times < 20; times++) granted += Number((await limiter.consume("a")).allowed);
    await sleep(1);
  }
  assert.ok(calls < granted / 100, `${calls} calls for ${granted} decisions`);
  await limiter.close();
  assert.equal(await remaining(budget), 100_000 - granted);
  await assert.rejects(limiter.consume("a"), { name: "TollgateError", code: "closed" });
});

test("two servers grant exactly what is available, and refusals say when", async () => {
  const both = [make({ policy: "days" }), make({ policy: "days" })];
  const decisions = [];
  for (let round = 0; round < 80; round++)
    decisions.push(...(await Promise.all(both.map((limiter) => limiter.consume(["b", "c"])))));
  let granted = decisions.filter(({ allowed }) => allowed).length;
  for (const limiter of both) await limiter.close();
  const rest = make({ policy: "days" });
  for (let times = 0; times < 60; times++) granted += Number((await rest.consume(["b", "c"])).allowed);
  assert.equal(granted, 60);
  const refusal = await rest.consume(["b", "c"]);
  assert.equal(refusal.allowed, false);
  assert.ok(refusal.retryAfterMs > 86_000_000 && refusal.retryAfterMs <= 86_400_000, `${refusal.retryAfterMs}`);
  calls = 0;
  assert.equal((await rest.consume(["b", "c"])).isLocal, true);
  assert.equal(calls, 0, "a refusal is known for a moment");
});

test("an idle lease is returned, and the next request takes another", async () => {
  const limiter = make({ policy: "many" });
  const budget = { policy: "many", key: "d" };
  for (let times = 0; times < 20; times++) await limiter.consume("d");
  assert.ok((await remaining(budget)) < 100_000 - 20);
  for (let tries = 0; tries < 40 && (await remaining(budget)) !== 100_000 - 20; tries++) await sleep(100);
  assert.equal(await remaining(budget), 100_000 - 20);
  assert.equal((await limiter.consume("d")).allowed, true);
});

test("each limit has its own tokens", async () => {
  const limiter = make({ policy: "llm" });
  const decisions = [];
  for (let times = 0; times < 40; times++) decisions.push(await limiter.consume("e", { tokens: 5, requests: 1 }));
  assert.ok(decisions.every(({ allowed, tokens }) => allowed && tokens === 5));
  assert.ok(decisions.filter(({ isLocal }) => isLocal).length >= 20);
  for (const cost of [{ tokens: 1 }, { tokens: 1, request: 1 }])
    await assert.rejects(limiter.consume("e", cost), { code: "not_granted" }, "a limit is missing");
  await limiter.close();
  assert.deepEqual(await remaining({ policy: "llm", key: "e" }), [860, 700]);
});

test("what can never be granted is refused permanently, and a problem is an error", async () => {
  const never = await make({ policy: "days" }).consume("f", 61);
  assert.deepEqual([never.allowed, never.retryAt, never.maxCost], [false, Infinity, 60]);
  for (const policy of ["exact", "none"]) {
    const limiter = make({ policy });
    for (let times = 0; times < 5; times++)
      await assert.rejects(limiter.consume("f"), { name: "TollgateError", code: "not_granted" }, policy);
  }
  await assert.rejects(make({ policy: "days" }).consume("f", 1.5), { code: "cost_not_whole" });
  assert.throws(() => make({ policy: "days", maxKeys: 1 }), { code: "maxKeys_too_small" });
});

test("the number of remembered keys is bounded", async () => {
  const limiter = make({ policy: "many", maxKeys: 4 });
  for (let round = 0; round < 6; round++) await limiter.consume("busy");
  assert.equal((await limiter.consume("busy")).isLocal, true);
  for (let key = 0; key < 4; key++) await limiter.consume(`other ${key}`);
  assert.equal((await limiter.consume("busy")).isLocal, false, "forgotten");
});

test("all spellings of an address share its leases, and no other key does", async () => {
  const { networks } = JSON.parse(readFileSync(new URL("../vectors/addresses/networks.json", import.meta.url), "utf8"));
  const ipv4 = networks.filter(({ network }) => network === "192.0.2.1").map(({ ip }) => ip);
  assert.ok(ipv4.length > 5);
  const ipv6 = ["2001:db8::1", "2001:DB8::1", "2001:0db8:0:0:0:0:0:1", "2001:db8::1%eth0", "2001:db8::0.0.0.1"];
  for (const spellings of [ipv4, ipv6]) {
    const limiter = make({ policy: "many", maxKeys: 4 });
    const [ip] = spellings;
    for (let round = 0; round < 6; round++) await limiter.consume({ ip });
    for (const ip of spellings) assert.equal((await limiter.consume({ ip })).isLocal, true, ip);
    // The policy might count each address of a network.
    for (const key of [{ ip: "2001:db8::2" }, { ip: "192.0.2.2" }, ip, [ip]])
      assert.equal((await limiter.consume(key)).isLocal, false, JSON.stringify(key));
  }
});

test("anything but an address is sent unchanged, for the service to refuse", async () => {
  const sent = [];
  const asked = async (request) => {
    sent.push(request.key);
    return client.lease(request);
  };
  const limiter = new LeasingLimiter({ lease: asked }, { policy: "many" });
  limiters.push(limiter);
  const keys = [{ ip: "192.0.2.1:80" }, { ip: "" }, { ip: 1 }, { ip: "192.0.2.1", port: 80 }, null];
  for (const key of keys) await assert.rejects(limiter.consume(key), { code: "not_granted" }, JSON.stringify(key));
  const spelled = { ip: "::FFFF:192.0.2.1" };
  assert.equal((await limiter.consume(spelled)).allowed, true);
  assert.deepEqual(sent, [...keys, spelled]);
});
