// Client.spend: how its reservation is closed. The service here only records what it is asked.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Client, systemClock } from "../../build/package/index.js";

const REQUEST = { policy: "llm", key: "alice", cost: { requests: 1, tokens: 50 } };

const TTL_MS = 3_600_000;

/** A client, and the calls about its reservation. */
function make({ waitMs = 0, answer = { status: 200 }, answers = [] } = {}) {
  const calls = [];
  const fetcher = {
    fetch: async (url, { body }) => {
      const verb = url.split("/").at(-1);
      if (verb === "consume") {
        const times = { now: 5, ready_at: 5 + waitMs, expires_at: 5 + waitMs + TTL_MS };
        const granted = { policy: "llm", allowed: true, reservation: "r", ...times };
        return Response.json(granted);
      }
      calls.push([verb, JSON.parse(body)]);
      const next = answers.shift() ?? answer;
      if (typeof next === "function") return next();
      return Response.json({ policy: "llm", ...next }, { status: next.status });
    },
  };
  return { client: new Client({ url: "https://example.com", token: "token", fetcher }), calls };
}

const closed = { policy: "llm", key: "alice", reservation: "r" };
const settled = (cost) => [["settle", cost === undefined ? closed : { ...closed, cost }]];
const cancelled = [["cancel", closed]];

/** Lets all that needs no time happen. */
async function rest() {
  for (let i = 0; i < 10; i++) await setImmediate();
}

test("the reservation is closed once, at what was reported last", async (t) => {
  t.mock.method(console, "warn", () => {});
  const error = new Error("of the work");
  const fail = () => {
    throw error;
  };
  const cost = (tokens) => ({ requests: 1, tokens });
  // biome-ignore format: a table
  const table = [
    // work                                                                       result    calls
    [() => 1,                                                                     1,        settled()],
    [(report) => { report(cost(7)); return 1; },                                  1,        settled(cost(7))],
    [async (report) => { report(cost(7)); await null; report(cost(9)); },         undefined, settled(cost(9))],
    [fail,                                                                        error,    cancelled],
    [async () => fail(),                                                          error,    cancelled],
    [(report) => { report(cost(7)); fail(); },                                    error,    settled(cost(7))],
    [async (report) => { report(cost(7)); await null; report(cost(9)); fail(); }, error,    settled(cost(9))],
    [(report) => { report(0); fail(); },                                          error,    settled(0)],
  ];
  for (const [work, result, expected] of table) {
    for (const answer of [{ status: 200 }, { status: 422, type: "t" }]) {
      const { client, calls } = make({ answer });
      const outcome = await client.spend(REQUEST, work).then(
        ({ result }) => result,
        (error) => error,
      );
      assert.deepEqual([outcome, calls], [result, expected], `${work} ${answer.status}`);
    }
  }
});

/** Stops the time of a test. Returns what lets it pass. */
function stopTime(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const [wall, monotonic] = [Date.now(), performance.now()];
  let elapsedMs = 0;
  t.mock.method(Date, "now", () => wall + elapsedMs);
  t.mock.method(performance, "now", () => monotonic + elapsedMs);
  return async (ms) => {
    elapsedMs += ms;
    t.mock.timers.tick(ms);
    await rest();
  };
}

const lost = () => Promise.reject(new TypeError("offline"));
const busy = { status: 503, type: "t" };
const forbidden = { status: 403, type: "t" };
const done = { status: 200 };

test("with an idempotency key a reservation is requested again if its answer is lost", async (t) => {
  const advance = stopTime(t);
  const refused = { status: 429, type: "t", allowed: false };
  // biome-ignore format: a table
  const table = [
    // key       answers                    attempts  at most this late  outcome
    ["k",        [done],                    1,        0,                 200],
    ["k",        [lost, done],              2,        1000,              200],
    ["k",        [busy, lost, busy, done],  4,        7000,              200],
    ["k",        [lost, refused],           2,        1000,              429],
    ["k",        [refused, done],           1,        0,                 429],
    ["k",        [forbidden, done],         1,        0,                 403],
    ["k",        Array(5).fill(busy),       4,        7000,              503],
    ["k",        Array(5).fill(lost),       4,        7000,              "network_failed"],
    [undefined,  [lost, done],              1,        0,                 "network_failed"], // a second one would be another
    [undefined,  [busy, done],              1,        0,                 503],
  ];
  for (const throws of [false, true]) {
    for (const [idempotencyKey, answers, attempts, lateMs, expected] of table) {
      const row = JSON.stringify([throws, idempotencyKey, answers.map(({ status }) => status ?? "lost")]);
      const left = [...answers];
      const keys = [];
      const fetch = async (url, { headers }) => {
        if (!url.endsWith("consume")) return Response.json({ policy: "llm" });
        keys.push(headers["idempotency-key"]);
        const next = left.shift();
        if (next === lost) return next();
        const granted = { policy: "llm", allowed: true, reservation: "r", now: 5, ready_at: 5 };
        return Response.json(next === done ? granted : { policy: "llm", ...next }, { status: next.status });
      };
      const client = new Client({ url: "https://example.com", token: "token", fetcher: { fetch }, throws });
      let outcome;
      client
        .spend(REQUEST, () => {}, { idempotencyKey })
        .then(
          ({ status }) => (outcome = status),
          (error) => (outcome = error.answer?.status ?? error.code),
        );
      await rest();
      await advance(0); // for the wait until the tokens may be used
      assert.equal(keys.length, 1, row);
      if (lateMs > 0) await advance(499);
      assert.equal(keys.length, 1, row);
      for (let ms = 0; ms < lateMs; ms += 500) await advance(500);
      await advance(0);
      assert.deepEqual([outcome, keys], [expected, Array(attempts).fill(idempotencyKey)], row);
    }
  }
});

test("an abort ends the pauses before a lost reservation is requested again, and what was reserved is cancelled", async () => {
  const table = [
    // The answers, and whether there is a reservation to cancel.
    [[lost, done], true],
    [[lost, lost], false],
    [[busy, busy], false],
  ];
  for (const [answers, isReserved] of table) {
    const abort = new AbortController();
    const verbs = [];
    const fetch = async (url) => {
      verbs.push(url.split("/").at(-1));
      if (verbs.length > answers.length) return Response.json({ policy: "llm" });
      setImmediate().then(() => abort.abort("gone"));
      const answer = answers[verbs.length - 1];
      if (answer === lost) return lost();
      if (answer === busy) return Response.json({ policy: "llm", ...busy }, { status: 503 });
      return Response.json({ policy: "llm", allowed: true, reservation: "r", now: 5, ready_at: 5 });
    };
    const client = new Client({ url: "https://example.com", token: "token", fetcher: { fetch } });
    const options = { idempotencyKey: "k", signal: abort.signal };
    await assert.rejects(
      client.spend(REQUEST, () => assert.fail("called"), options),
      (reason) => reason === "gone",
    );
    assert.deepEqual(verbs, ["consume", "consume", ...(isReserved ? ["cancel"] : [])]);
  }
});

test("what failed work has reported is settled again if that fails, and reported on the console in the end", async (t) => {
  const advance = stopTime(t);
  const warn = t.mock.method(console, "warn", () => {});
  // biome-ignore format: a table
  const table = [
    // answers                    attempts  at most this late  warnings
    [[done],                      1,        0,                 0],
    [[lost, done],                2,        1000,              0],
    [[busy, done],                2,        1000,              0],
    [[busy, lost, busy, done],    4,        7000,              0],
    [Array(5).fill(busy),         4,        7000,              1],
    [Array(5).fill(lost),         4,        7000,              1],
    [[forbidden, done],           1,        0,                 1],
    [[lost, forbidden, done],     2,        1000,              1],
  ];
  for (const [answers, attempts, lateMs, warnings] of table) {
    const row = JSON.stringify(answers.map(({ status }) => status ?? "lost"));
    warn.mock.resetCalls();
    const { client, calls } = make({ answers: [...answers] });
    const error = new Error("of the work");
    const work = (report) => {
      report(7);
      setTimeout(() => report(9)); // too late
      throw error;
    };
    let outcome;
    client.spend(REQUEST, work).catch((error) => (outcome = error));
    await rest();
    await advance(0); // for the wait until the tokens may be used
    if (lateMs > 0) await advance(499);
    assert.equal(calls.length, 1, row);
    for (let ms = 0; ms < lateMs; ms += 500) await advance(500);
    assert.equal(outcome, error, row);
    assert.deepEqual(calls, Array(attempts).fill(settled(7)[0]), row);
    assert.equal(warn.mock.callCount(), warnings, row);
    if (warnings) assert.deepEqual(warn.mock.calls[0].arguments.slice(0, 2), ["tollgate: could not settle:", 7]);
  }
});

test("a cancellation is repeated, too", async (t) => {
  const advance = stopTime(t);
  const warn = t.mock.method(console, "warn", () => {});
  for (const [answers, attempts, warnings] of [
    [[lost, done], 2, 0],
    [Array(5).fill(busy), 4, 1],
  ]) {
    const { client, calls } = make({ answers });
    let outcome;
    client.spend(REQUEST, () => Promise.reject("failed")).catch((reason) => (outcome = reason));
    await rest();
    await advance(0);
    for (let ms = 0; ms < 7000; ms += 500) await advance(500);
    assert.equal(outcome, "failed");
    assert.deepEqual(calls, Array(attempts).fill(cancelled[0]));
    assert.equal(warn.mock.callCount(), warnings);
  }
});

test("a report is as it was when it was made", async () => {
  const { client, calls } = make();
  const cost = { requests: 1, tokens: 3 };
  await client.spend(REQUEST, (report) => {
    report(cost);
    cost.tokens = 99;
  });
  assert.deepEqual(calls, settled({ requests: 1, tokens: 3 }));
});

test("what was reported before an abort is settled", async () => {
  for (const reports of [true, false]) {
    const { client, calls } = make();
    const abort = new AbortController();
    const began = Promise.withResolvers();
    const stream = (report) =>
      new Promise((_, reject) => {
        if (reports) report({ requests: 1, tokens: 30 });
        abort.signal.addEventListener("abort", () => reject(abort.signal.reason));
        began.resolve();
      });
    const spent = client.spend(REQUEST, stream, { signal: abort.signal });
    await began.promise;
    assert.deepEqual(calls, []);
    abort.abort("gone");
    await assert.rejects(spent, (reason) => reason === "gone");
    assert.deepEqual(calls, reports ? settled({ requests: 1, tokens: 30 }) : cancelled);
  }
});

test("work that ends in spite of an abort is settled, and its result returned", async () => {
  const { client, calls } = make();
  const abort = new AbortController();
  const work = (report) => {
    report({ requests: 1, tokens: 30 });
    abort.abort();
    return "done";
  };
  assert.equal((await client.spend(REQUEST, work, { signal: abort.signal })).result, "done");
  assert.deepEqual(calls, settled({ requests: 1, tokens: 30 }));
});

test("an abort before the answer to the reservation cancels it, too", async () => {
  const arrived = Promise.withResolvers();
  const answered = Promise.withResolvers();
  const calls = [];
  const fetch = async (url, { body, signal }) => {
    calls.push([url.split("/").at(-1), JSON.parse(body)]);
    if (calls.length > 1) return Response.json({ policy: "llm" });
    arrived.resolve();
    const aborted = Promise.withResolvers();
    signal.addEventListener("abort", () => aborted.reject(signal.reason));
    await Promise.race([answered.promise, aborted.promise]);
    return Response.json({ policy: "llm", allowed: true, reservation: "r", now: 5, ready_at: 5 });
  };
  const client = new Client({ url: "https://example.com", token: "token", fetcher: { fetch } });
  const abort = new AbortController();
  const spent = client.spend(REQUEST, () => assert.fail("called"), { signal: abort.signal });
  await arrived.promise;
  abort.abort("gone");
  answered.resolve();
  await assert.rejects(spent, (reason) => reason === "gone");
  assert.deepEqual(calls.slice(1), cancelled);
});

test("after an abort nothing is reserved, and a refusal is not returned", async () => {
  const { client, calls } = make();
  const signal = AbortSignal.abort("gone");
  await assert.rejects(
    client.spend(REQUEST, () => assert.fail("called"), { signal }),
    (reason) => reason === "gone",
  );
  assert.deepEqual(calls, []);
  const abort = new AbortController();
  const fetch = async () => {
    abort.abort("gone");
    return Response.json({ policy: "llm", allowed: false }, { status: 429 });
  };
  const refusing = new Client({ url: "https://example.com", token: "token", fetcher: { fetch } });
  await assert.rejects(
    refusing.spend(REQUEST, () => {}, { signal: abort.signal }),
    (reason) => reason === "gone",
  );
});

test("an abort during the wait cancels, and calls no work", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { client, calls } = make({ waitMs: 3_600_000 });
  const abort = new AbortController();
  const spent = client.spend(REQUEST, () => assert.fail("called"), { signal: abort.signal });
  spent.catch(() => {});
  await rest();
  assert.deepEqual(calls, []);
  abort.abort("gone");
  await assert.rejects(spent, (reason) => reason === "gone");
  assert.deepEqual(calls, cancelled);
  t.mock.timers.tick(3_600_000);
  await rest();
});

test("nothing listens to the signal afterwards", async () => {
  const { signal } = new AbortController();
  const { client } = make();
  await client.spend(REQUEST, () => {}, { signal });
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("the wait ends in time although the machine has slept", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] }); // which stop meanwhile, as does the monotonic clock
  let wall = Date.now();
  t.mock.method(Date, "now", () => wall);
  const { client } = make({ waitMs: 3_600_000 });
  const began = [];
  const spent = client.spend(REQUEST, () => began.push("work"));
  await rest();
  wall += 3_600_000 + 1000;
  await rest();
  assert.deepEqual(began, []);
  systemClock.now();
  await spent;
  assert.deepEqual(began, ["work"]);
});

test("while the work lasts, the reservation is extended at half of its time, and tried again as that runs out", async (t) => {
  const advance = stopTime(t);
  const warn = t.mock.method(console, "warn", () => {});
  const extended = (now) => ({ status: 200, allowed: true, now, expires_at: now + TTL_MS });
  const minutes = 60_000;
  // biome-ignore format: a table
  const table = [
    // answers                                                  extended after these minutes  warned  until
    [[extended(1), extended(2)],                                [30, 60, 90],                 false,  100],
    [[lost, busy, extended(3)],                                 [30, 45, 52.5, 82.5],         false,  90],
    [[{ status: 404, type: "t" }],                              [30],                         true,   100],
    [[forbidden],                                               [30],                         true,   100],
    [Array(20).fill(lost),                                      [30, 45, 52.5, 56.25],        true,   100],
  ];
  for (const [answers, moments, isWarned, untilMin] of table) {
    warn.mock.resetCalls();
    const { client, calls } = make({ answers: [...answers], answer: extended(9) });
    let finish;
    const spent = client.spend(
      REQUEST,
      () =>
        new Promise((resolve) => {
          finish = resolve;
        }),
    );
    await rest();
    const seen = [];
    for (let ms = 0; ms < untilMin * minutes; ms += minutes / 4) {
      await advance(minutes / 4);
      while (seen.length < calls.length) seen.push((ms + minutes / 4) / minutes);
    }
    assert.ok(calls.every(([verb, body]) => verb === "extend" && body.reservation === "r" && body.cost === undefined));
    assert.deepEqual(seen.slice(0, moments.length), moments);
    assert.equal(warn.mock.callCount() > 0, isWarned, `${moments}`);
    finish();
    await spent;
    const count = calls.length;
    await advance(TTL_MS);
    assert.deepEqual([calls.length, calls.at(-1)[0]], [count, "settle"], "nothing is extended afterwards");
  }
});

test("work that fails is not extended while its reservation is closed", async (t) => {
  const advance = stopTime(t);
  t.mock.method(console, "warn", () => {});
  const { client, calls } = make({ answer: busy });
  let fail;
  const spent = client.spend(
    REQUEST,
    () =>
      new Promise((_, reject) => {
        fail = reject;
      }),
  );
  spent.catch(() => {});
  await advance(TTL_MS / 2 - 1_000);
  fail(new Error("of the work"));
  for (let second = 0; second < 10; second++) await advance(1_000);
  assert.deepEqual(
    calls.map(([verb]) => verb),
    ["cancel", "cancel", "cancel", "cancel"],
  );
  await assert.rejects(spent, { message: "of the work" });
});
