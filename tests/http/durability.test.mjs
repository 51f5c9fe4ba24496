// Spent tokens stay spent: over kill -9 and over new numbers; and only the same key secret finds the bucket.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bearer, newToken } from "./credentials.mjs";
import { parseBucket, readRows } from "./rows.mjs";
import { NOW, start } from "./workerd.mjs";

const DAY = 86_400_000;
const ask = { policy: "api", key: "alice" };
const remaining = async (tollgate, options) => (await tollgate.peek({ ...ask, cost: 0 }, options)).body.remaining;

test("after kill -9 and a restart the budget is what the last answer reported", async () => {
  const tollgate = await start({ policies: { api: { rate: 3, period: "1s", capacity: 10 } } });
  const first = await tollgate.consume({ ...ask, cost: 9 });
  for (const [at, cost, status, left] of [
    [0, 2, 429, 1],
    [0, 1, 200, 0],
    [333, 1, 429, 0], // 999 drops
    [334, 1, 200, 0], // and the 2 left over are kept too
    [999, 2, 429, 1],
    [1_000, 2, 200, 0],
  ]) {
    await tollgate.kill();
    await tollgate.restart();
    const { status: found, body } = await tollgate.consume({ ...ask, cost }, { now: NOW + at });
    assert.deepEqual([found, body.remaining], [status, left], `cost ${cost} at ${at} ms`);
  }
  assert.equal(first.body.remaining, 1);
  await tollgate.stop();
});

test("a window that the first use opened is open after each kill -9, until its period is over", async () => {
  const window = { rate: 3, kind: "fixed_window", period: "5h", offset: "first_use" };
  const caller = newToken("consume");
  const tokens = { caller: { ...caller.entry, inline: true } };
  const tollgate = await start({ policies: { chat: window }, token: null, tokens });
  const { headers } = bearer(caller.text);
  const HOURS = 3_600_000;
  const { rate, period, ...terms } = window;
  const limits = { ...terms, rate: `${rate}/${period}` };
  for (const policy of ["chat", "inline"])
    for (const [at, cost, status, left, retryAt] of [
      [0, 1, 200, 2],
      [2 * HOURS, 2, 200, 0],
      [5 * HOURS - 1, 1, 429, 0, 5 * HOURS],
      [5 * HOURS, 3, 200, 0],
      [10 * HOURS, 0, 200, 3], // full again, and not used
      [12 * HOURS, 1, 200, 2],
      [17 * HOURS - 1, 3, 429, 2, 17 * HOURS],
      [17 * HOURS, 3, 200, 0],
    ]) {
      await tollgate.kill();
      await tollgate.restart();
      const request = { policy, key: "alice", cost, ...(policy === "inline" && { limits }) };
      const { status: found, body, text } = await tollgate.consume(request, { headers, now: NOW + at });
      const said = [found, body.remaining, body.retry_at];
      assert.deepEqual(said, [status, left, retryAt && NOW + retryAt], `cost ${cost} at ${at} ms: ${text}`);
    }
  const { body } = await tollgate.consume({ policy: "chat", key: "bob", snapshot: true }, { headers, now: NOW });
  assert.deepEqual([body.snapshot[0].kind, body.snapshot[0].at], ["first_use_window", NOW]);
  await tollgate.stop();
});

for (const [name, write_ahead] of [
  ["nothing answered is forgotten", 0],
  ["at most what is written ahead is lost", 50],
]) {
  test(`killed repeatedly under load: never more than the limit, and ${name}`, async () => {
    const CAPACITY = 10_000;
    const CALLERS = 64;
    const policy = { rate: 1, period: "1day", capacity: CAPACITY, write_ahead };
    const tollgate = await start({ policies: { api: policy } });
    let admitted = 0;
    let unanswered = 0;
    for (let kill = 0; kill < 4; kill++) {
      let answered = 0;
      let killed;
      const caller = async () => {
        // Until a request is not answered: those in flight at the kill may have been carried out.
        for (;;) {
          const answer = await tollgate.consume(ask).catch((error) => {
            if (!killed) throw error;
          });
          if (!answer) break;
          assert.equal(answer.status, 200, answer.text);
          admitted++;
          if (++answered === 80) killed = tollgate.kill();
        }
        unanswered++;
      };
      await Promise.all(Array.from({ length: CALLERS }, caller));
      await killed;
      await tollgate.restart();
      const left = await remaining(tollgate);
      assert.ok(admitted + left <= CAPACITY, `${admitted} were admitted and ${left} of ${CAPACITY} are left`);
      const lost = CAPACITY - (admitted + unanswered + left);
      assert.ok(
        lost <= write_ahead * (kill + 1),
        `${lost} lost: ${admitted} admitted, ${unanswered} not answered, ${left} left`,
      );
    }
    const left = await remaining(tollgate);
    assert.equal((await tollgate.consume({ ...ask, cost: left })).status, 200);
    assert.equal((await tollgate.consume(ask)).status, 429);
    await tollgate.stop();
  });
}

test("once spending has paused for a moment, a kill costs nothing", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day", capacity: 1_000, write_ahead: 50 } } });
  for (let i = 0; i < 5; i++) await tollgate.consume(ask);
  const stored = () => {
    const [file] = tollgate.databaseFiles();
    return parseBucket(readRows(file)["b:api"]).states[0][0] / 86_400_000n;
  };
  await tollgate.kill();
  const ahead = stored();
  assert.ok(ahead >= 945n && ahead < 995n, `${ahead} tokens are stored, fewer than are left`);
  await tollgate.restart();
  assert.equal(BigInt(await remaining(tollgate)), ahead);
  const before = Number(ahead);
  for (let i = 0; i < 5; i++) await tollgate.consume(ask);
  await new Promise((done) => setTimeout(done, 3_500)); // the flush comes after one second or two
  await tollgate.kill();
  assert.equal(stored(), BigInt(before - 5));
  await tollgate.restart();
  assert.equal(await remaining(tollgate), before - 5);
  await tollgate.stop();
});

test("a reservation survives a kill, and is then settled once", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day", capacity: 10 } } });
  const { body: opened } = await tollgate.consume({ ...ask, cost: 6, mode: "reserve" });
  await tollgate.kill();
  await tollgate.restart();
  assert.equal(await remaining(tollgate), 4);
  const request = JSON.stringify({ ...ask, reservation: opened.reservation, cost: 1 });
  const settle = () => tollgate.send({ path: "/v1/settle", body: request });
  const { status, body } = await settle();
  assert.deepEqual([status, body.remaining], [200, 9]);
  await tollgate.kill();
  await tollgate.restart();
  const again = await settle();
  assert.deepEqual([again.status, again.body.replayed, await remaining(tollgate)], [200, true, 9]);
  await tollgate.stop();
});

test("the answer to an Idempotency-Key is replayed after a kill, and takes nothing", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day", capacity: 1_000 } } });
  const request = { ...ask, cost: 10 };
  const options = { headers: { "idempotency-key": "order 4711" } };
  const { body: first } = await tollgate.consume(request, options);
  for (let i = 0; i < 3; i++) {
    await tollgate.kill();
    await tollgate.restart();
    const { status, body } = await tollgate.consume(request, options);
    assert.deepEqual([status, body], [200, { ...first, replayed: true }]);
  }
  assert.equal((await tollgate.consume({ ...request, cost: 11 }, options)).status, 422);
  await tollgate.stop();
});

test("what was spent stays spent when a policy's numbers change, and old state is never read under new numbers", async () => {
  const bucket = (rate, period, capacity) => ({ rate, period, capacity });
  const window = (rate, period, capacity) => ({ kind: "fixed_window", rate, period, capacity, offset: "0s" });
  const rows = [
    ["larger drops", bucket(10, "10s", 10), 6, bucket(1, "1m", 100), 0, 94],
    ["smaller drops", bucket(1, "1m", 100), 96, bucket(10, "10s", 10), 0, 0],
    ["a larger capacity", bucket(1, "1m", 10), 7, bucket(1, "1m", 1_000), 0, 993],
    ["a smaller capacity", bucket(1, "1m", 100), 10, bucket(1, "1m", 50), 0, 40],
    ["an empty bucket stays empty", bucket(1, "1m", 10), 10, bucket(1, "1m", 5), 0, 0],
    ["the refill until then is credited at the old rate", bucket(10, "10s", 10), 10, bucket(1, "1day", 10), 3_999, 3],
    [
      "a faster rate is not credited for the time until then",
      bucket(1, "1day", 10),
      10,
      bucket(10, "10s", 10),
      3_999,
      0,
    ],
    ["a larger window", window(5, "10s", 5), 4, window(50, "1m", 50), 0, 46],
    ["another kind", bucket(10, "10s", 10), 6, window(7, "1day", 7), 0, 1],
    ["the same numbers", bucket(10, "10s", 10), 6, bucket(10, "10s", 10), 0, 4],
    ["the same rate in other words", bucket(10, "10s", 10), 6, bucket(1, "1s", 10), 0, 4],
  ];
  const policies = (column) => Object.fromEntries(rows.map((row, index) => [`policy-${index}`, row[column]]));
  const tollgate = await start({ policies: policies(1) });
  const eachRow = async (check) => {
    for (const [index, [name, , spent, , at, left]] of rows.entries()) {
      await check(name, { policy: `policy-${index}`, key: "alice" }, { spent, left, now: NOW + at });
    }
  };
  await eachRow(async (name, ask, { spent }) => {
    assert.equal((await tollgate.consume({ ...ask, cost: spent })).status, 200, name);
  });
  await tollgate.kill();
  await tollgate.restart({ policies: policies(3) });
  await eachRow(async (name, ask, { left, now }) => {
    assert.equal((await tollgate.peek({ ...ask, cost: 0 }, { now })).body.remaining, left, name);
    // The tokens it reports can be taken, and that is durable too.
    assert.equal((await tollgate.consume({ ...ask, cost: left }, { now })).status, 200, name);
  });
  await tollgate.kill();
  await tollgate.restart();
  await eachRow(async (name, ask, { now }) => {
    assert.equal((await tollgate.peek({ ...ask, cost: 0 }, { now })).body.remaining, 0, name);
  });
  await tollgate.stop();
});

test("retry_at holds after a change of numbers, even if the object restarts in between", async () => {
  // At the old rate a token takes a day. If each restart forgot the change, the new rate would never count.
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day" } } });
  await tollgate.consume(ask);
  let now = NOW;
  for (const [verb, policy, wait] of [
    ["consume", { rate: 1, period: "10s" }, 10_000],
    ["peek", { rate: 1, period: "20s" }, 20_000],
  ]) {
    await tollgate.kill();
    await tollgate.restart({ policies: { api: policy } });
    const { status, body } = await tollgate[verb](ask, { now: ++now });
    assert.deepEqual([status, body.retry_after_ms], [429, wait], verb);
    now = body.retry_at;
    await tollgate.kill();
    await tollgate.restart();
    assert.equal((await tollgate[verb](ask, { now: body.retry_at - 1 })).status, 429, verb);
    assert.equal((await tollgate.peek(ask, { now: body.retry_at })).status, 200, verb);
    await tollgate.consume(ask, { now: body.retry_at });
    await tollgate.kill();
    await tollgate.restart({ policies: { api: { rate: 1, period: "1day" } } });
    await tollgate.consume(ask, { now: NOW });
  }
  await tollgate.stop();
});

test("a bucket that starts below full refills from its first request on, even if the object restarts in between", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "10s", capacity: 5, initial: 0 } } });
  for (const [key, verb] of [
    ["alice", "consume"],
    ["bob", "peek"],
  ]) {
    const { status, body } = await tollgate[verb]({ policy: "api", key });
    assert.deepEqual([status, body.retry_at], [429, NOW + 10_000], verb);
    for (const [at, status] of [
      [9_999, 429],
      [10_000, 200],
    ]) {
      await tollgate.kill();
      await tollgate.restart();
      assert.equal(
        (await tollgate.consume({ policy: "api", key }, { now: NOW + at })).status,
        status,
        `${verb}, ${at} ms later`,
      );
    }
  }
  await tollgate.stop();
});

test("a clock that steps back is followed, even if the object restarts in between", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "10s" } } });
  for (const [key, verb] of [
    ["alice", "consume"],
    ["bob", "peek"],
  ]) {
    await tollgate.consume({ policy: "api", key });
    const now = NOW - DAY;
    const { body } = await tollgate[verb]({ policy: "api", key }, { now });
    assert.equal(body.retry_at, now + 10_000);
    await tollgate.kill();
    await tollgate.restart();
    assert.equal((await tollgate.consume({ policy: "api", key }, { now: now + 9_999 })).status, 429, verb);
    assert.equal((await tollgate.consume({ policy: "api", key }, { now: now + 10_000 })).status, 200, verb);
  }
  await tollgate.stop();
});

test("windows without an offset open at a phase derived from the key, the same after a restart", async () => {
  const tollgate = await start({ policies: { api: { kind: "fixed_window", rate: 1, period: "1day" } } });
  const keys = Array.from({ length: 12 }, (_, i) => `user ${i}`);
  const opens = async (key) => (await tollgate.consume({ policy: "api", key })).body.reset_at;
  const before = [];
  for (const key of keys) before.push(await opens(key));
  assert.ok(new Set(before).size > 10, "they do not all open at once");
  assert.ok(before.every((at) => at > NOW && at <= NOW + DAY));
  await tollgate.kill();
  await tollgate.restart();
  const after = [];
  for (const key of keys) after.push(await opens(key));
  assert.deepEqual(after, before);
  await tollgate.stop();
});

test("a new key secret finds other buckets, a new token the same ones", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day", capacity: 10 } } });
  await tollgate.consume({ ...ask, cost: 4 });
  for (const [changes, left] of [
    [{ token: "quite another bearer token" }, 6],
    [{ keySecret: "quite another key secret" }, 10],
    [{ keySecret: "the-key-secret-of-the-tests" }, 6],
  ]) {
    await tollgate.kill();
    await tollgate.restart(changes);
    assert.equal(await remaining(tollgate), left, JSON.stringify(changes));
  }
  await tollgate.stop();
});
