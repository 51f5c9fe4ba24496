// Alarms delete what is no longer needed: buckets that are full again, and finally the object's whole storage.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { commits, contents } from "./database.mjs";
import { execute } from "./rows.mjs";
import { NOW, start } from "./workerd.mjs";

const around = fileURLToPath(new URL("alarmed.mjs", import.meta.url));
const HOUR = 3_600_000;
const DAY = 24 * HOUR;

const idOf = (file) => file.match(/([0-9a-f]{64})\.sqlite$/)[1];
/** In groups: one by one is slow, and all at once would open more files than many systems allow. */
async function inGroups(asks, send) {
  const answers = [];
  for (let at = 0; at < asks.length; at += 20) answers.push(...(await Promise.all(asks.slice(at, at + 20).map(send))));
  return answers;
}

/** Where the runtime keeps all alarms: an object's own file has a copy. */
const alarms = (tollgate) => tollgate.stateFiles().find((path) => path.endsWith("/metadata.sqlite"));

/** Runs the alarms of these objects at this moment. */
async function runAlarms(tollgate, files, now, headers) {
  for (let at = 0; at < files.length; at += 20) {
    const body = JSON.stringify(files.slice(at, at + 20).map(idOf));
    const answer = await tollgate.send({ path: "/alarms", body, now, headers });
    assert.equal(answer.status, 200, `${answer.text}\n${tollgate.log}`);
  }
}

test("300 keys used once leave no rows once their buckets are full again, and none is deleted earlier", async () => {
  const tollgate = await start({ policies: { api: { rate: 10, period: "1s" } }, around });
  const asks = Array.from({ length: 300 }, (_, i) => ({ policy: "api", key: `user ${i}` }));
  const before = Date.now();
  const first = await inGroups(asks, (ask) => tollgate.consume(ask));
  const after = Date.now();
  const files = tollgate.databaseFiles();
  assert.equal(files.length, asks.length);
  for (const file of files) {
    const { rows, alarmAt } = contents(file);
    assert.deepEqual(
      rows.map(([name]) => name),
      ["b:api"],
    );
    assert.ok(alarmAt >= before + DAY && alarmAt <= after + DAY, "no object wakes sooner than in a day");
  }

  await runAlarms(tollgate, files, NOW + 99);
  for (const file of files) assert.equal(contents(file).rows.length, 1);
  await runAlarms(tollgate, files, NOW + 100);
  for (const file of files) assert.deepEqual(contents(file), { rows: [], alarmAt: undefined });

  const again = await inGroups(asks, (ask) => tollgate.consume(ask, { now: NOW + DAY }));
  const moved = first.map(({ body }) => ({ ...body, now: NOW + DAY, reset_at: NOW + DAY + 100 }));
  assert.deepEqual(
    again.map(({ body }) => body),
    moved,
    "they answer like new ones",
  );
  for (const { rows, alarmAt } of files.map(contents))
    assert.ok(rows.length === 1 && alarmAt >= after + DAY, "and are kept");
  await tollgate.stop();
});

test("rows that are still needed stay, to the millisecond", async () => {
  const quick = { rate: 10, period: "1s", capacity: 10 };
  const policies = {
    quick,
    owing: { ...quick, max_debt: 30 },
    slow: { rate: 1, period: "1day", capacity: 2 },
    budget: { rate: 0, period: "1s", capacity: 10 },
    window: { kind: "fixed_window", rate: 10, period: "1h", offset: "0s" },
    kept: { ...quick, reservation_ttl: "2m" },
    refunded: { ...quick, reservation_ttl: "2m", unsettled: "refund" },
  };
  const tollgate = await start({ policies, around });
  const NEVER = undefined;
  const reserve = { cost: 4, mode: "reserve" };
  const id = { headers: { "idempotency-key": "an order" } };
  // The requests, the rows they leave, until when, and the rows that are left then.
  for (const [name, requests, names, until, then] of [
    ["a bucket that is not full yet", [["consume", { policy: "quick", cost: 7 }]], ["b:quick"], NOW + 700, []],
    ["a debt", [["charge", { policy: "owing", cost: 40 }]], ["b:owing"], NOW + 4_000, []],
    ["a window", [["consume", { policy: "window" }]], ["b:window"], (Math.floor(NOW / HOUR) + 1) * HOUR, []],
    ["a budget that never refills", [["consume", { policy: "budget" }]], ["b:budget"], NEVER],
    ["an unspent budget that never refills", [["refund", { policy: "budget", cost: 1 }]], [], NOW, []],
    ["a reservation", [["consume", { policy: "kept", ...reserve }]], ["b:kept", "r:"], NOW + 120_000 + HOUR, []],
    [
      "a reservation that is given back",
      [["consume", { policy: "refunded", ...reserve }]],
      ["b:refunded", "r:"],
      NOW + 120_000 + HOUR,
      [],
    ],
    ["an answer that may be replayed", [["consume", { policy: "slow" }, id]], ["b:slow", "i:"], NOW + HOUR, ["b:slow"]],
    [
      "a full bucket beside one that is not",
      [
        ["consume", { policy: "quick" }],
        ["consume", { policy: "slow" }],
      ],
      ["b:quick", "b:slow"],
      NOW + 100,
      ["b:slow"],
    ],
  ]) {
    const known = new Set(tollgate.databaseFiles());
    const key = name;
    for (const [verb, ask, options] of requests) {
      const { status, text } = await tollgate.send({
        path: `/v1/${verb}`,
        body: JSON.stringify({ key, ...ask }),
        ...options,
      });
      assert.equal(status, 200, `${name}: ${text}`);
    }
    const file = tollgate.databaseFiles().find((file) => !known.has(file));
    const namesNow = () =>
      contents(file).rows.map(([row]) => row.replace(/^r:[0-9a-f]{13}$|^i:[0-9a-f]{24}$/, row.slice(0, 2)));
    const [[, { policy }]] = requests;
    const inspect = async (now) =>
      (await tollgate.send({ path: "/v1/inspect", body: JSON.stringify({ policy, key }), now })).text;
    assert.deepEqual(namesNow(), names, name);

    const last = until === NEVER ? NOW + 10_000 * DAY : until - 1;
    const standing = await inspect(last);
    await runAlarms(tollgate, [file], last);
    assert.deepEqual(namesNow(), names, `${name}, a millisecond before`);
    assert.equal(await inspect(last), standing, name);
    const ringsIn = contents(file).alarmAt - Date.now();
    if (names.length > 0) assert.ok(ringsIn > 0 && ringsIn <= 30 * DAY, `${name}: it is looked at again later`);
    if (until === NEVER) continue;
    await runAlarms(tollgate, [file], until);
    assert.deepEqual(namesNow(), then, name);
    assert.equal(contents(file).alarmAt === undefined, then.length === 0, name);
  }
  await tollgate.stop();
});

test("an alarm fires by itself and empties the storage", async () => {
  const tollgate = await start({ policies: { api: { rate: 1_000, period: "1s" } }, build: "deployed" });
  await tollgate.consume({ policy: "api", key: "alice" });
  await tollgate.kill();
  const [file] = tollgate.databaseFiles();
  assert.equal(contents(file).rows.length, 1);
  // Make it due now. The runtime keeps the moment in two places, which must agree.
  const due = `${Date.now() - 1_000}000000`;
  for (const [path, change] of [
    [file, `UPDATE _cf_METADATA SET value = ${due} WHERE key = 1`],
    [alarms(tollgate), `UPDATE _cf_ALARM SET scheduled_time = ${due}`],
  ]) {
    const database = new DatabaseSync(path);
    assert.equal(database.prepare(change).run().changes, 1);
    database.close();
  }

  await tollgate.restart();
  const isEmpty = () => {
    try {
      const { rows, alarmAt } = contents(file);
      return rows.length === 0 && alarmAt === undefined;
    } catch (error) {
      if (/unable to open/.test(error.message)) return false; // it is being replaced by an empty one
      throw error;
    }
  };
  for (let tries = 0; !isEmpty(); tries++) {
    assert.ok(tries < 500, tollgate.log);
    await sleep(20);
  }
  const { body } = await tollgate.consume({ policy: "api", key: "alice" });
  assert.equal(body.remaining, 999, "and the key starts afresh");
  await tollgate.stop();
});

/** Deletes the alarm, as the runtime does after it has failed for some minutes; the Worker must be down. */
function giveUpAlarm(tollgate, file) {
  execute(file, ["DELETE FROM _cf_METADATA WHERE key = 1"]);
  execute(alarms(tollgate), ["DELETE FROM _cf_ALARM"]);
}

test("an alarm that the runtime gave up on is set again by any request, even one that writes nothing", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1day" } }, build: "deployed" });
  const ask = { policy: "api", key: "alice" };
  await tollgate.consume(ask);
  await tollgate.kill();
  const [file] = tollgate.databaseFiles();
  const { rows, alarmAt } = contents(file);

  await tollgate.restart();
  await tollgate.peek(ask);
  await tollgate.kill();
  assert.deepEqual(contents(file), { rows, alarmAt }, "an existing one is left alone");

  giveUpAlarm(tollgate, file);
  assert.equal(contents(file).alarmAt, undefined);
  await tollgate.restart();
  const before = Date.now();
  await tollgate.peek(ask);
  const isThere = () => contents(file).alarmAt !== undefined;
  for (let tries = 0; !isThere(); tries++) {
    assert.ok(tries < 500, tollgate.log);
    await sleep(20);
  }
  const found = contents(file);
  assert.deepEqual(found.rows, rows);
  assert.ok(found.alarmAt >= before + DAY && found.alarmAt <= Date.now() + DAY);
  const written = commits(file);
  await tollgate.peek(ask);
  await tollgate.peek(ask);
  assert.equal(commits(file), written, "once");
  await tollgate.stop();
});

test("a failed alarm is retried after an hour, then after twice as long each time, up to 30 days", async () => {
  const tollgate = await start({ policies: { api: { rate: 1, period: "1s" } }, around });
  await tollgate.consume({ policy: "api", key: "alice" });
  const [file] = tollgate.databaseFiles();
  const ringsIn = async (headers) => {
    const before = Date.now();
    await runAlarms(tollgate, [file], NOW, headers);
    const { alarmAt } = contents(file);
    assert.ok(alarmAt >= before && alarmAt <= Date.now() + 30 * DAY);
    return Math.floor((alarmAt - before) / HOUR);
  };
  // A restart, since rows are listed only when an object wakes.
  const failing = { "x-storage": "broken" };
  const broken = async () => {
    await tollgate.kill();
    await tollgate.restart();
    return ringsIn(failing);
  };
  const hours = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 720, 720];
  for (const expected of hours) assert.equal(await broken(), expected);
  await tollgate.kill();
  assert.equal(tollgate.log.match(/not cleaned up/g).length, hours.length, "one line each time");

  // Requests are not affected, and a success resets it.
  await tollgate.restart();
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).status, 429);
  assert.equal(await ringsIn(), 24);
  assert.deepEqual(
    contents(file).rows.map(([name]) => name),
    ["b:api"],
  );
  assert.equal(await broken(), 1);
  assert.equal(await broken(), 2);
  await tollgate.kill();
  await tollgate.restart();
  await runAlarms(tollgate, [file], NOW + 1_000);
  assert.deepEqual(contents(file), { rows: [], alarmAt: undefined }, "and leaves nothing behind");
  await tollgate.stop();
});

test("without requests for hours, a deployment takes effect at the registry's next alarm", async () => {
  const HOURS = 10 * HOUR;
  const once = (rate) => ({ policies: { api: { rate, period: "1m", capacity: 1_000 } }, registry: true, around });
  for (const isHeard of [true, false]) {
    const tollgate = await start(once(1));
    const take = (cost, now) => tollgate.consume({ policy: "api", key: "alice", cost }, { now });
    assert.equal((await take(1_000, NOW)).status, 200);
    const file = tollgate.databaseFiles().find((path) => path.includes("PolicyRegistry"));
    const ringsAt = contents(file).alarmAt;
    assert.ok(Math.abs(ringsAt - Date.now() - 300_000) < 60_000, `in five minutes: ${ringsAt - Date.now()} ms`);
    await tollgate.kill();
    await tollgate.restart(once(0));
    if (isHeard) {
      const now = NOW + 5 * 60_000;
      assert.equal((await tollgate.send({ path: "/alarms", body: '["registry"]', now })).status, 200, tollgate.log);
    }
    const { body } = await tollgate.peek({ policy: "api", key: "alice", cost: 0 }, { now: NOW + HOURS });
    assert.equal(body.remaining, isHeard ? 5 : 600, "refilled before the deployment took effect");
    await tollgate.stop();
  }
});
