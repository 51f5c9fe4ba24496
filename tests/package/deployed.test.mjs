// The package and the Worker as they are deployed, with their real clocks.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { Client, Twin } from "../../build/package/index.js";
import { start, TOKEN } from "../http/workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "2s" } }, build: "deployed" });

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
