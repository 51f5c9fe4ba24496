// Twin: waiting for the server's grant, and pauses.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Client, limitFetch, Twin, watch } from "../../build/package/index.js";
import { checked } from "./buckets.mjs";
import { FakeClock } from "./clock.mjs";
import { asked, statuses, synced } from "./twins.mjs";

/** Records when calls of `acquire` are granted, in ms from now, or the codes of their errors. */
function following({ wire, twin }) {
  const began = wire.now;
  const fates = [];
  const acquire = (options) => {
    const place = fates.push(undefined) - 1;
    twin.acquire(options).then(
      ({ status }) => (fates[place] = [status, wire.now - began]),
      (error) => (fates[place] = error.code ?? error),
    );
  };
  return { fates, acquire };
}

test("acquire asks when the server will grant, in the order of the calls", async () => {
  const it = await synced();
  const { fates, acquire } = following(it);
  acquire({ cost: 8 });
  for (const cost of [5, 1, 2]) acquire({ cost });
  await it.wire.pass(20_000);
  // 2 are left; 3 more after 3 s. Then one each second.
  assert.deepEqual(fates, [
    [200, 50],
    [200, 3_050],
    [200, 4_050],
    [200, 6_050],
  ]);
  assert.deepEqual(statuses(it.wire), [200, 200, 200, 200], "none was refused");
});

test("acquire waits again if others took the tokens", async () => {
  const it = await synced();
  const { fates, acquire } = following(it);
  await it.wire.until(it.other.consume({ ...it.ask, cost: 10 }));
  acquire({ cost: 2 });
  await it.wire.pass(10_000);
  assert.deepEqual([fates.length, fates[0][0], statuses(it.wire)], [1, 200, [200, 429, 200]]);
});

test("acquire without snapshots waits as long as the server says", async () => {
  const clock = new FakeClock();
  const sent = [];
  const fetcher = {
    fetch: async () => {
      sent.push(clock.now());
      const status = sent.length < 3 ? 429 : 200;
      return Response.json({ policy: "api", allowed: status === 200, retry_after_ms: 700 }, { status });
    },
  };
  const twin = new Twin(new Client({ url: "/limit", token: null, fetcher }), { policy: "api", key: "a", clock });
  const fate = clock.follow(twin.acquire());
  const began = clock.now();
  await clock.advance(2_000);
  assert.deepEqual([sent.map((moment) => moment - began), fate.at - began], [[0, 700, 1400], 1400]);
});

test("acquire rejects what will not be granted in time, or not at all, and leaves the queue", async () => {
  const it = await synced();
  const { fates, acquire } = following(it);
  const reason = new Error("no longer wanted");
  const abort = new AbortController();
  acquire({ cost: 10 });
  acquire({ cost: 5, maxWaitMs: 4_999 });
  acquire({ cost: 5, signal: abort.signal });
  acquire({ cost: 1, maxWaitMs: 2_000 });
  acquire({ signal: AbortSignal.abort(reason) });
  acquire({ maxWaitMs: 0.5 });
  await setImmediate();
  assert.deepEqual(fates.slice(4), [reason, "maxWaitMs_not_whole"]);
  assert.equal(fates[1], "wait_too_long", "at once, since it is first");
  await it.wire.pass(1_000);
  abort.abort(reason);
  await it.wire.pass(5_000);
  assert.deepEqual(fates.slice(0, 4), [[200, 50], "wait_too_long", reason, [200, 1_050]]);
  acquire({ cost: 11 }); // 400
  await it.wire.pass(100);
  assert.equal(fates[6], "not_granted");
  const error = await it.wire.until(it.twin.acquire({ cost: 11 }).catch((error) => error));
  assert.deepEqual([error.cause.status, error.cause.max_cost], [400, 10]);
});

test("acquire knows no priorities, and says so", async () => {
  const it = await synced();
  const { fates, acquire } = following(it);
  for (const priority of [1, -1, 0.5]) acquire({ priority });
  acquire({ priority: 0 });
  await it.wire.pass(100);
  assert.deepEqual(fates, ["priority_too_large", "priority_too_small", "priority_too_large", [200, 50]]);
});

test("acquire rejects with the client's error, and those behind go on", async () => {
  const it = await synced();
  const { travel } = it.wire;
  const { fates, acquire } = following(it);
  it.wire.travel = () => ({ ...travel(), fate: "lost" });
  acquire();
  await setImmediate();
  it.wire.travel = travel;
  acquire();
  await it.wire.pass(100);
  assert.deepEqual(fates, ["network_failed", [200, 50]]);
});

test("a call that waits asks again when the twin no longer trusts itself", async () => {
  const it = await synced({ policy: "one", trustMs: 5_000 });
  await it.wire.until(it.twin.consume());
  const { fates, acquire } = following(it);
  acquire();
  await it.wire.until(it.other.reset(it.ask));
  await it.wire.pass(10_000);
  assert.deepEqual(fates, [[200, 5_000]]);
});

test("watch wakes when the twin no longer trusts itself", async () => {
  const { wire, twin } = await synced({ policy: "one", trustMs: 5_000 });
  const store = watch(twin);
  const seen = [];
  await wire.until(twin.consume());
  const sentAt = wire.now - 50;
  const stop = store.subscribe(() => seen.push([wire.now - sentAt, store.get().ok]));
  assert.equal(store.get().ok, false);
  await wire.pass(60_000);
  assert.deepEqual(seen, [[5_000, true]]);
  stop();
});

test("a pause refuses and delays, and can be ended", async () => {
  const it = await synced();
  const { wire, twin } = it;
  const { fates, acquire } = following(it);
  twin.pause(wire.now + 3_000);
  twin.pause(wire.now + 1_000);
  assert.deepEqual(checked(twin).peek(), { allowed: false, retryAt: wire.now + 3_000 });
  const { status, predicted, retry_after_ms } = await twin.consume();
  assert.deepEqual([status, predicted, retry_after_ms], [429, true, 3_000]);
  acquire();
  await wire.pass(5_000);
  assert.deepEqual(fates, [[200, 3_050]]);
  twin.pause(wire.now + 3_600_000);
  acquire();
  await wire.pass(1_000);
  twin.resume();
  await wire.pass(100);
  assert.deepEqual(fates[1], [200, 6_050]);
  assert.throws(() => twin.pause(0.5), { code: "moment_not_whole" });
});

test("limitFetch waits for a twin, and pauses it", async () => {
  const { wire, twin } = await synced();
  const sentAt = [];
  const began = wire.now;
  const fetch = async () => {
    sentAt.push(wire.now - began);
    return sentAt.length > 1
      ? new Response("fine")
      : new Response(null, { status: 429, headers: { "retry-after": "2" } });
  };
  const response = await wire.until(limitFetch(twin, { fetch, jitterMs: 0 })("https://example.com/"));
  assert.equal(await response.text(), "fine");
  assert.deepEqual(sentAt, [50, 2_100]);
  assert.equal(asked(wire), 2);
});

test("a cost above a capacity is sent to the server, which rejects it", async () => {
  const { wire, twin } = await synced({ policy: "llm" });
  for (const cost of [101, { requests: 4, tokens: 0 }]) {
    assert.equal(twin.peek(cost).allowed, false);
    const { status, predicted } = await wire.until(twin.consume(cost));
    assert.deepEqual([status, predicted], [400, undefined]);
  }
});

test("20 000 answers take no memory, even if nothing is ever collected", () => {
  const url = (name) => new URL(`../../build/package/${name}`, import.meta.url).href;
  const script = `
    Response.json({}); // the platform needs it, once
    delete globalThis.FinalizationRegistry;
    const { Client, Twin } = await import("${url("index.js")}");
    const module = await import("${url("core.js")}");
    let now = 1_700_000_000_000;
    const limit = { kind: "token_bucket", rate: 10, period_ms: 1000, capacity: 10, max_debt: 0 };
    const fetcher = {
      fetch: async () => Response.json({ policy: "api", now, snapshot: [{ ...limit, tokens: 3, drops: 0, at: now }] }),
    };
    const client = new Client({ url: "/limit", token: null, fetcher });
    const twin = new Twin(client, { policy: "api", key: "a", clock: { now: () => now, at: () => () => {} } });
    await twin.sync();
    const { byteLength } = module.core.memory.buffer;
    for (let i = 0; i < 20_000; i++, now++) await twin.consume();
    console.log(module.core.memory.buffer.byteLength - byteLength, twin.remaining());`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", script], {
    encoding: "utf8",
  });
  assert.deepEqual([stdout.trim(), stderr], ["0 3", ""]);
});

test("of a rolling window a twin knows when all of it is back", async () => {
  const { wire, twin } = await synced({ policy: "rolling" });
  const began = wire.now;
  for (const ms of [0, 4_000, 8_000]) {
    await wire.to(began + ms);
    assert.equal((await wire.until(twin.consume())).status, 200);
  }
  const { status, predicted, retry_after_ms } = await twin.consume();
  assert.deepEqual([status, predicted], [429, true]);
  const backAt = wire.now + retry_after_ms;
  assert.ok(backAt >= began + 18_000 && backAt < began + 19_000, `after ${backAt - began} ms`);
  assert.equal((await wire.until(twin.acquire({ cost: 2 }))).status, 200);
  assert.ok(wire.now >= backAt, `after ${wire.now - began} ms`);
});
