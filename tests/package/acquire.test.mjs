// acquire: waits for a real server on a network where answers are delayed, lost and reordered.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { acquire, TollgateError } from "../../build/package/index.js";
import { commits } from "../http/database.mjs";
import { start } from "../http/workerd.mjs";
import { law } from "../random.mjs";
import { Wire } from "./wire.mjs";

const tollgate = await start({
  policies: {
    debt: { rate: 10, period: "10s", max_debt: 30 }, // one a second, up to 10, and 30 ahead
    plain: { rate: 10, period: "10s" },
    few: { rate: 10, period: "10s", max_debt: 2 },
    brief: { rate: 10, period: "10s", max_debt: 30, reservation_ttl: "1s", unsettled: "refund" },
    once: { rate: 0, period: "1s", capacity: 1, max_debt: 5 },
    deep: { rate: 1, period: "1s", max_debt: 5_000 },
    llm: {
      limits: [
        { name: "requests", rate: 10, period: "10s", max_debt: 5 },
        { name: "tokens", rate: 100, period: "1m", kind: "fixed_window", offset: "0s", max_debt: 50 },
      ],
    },
  },
});

let keys = 0;
/** A network and an unused key, of which `spent` tokens are taken first. `acquire` waits there, and its fate is recorded. */
async function world({ policy = "debt", spent = 10, ...options } = {}) {
  const wire = new Wire(tollgate, options);
  const client = wire.client();
  const budget = { policy, key: `key ${keys++}` };
  if (spent) await wire.until(client.consume({ ...budget, cost: spent }));
  const began = wire.now;
  wire.sent.length = 0;
  const wait = (more) => {
    const fate = {};
    acquire(client, { ...budget, clock: wire.clock, ...more }).then(
      (answer) => Object.assign(fate, { at: wire.now - began, answer }),
      (error) => Object.assign(fate, { at: wire.now - began, error }),
    );
    return fate;
  };
  const inspect = async () => {
    const { limits, open_reservations: open } = await wire.until(client.inspect(budget));
    return { left: limits[0].remaining - limits[0].owed, open };
  };
  return { wire, client, budget, began, acquire: wait, inspect };
}

/** The requests sent: the verb, the mode, when, and whether it had an idempotency key. */
const sent = ({ wire, began }) =>
  wire.sent.map(({ path, body, sentAt, headers }) =>
    [path.slice("/v1/".length), body.mode, sentAt - began, "idempotency-key" in headers ? "keyed" : ""]
      .filter((part) => part !== undefined && part !== "")
      .join(" "),
  );

test("takes what is available, with one request that writes no more than consume", async () => {
  const it = await world({ spent: 4 });
  const fate = it.acquire({ cost: 3 });
  await it.wire.pass(100);
  assert.deepEqual([fate.at, fate.answer.status, fate.answer.remaining], [50, 200, 3]);
  assert.deepEqual(sent(it), ["consume 0"]);
});

test("reserves what is not available yet, and closes the reservation when it is ready", async () => {
  const it = await world(); // spent 30 ms ago
  const fate = it.acquire({ cost: 5 });
  await it.wire.pass(60_000);
  // Ready 5000 ms after the tokens were spent. The answers came with the time of 30 ms before.
  assert.deepEqual(sent(it), ["consume 0", "consume reserve 50 keyed", "settle 5000"]);
  assert.deepEqual([fate.at, fate.answer.status, fate.answer.cost], [5_050, 200, 5]);
  assert.deepEqual(await it.inspect(), { left: 10, open: 0 });
});

test("clocks may differ", async () => {
  for (const [oursMs, theirsMs] of [
    [0, 3_600_000],
    [3_600_000, 0],
    [-86_400_000, 500],
  ]) {
    const it = await world({ oursMs, theirsMs });
    const fate = it.acquire({ cost: 5, maxWaitMs: 6_000 });
    await it.wire.pass(6_000);
    assert.deepEqual([fate.at, fate.answer?.status], [5_050, 200], `${oursMs} ${theirsMs}`);
  }
});

/** Its timers follow the clock when that is set. */
const followed = ({ clock }) => ({
  now: clock.now,
  at(moment, wake) {
    let cancel = () => {};
    const look = () => {
      if (clock.now() >= moment) wake();
      else cancel = clock.at(Math.min(moment, clock.now() + 10), look);
    };
    look();
    return () => cancel();
  },
});

test("a clock that is set meanwhile neither ends a wait too early nor makes requests without a pause", async () => {
  for (const setByMs of [120_000, -120_000]) {
    const it = await world({ oursMs: -setByMs });
    const fate = it.acquire({ cost: 5, clock: followed(it.wire) });
    await it.wire.pass(1_000);
    it.wire.oursMs = 0;
    // Set back, it is late until the next answer; but then there is one.
    await it.wire.pass(setByMs > 0 ? 4_200 : 124_200);
    assert.equal(fate.answer?.status, 200);
    assert.ok(fate.at >= 5_000, `${fate.at}`);

    const other = await world({ policy: "plain", oursMs: -setByMs });
    const late = other.acquire({ cost: 1, clock: followed(other.wire) });
    await other.wire.pass(500);
    other.wire.oursMs = 0;
    // Another client always asks first.
    for (let second = 0; second < 3; second++) {
      void other.client.consume(other.budget);
      await other.wire.pass(1_000);
    }
    await other.wire.pass(setByMs > 0 ? 2_000 : 122_000);
    assert.equal(late.answer?.status, 200);
    assert.ok(other.wire.sent.length < 20, `${other.wire.sent.length} requests`);
  }
});

test("first come, first served, and a call that does not wait comes last", async () => {
  const it = await world();
  const fates = [];
  for (const cost of [10, 1, 5]) {
    fates.push(it.acquire({ cost }));
    await it.wire.pass(10);
  }
  await it.wire.pass(10_500); // the first has had its 10
  assert.deepEqual(
    fates.map(({ at }) => at !== undefined),
    [true, false, false],
  );
  const { status, retry_after_ms } = await it.wire.until(it.client.consume(it.budget));
  assert.equal(status, 429);
  assert.ok(retry_after_ms > 5_000, "after the two that wait");
  await it.wire.pass(10_000);
  assert.deepEqual(
    fates.map(({ at }) => Math.round(at / 1_000)),
    [10, 11, 16],
  );
});

test("policies of several limits are waited for by their names", async () => {
  const it = await world({ policy: "llm", spent: 0 });
  const first = it.acquire({ cost: { requests: 1, tokens: 90 } });
  await it.wire.pass(100);
  const second = it.acquire({ cost: { requests: 1, tokens: 40 } });
  await it.wire.pass(120_000);
  const untilMs = 60_000 - (it.began % 60_000); // the next window
  assert.deepEqual([first.at, second.answer.cost, second.at - untilMs], [50, 40, 80]);
});

test("a cost above the capacity is reserved too", async () => {
  const it = await world({ spent: 0 });
  const fate = it.acquire({ cost: 15 });
  await it.wire.pass(10_000);
  assert.deepEqual([Math.round(fate.at / 1_000), fate.answer.status], [5, 200]);
});

test("an abort gives back what was reserved", async () => {
  const it = await world();
  const reason = new Error("no longer wanted");
  const abort = new AbortController();
  const fate = it.acquire({ cost: 5, signal: abort.signal });
  await it.wire.pass(1_000);
  assert.deepEqual(await it.inspect(), { left: -4, open: 1 });
  abort.abort(reason);
  await it.wire.pass(100);
  assert.equal(fate.error, reason);
  assert.deepEqual(await it.inspect(), { left: 1, open: 0 });
  assert.deepEqual(sent(it).slice(2), ["inspect 1000", "cancel 1050", "inspect 1150"]);
});

test("an abort in flight cancels the reservation that arrives", async () => {
  for (const ms of [60, 80]) {
    const it = await world();
    const abort = new AbortController();
    const fate = it.acquire({ cost: 5, signal: abort.signal });
    await it.wire.pass(ms); // the reservation or its answer is in flight
    abort.abort();
    await it.wire.pass(200);
    assert.equal(fate.error.name, "AbortError");
    assert.deepEqual(await it.inspect(), { left: 0, open: 0 });
  }
});

test("an abort while the answer about a reservation is lost cancels it", async (t) => {
  t.mock.method(Math, "random", () => 0);
  for (const abortedAt of [80, 300]) {
    const it = await world();
    const { travel } = it.wire;
    it.wire.travel = ({ body }) => {
      if (body.mode !== "reserve") return travel();
      it.wire.travel = travel;
      return { ...travel(), fate: "unheard" };
    };
    const abort = new AbortController();
    const fate = it.acquire({ cost: 5, signal: abort.signal });
    await it.wire.pass(abortedAt); // in flight, or while it waits for the next attempt
    abort.abort();
    await it.wire.pass(400);
    assert.equal(fate.error.name, "AbortError");
    assert.deepEqual(await it.inspect(), { left: 0, open: 0 });
  }
});

test("an abort before or during the first request ends it at once", async () => {
  const it = await world({ spent: 0 });
  const fate = it.acquire({ signal: AbortSignal.abort() });
  await setImmediate();
  assert.deepEqual([fate.error.name, it.wire.sent.length], ["AbortError", 0]);
  const abort = new AbortController();
  const other = it.acquire({ signal: abort.signal });
  await it.wire.pass(10);
  abort.abort();
  await setImmediate();
  assert.deepEqual([other.error.name, other.at], ["AbortError", 10]);
  await it.wire.pass(1_000);
});

test("a long-lived signal has no listeners afterwards", async () => {
  const it = await world();
  const { signal } = new AbortController();
  const fate = it.acquire({ cost: 5, signal });
  await it.wire.pass(1_000);
  assert.equal(getEventListeners(signal, "abort").length, 1);
  await it.wire.pass(10_000);
  assert.deepEqual([fate.answer.status, getEventListeners(signal, "abort").length], [200, 0]);
});

test("a reservation whose answer is lost is taken once, and waited for as long as it needs", async (t) => {
  t.mock.method(Math, "random", () => 0);
  for (const fate of ["lost", "unheard", "doubled"]) {
    const it = await world();
    const { travel } = it.wire;
    it.wire.travel = ({ body }) => {
      if (body.mode !== "reserve") return travel();
      it.wire.travel = travel;
      return { ...travel(), fate };
    };
    const waiting = it.acquire({ cost: 5 });
    await it.wire.pass(4_000);
    const level = await it.inspect();
    assert.deepEqual(level, { left: -1, open: 1 }, fate);
    await it.wire.pass(4_000);
    // A replay has the server's old time, but the refusal before it shows how far its clock is ahead.
    assert.ok(Math.abs(waiting.at - 5_050) <= 30, `${fate}: ${waiting.at}`);
  }
});

test("tokens taken by a lost answer are taken at most once more", async (t) => {
  t.mock.method(Math, "random", () => 0);
  const it = await world({ spent: 0 });
  const { travel } = it.wire;
  let lost = 0;
  it.wire.travel = () => ({ ...travel(), ...(lost++ < 3 && { fate: "unheard" }) });
  const fate = it.acquire({ cost: 4 });
  await it.wire.pass(10_000);
  assert.equal(fate.answer.replayed, true);
  assert.deepEqual(sent(it), ["consume 0", "consume 1050 keyed", "consume 3100 keyed", "consume 7150 keyed"]);
  assert.equal(fate.answer.remaining, 9, "8 were taken, and 7 have come back");
});

test("gives up after four attempts, with the client's error or the server's answer", async (t) => {
  t.mock.method(Math, "random", () => 0);
  const it = await world();
  it.wire.travel = () => ({ upMs: 20, downMs: 30, fate: "lost" });
  const lost = it.acquire();
  await it.wire.pass(20_000);
  assert.deepEqual([lost.error.code, lost.at, it.wire.sent.length], ["network_failed", 7_200, 4]);
  it.wire.travel = () => ({ upMs: 20, downMs: 30, fate: OVERLOADED });
  const refused = it.acquire();
  await it.wire.pass(20_000);
  assert.deepEqual([refused.error.code, refused.error.cause.status], ["not_granted", 503]);
  assert.match(refused.error.message, /^503: there is no decision/);
  const hasNoTime = it.acquire({ maxWaitMs: 900 });
  await it.wire.pass(100);
  assert.equal(hasNoTime.error.code, "not_granted");
  const tokenless = { consume: () => Promise.reject(new TollgateError("token_missing", "no token")) };
  await assert.rejects(acquire(tokenless, { ...it.budget, clock: it.wire.clock }), { code: "token_missing" });
});
const OVERLOADED = { status: 503, type: "x", title: "x", detail: "there is no decision", cause: "overloaded" };

test("without room for another idempotency key, it sends none", async () => {
  const it = await world();
  const { travel } = it.wire;
  const type = "urn:problem-type:tollgate:too-many-idempotency-keys";
  it.wire.travel = ({ headers }) => ({
    ...travel(),
    ...("idempotency-key" in headers && { fate: { status: 409, type } }),
  });
  const fate = it.acquire({ cost: 5 });
  await it.wire.pass(6_000);
  assert.deepEqual(sent(it), ["consume 0", "consume reserve 50 keyed", "consume reserve 100", "settle 5000"]);
  assert.equal(fate.answer.status, 200);
});

test("without a max_debt, it retries when the server says, and refusals write nothing", async () => {
  const it = await world({ policy: "plain" });
  const fate = it.acquire({ cost: 5 });
  await it.wire.pass(2_000);
  await it.wire.until(it.client.consume({ ...it.budget, cost: 2 })); // another is faster
  await it.wire.pass(10_000);
  assert.deepEqual(sent(it), [
    "consume 0",
    "consume reserve 50 keyed",
    "consume 2000",
    "consume 5000",
    "consume reserve 5050 keyed",
    "consume 7000",
  ]);
  assert.deepEqual([fate.at, fate.answer.status], [7_050, 200]);
});

test("a wait takes two writes, and a retry takes none", async () => {
  for (const [policy, rivals, most] of [
    ["debt", 0, 2], // the reservation, and its end
    ["plain", 0, 1],
    ["plain", 3, 4], // each of the rivals, and at last this one
  ]) {
    const known = tollgate.databaseFiles();
    const it = await world({ policy });
    const [file] = tollgate.databaseFiles().filter((file) => !known.includes(file));
    const before = commits(file);
    const fate = it.acquire({ cost: 5 });
    for (let i = 0; i < rivals; i++) {
      await it.wire.pass(4_000);
      assert.equal((await it.wire.until(it.client.consume({ ...it.budget, cost: 4 }))).status, 200);
    }
    await it.wire.pass(20_000);
    assert.equal(fate.answer.status, 200);
    assert.ok(it.wire.sent.length >= 3 + 2 * rivals);
    assert.equal(commits(file) - before, most, `${policy}, ${rivals} rivals`);
  }
});

test("once the max_debt is used up, it reserves as soon as there is room", async () => {
  const it = await world({ policy: "few" });
  const first = it.acquire({ cost: 2 });
  await it.wire.pass(100);
  const second = it.acquire({ cost: 2 });
  await it.wire.pass(10_000);
  assert.deepEqual(
    [first, second].map(({ at }) => Math.round(at / 100)),
    [21, 41],
  );
  assert.deepEqual(await it.inspect(), { left: 6, open: 0 });
});

test("behind 1000 open reservations, it waits without one", async () => {
  const it = await world({ policy: "deep", spent: 1 });
  await Promise.all(
    Array.from({ length: 1_000 }, () => tollgate.consume({ ...it.budget, mode: "reserve" }, { now: it.wire.now })),
  );
  const fate = it.acquire();
  await it.wire.pass(2_000_000);
  assert.deepEqual([Math.round(fate.at / 1_000), fate.answer.status], [1001, 200]);
});

test("rejects what would not be granted in time, or ever", async () => {
  const it = await world();
  const later = it.acquire({ cost: 5, maxWaitMs: 4_000 });
  const now = it.acquire({ maxWaitMs: 0 });
  await it.wire.pass(150);
  // After two answers: a reservation could be ready earlier than a refusal with jitter says.
  assert.deepEqual(
    [later.at, later.error.code, later.error.retryAt],
    [100, "wait_too_long", it.wire.clock.now() - 150 + 5_000],
  );
  assert.equal(now.error.code, "wait_too_long");
  const tooMuch = it.acquire({ cost: 41 });
  const unknown = it.acquire({ policy: "unknown" });
  await it.wire.pass(200);
  assert.deepEqual(
    [tooMuch.error.code, tooMuch.error.maxCost, tooMuch.error.cause.status],
    ["cost_never_granted", 40, 400],
  );
  assert.deepEqual([unknown.error.code, unknown.error.cause.status], ["not_granted", 404]);
  assert.match(unknown.error.message, /^404: /);
  const once = await world({ policy: "once", spent: 1 });
  const never = once.acquire();
  await once.wire.pass(200);
  assert.deepEqual([never.error.code, never.error.cause.status], ["not_granted", 429]);
  const wrong = once.acquire({ maxWaitMs: 0.5 });
  await setImmediate();
  assert.equal(wrong.error.code, "maxWaitMs_not_whole");
});

test("a caller that sleeps past its reservation's end settles it late or starts over, and takes nothing twice", async () => {
  for (const [sleepMs, requests] of [
    [500, 3], // woken late, but in time
    [60_000, 3], // expired, but still settled
    [4_000_000, 4], // it is forgotten
  ]) {
    const it = await world({ policy: "brief" });
    const { clock } = it.wire;
    const sleepy = { now: clock.now, at: (moment, wake) => clock.at(moment + sleepMs, wake) };
    const fate = it.acquire({ cost: 5, clock: sleepy, maxWaitMs: 10_000 });
    await it.wire.pass(5_000_000);
    assert.equal(fate.answer?.status, 200, `${fate.error}`);
    assert.equal(it.wire.sent.length, requests);
    assert.deepEqual(await it.inspect(), { left: 10, open: 0 });
  }
});

test("a settlement that fails does not undo the grant", async () => {
  const it = await world();
  const { travel } = it.wire;
  it.wire.travel = ({ path }) => ({ ...travel(), ...(path === "/v1/settle" && { fate: "lost" }) });
  const fate = it.acquire({ cost: 5 });
  await it.wire.pass(6_000);
  assert.deepEqual([fate.at, fate.answer.status, fate.answer.cost], [5_050, 200, 5]);
});

law(
  "no reservation is used before it is ready, or much later, and none is left open",
  { seed: 1, cases: 60 },
  async ({ below, pick, chance }, seen) => {
    Math.random = () => below(1_000) / 1_000; // the pauses, too
    const clocks = { oursMs: below(1e9) - 5e8, theirsMs: below(1e9) - 5e8 };
    const it = await world({ policy: pick(["debt", "few", "plain"]), spent: below(11), ...clocks });
    const { wire, client } = it;
    const slowestMs = 200;
    const isLossy = chance(0.5);
    wire.travel = ({ path }) => {
      const fate = isLossy && path === "/v1/consume" && chance(0.2) ? pick(["lost", "unheard", "doubled"]) : "";
      if (fate) seen[fate] = (seen[fate] ?? 0) + 1;
      return { upMs: 1 + below(slowestMs), downMs: 1 + below(slowestMs), fate };
    };
    const readyAt = new Map();
    const { consume } = client;
    client.consume = async (...args) => {
      const answer = await consume(...args);
      if (answer.reservation) readyAt.set(answer.reservation, answer.ready_at - clocks.theirsMs);
      return answer;
    };
    const fates = [];
    const waiting = 2 + below(7);
    for (let i = 0; i < waiting; i++) {
      const abort = new AbortController();
      const maxWaitMs = chance(0.3) ? below(20_000) : Infinity;
      fates.push(it.acquire({ cost: 1 + below(10), maxWaitMs, signal: abort.signal }));
      await wire.pass(below(1_000));
      if (chance(0.2)) abort.abort();
    }
    await wire.pass(600_000);
    for (const { answer, error } of fates) {
      const outcome = answer ? "granted" : error instanceof TollgateError ? error.code : error.name;
      seen[outcome] = (seen[outcome] ?? 0) + 1;
      assert.ok(["granted", "wait_too_long", "network_failed", "AbortError"].includes(outcome), `${error}`);
    }
    for (const { path, body, sentAt } of wire.sent.filter(({ body }) => readyAt.has(body.reservation))) {
      const lateMs = sentAt - readyAt.get(body.reservation);
      if (path === "/v1/settle") assert.ok(lateMs >= 0, `${lateMs} ms late`);
      if (path === "/v1/settle" && !isLossy) assert.ok(lateMs <= 2 * slowestMs, `${lateMs} ms late`);
    }
    // If all answers about a reservation were lost, it expires.
    const { open } = await it.inspect();
    assert.ok(isLossy || open === 0, `${open} are open`);
  },
  (seen) => {
    for (const outcome of ["granted", "wait_too_long", "AbortError", "lost", "unheard", "doubled"])
      assert.ok(seen[outcome] > 5, `${outcome}: ${seen[outcome]}`);
  },
);
