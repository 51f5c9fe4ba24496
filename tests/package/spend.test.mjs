// Client.spend: how its reservation is closed. The service here only records what it is asked.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Client, systemClock } from "../../build/package/index.js";

const REQUEST = { policy: "llm", key: "alice", cost: { requests: 1, tokens: 50 } };

/** A client, and the calls that closed its reservation. */
function make({ waitMs = 0, answer = { status: 200 } } = {}) {
  const calls = [];
  const fetcher = {
    fetch: async (url, { body }) => {
      const verb = url.split("/").at(-1);
      if (verb === "consume") {
        const granted = { policy: "llm", allowed: true, reservation: "r", now: 5, ready_at: 5 + waitMs };
        return Response.json(granted);
      }
      calls.push([verb, JSON.parse(body)]);
      return Response.json({ policy: "llm", ...answer }, { status: answer.status });
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

test("the reservation is closed once, at what was reported last", async () => {
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
    for (const answer of [{ status: 200 }, { status: 503, type: "t" }]) {
      const { client, calls } = make({ answer });
      const outcome = await client.spend(REQUEST, work).then(
        ({ result }) => result,
        (error) => error,
      );
      assert.deepEqual([outcome, calls], [result, expected], `${work} ${answer.status}`);
    }
  }
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
