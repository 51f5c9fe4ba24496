// The package and the Worker as they are deployed, with their real clocks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { Client, Twin } from "../../build/package/index.js";
import { LeasingLimiter } from "../../build/package/leases.js";
import { rateLimit } from "../../build/package/node.js";
import { newToken } from "../http/credentials.mjs";
import { start } from "../http/workerd.mjs";
import { serve } from "./servers.mjs";

const { entry, text: TOKEN } = newToken("consume", "adjust", "admin");
const tollgate = await start({
  policies: { api: { rate: 10, period: "2s" }, leased: { rate: 10, period: "2s", lease: "1s" } },
  tokens: { all: entry },
  token: TOKEN,
  registry: true,
  build: "deployed",
});

/** A twin, and the number of requests that it sent and that were granted. */
function counted(key) {
  const seen = { sent: 0, granted: 0 };
  const fetcher = {
    async fetch(url, init) {
      seen.sent++;
      const response = await fetch(url, init);
      if (url.endsWith("/consume") && response.status === 200) seen.granted++;
      return response;
    },
  };
  const client = new Client({ url: `http://127.0.0.1:${tollgate.port}`, token: TOKEN, fetcher });
  return { seen, twin: new Twin(client, { policy: "api", key }) };
}

test("of fifty concurrent calls ten are granted, and the others are not sent", async () => {
  const { seen, twin } = counted("alice");
  await twin.sync();
  const answers = await Promise.all(Array.from({ length: 50 }, () => twin.consume()));
  assert.deepEqual(seen, { sent: 1 + 10, granted: 10 });
  assert.deepEqual(
    answers.map(({ status, predicted = false }) => [status, predicted]),
    [...Array(10).fill([200, false]), ...Array(40).fill([429, true])],
  );
});

test("twenty callers that retry when told to are granted at the policy's rate, with few requests wasted", async () => {
  const { seen, twin } = counted("bob");
  await twin.sync();
  const began = performance.now();
  const each = async () => {
    for (;;) {
      const { status, retry_after_ms } = await twin.consume();
      if (status === 200) return;
      await setTimeout(retry_after_ms);
    }
  };
  await Promise.all(Array.from({ length: 20 }, each));
  const tookMs = performance.now() - began;
  assert.equal(seen.granted, 20);
  assert.ok(seen.sent <= 1 + 20 + 10, `${seen.sent} requests for 20`);
  assert.ok(tookMs >= 1_990, `ten more take two seconds, and not ${tookMs} ms`);
});

test("a limit in front of a server has the service's own headers, by a client and by leases", async () => {
  const client = new Client({ url: `http://127.0.0.1:${tollgate.port}`, token: TOKEN });
  const key = ({ headers }) => headers["x-user"];
  const ways = {
    api: rateLimit({ limiter: client, policy: "api", key }),
    leased: rateLimit({ limiter: new LeasingLimiter(client, { policy: "leased" }), key }),
  };
  for (const [policy, limit] of Object.entries(ways)) {
    const { send } = await serve("Express", limit);
    const headers = { "x-user": "carol" };
    const passed = await send("/", { headers });
    assert.deepEqual([passed.status, passed.text], [200, "passed"], policy);
    assert.equal(passed.headers["ratelimit-policy"], `"${policy}";q=10;w=2;tollgate-capacity=10`);
    assert.match(passed.headers.ratelimit, new RegExp(`^"${policy}";r=9;t=[12]$`));
    const later = await Promise.all(Array.from({ length: 30 }, () => send("/", { headers })));
    const refused = later.find(({ status }) => status === 429);
    assert.deepEqual([refused.body.title, refused.headers["retry-after"]], ["Quota exceeded", "1"], policy);
    assert.ok(later.filter(({ status }) => status === 200).length < 20, policy);
  }
});

test("behind leases, each key has its own limits", async () => {
  const overrides = [
    { policy: "leased", key: "more", rate: 90, period: "2s" },
    { policy: "leased", key: "all", unlimited: true },
    { policy: "leased", key: "none", banned: true },
  ];
  const url = `http://127.0.0.1:${tollgate.port}`;
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  const put = await fetch(`${url}/v1/overrides`, { method: "PUT", headers, body: JSON.stringify({ overrides }) });
  assert.equal(put.status, 200, await put.text());
  const limiter = new LeasingLimiter(new Client({ url, token: TOKEN }), { policy: "leased" });
  const { send } = await serve("http", rateLimit({ limiter, key: ({ headers }) => headers["x-user"] }));
  for (const [user, status, numbers] of [
    ["more", 200, "q=90;w=2;tollgate-capacity=90"],
    ["dave", 200, "q=10;w=2;tollgate-capacity=10"],
    ["all", 200, undefined],
    ["none", 429, "q=0;tollgate-capacity=0"],
    ["more", 200, "q=90;w=2;tollgate-capacity=90"],
  ]) {
    const answer = await send("/", { headers: { "x-user": user } });
    assert.deepEqual(
      [answer.status, answer.headers["ratelimit-policy"]],
      [status, numbers && `"leased";${numbers}`],
      user,
    );
  }
});
