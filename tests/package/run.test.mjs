// run: work that holds a slot of a real server, on a network where answers are delayed.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { Client, NotGrantedError, run, TollgateError } from "../../build/package/client.js";
import { start, TOKEN } from "../http/workerd.mjs";
import { Wire } from "./wire.mjs";

const tollgate = await start({
  policies: {
    uploads: { kind: "slots", capacity: 2, reservation_ttl: "1m" },
    paced: {
      limits: [
        { name: "at_once", kind: "slots", capacity: 2 },
        { name: "calls", rate: "1/1m", max_debt: 9 },
      ],
    },
  },
});

let keys = 0;
/** A network, an unused key, and work that lasts until it is told to end. */
function world({ policy = "uploads", throws } = {}) {
  const wire = new Wire(tollgate);
  const client = new Client({ url: "http://tollgate", token: TOKEN, fetcher: wire, throws });
  const budget = { policy, key: `key ${keys++}` };
  const began = wire.now;
  const started = [];
  const start = (name, more = {}) => {
    const task = {};
    const work = () => {
      started.push(`${name} ${wire.now - began}`);
      return new Promise((resolve, reject) => Object.assign(task, { end: resolve, fail: reject }));
    };
    run(client, { ...budget, clock: wire.clock, ...more }, work).then(
      (value) => Object.assign(task, { value }),
      (error) => Object.assign(task, { error }),
    );
    return task;
  };
  const requests = () => wire.sent.filter(({ path }) => path === "/v1/consume").map(({ sentAt }) => sentAt - began);
  const free = async () => (await wire.until(client.inspect(budget))).limits[0].remaining;
  return { wire, client, budget, start, started, requests, free };
}

test("no more run at once than there are slots, first come, first served; a refused one requests again when another ends", async () => {
  for (const throws of [false, true]) {
    const { wire, start, started, requests, free } = world({ throws });
    const [first, second, third, fourth] = ["a", "b", "c", "d"].map((name) => start(name));
    await wire.pass(1_000);
    assert.deepEqual(started, ["a 50", "b 100"]);
    assert.deepEqual(requests(), [0, 50, 100], "the fourth is behind the third");
    first.end("done");
    await wire.pass(1_000);
    assert.equal(first.value, "done");
    assert.deepEqual(started.slice(2), ["c 1100"], "after the settlement");
    second.fail(new Error("of the work"));
    await wire.pass(1_000);
    assert.equal(second.error.message, "of the work");
    assert.deepEqual(started.slice(3), ["d 2100"], "after the cancellation");
    third.end();
    fourth.end();
    await wire.pass(1_000);
    assert.equal(await free(), 2);
    assert.ok(wire.sent.every(({ path, headers }) => path !== "/v1/consume" || headers["idempotency-key"]));
  }
});

test("while other clients hold the slots, it requests at `retry_at` only", async () => {
  const { wire, client, budget, start, started, requests } = world();
  await wire.until(client.consume({ ...budget, cost: 2, mode: "reserve" }));
  const from = wire.sent.length;
  const task = start("a");
  await wire.pass(59_000);
  assert.equal(wire.sent.length - from, 1);
  await wire.pass(2_000);
  assert.deepEqual([started.length, requests().length], [1, 3]);
  task.end();
  await wire.pass(1_000);
});

test("a waiter stops at its deadline, after a last request, or at its signal", async () => {
  const { wire, start, requests } = world();
  const [first, second] = [start("a"), start("b")];
  await wire.pass(500);
  const before = requests().length;
  const late = start("c", { maxWaitMs: 5_000 });
  const behind = start("d", { maxWaitMs: 5_000 });
  const abort = new AbortController();
  const aborted = start("e", { signal: abort.signal });
  await wire.pass(4_900);
  assert.deepEqual([late.error, behind.error, requests().length - before], [undefined, undefined, 1]);
  await wire.pass(200);
  for (const { error } of [late, behind]) assert.ok(error instanceof TollgateError && error.code === "wait_too_long");
  abort.abort("gone");
  await wire.pass(100);
  assert.equal(aborted.error, "gone");
  assert.equal(getEventListeners(abort.signal, "abort").length, 0);
  const all = requests().length;
  await wire.pass(300_000);
  assert.equal(requests().length, all, "none of those that wait sends a request");
  first.end();
  second.end();
  await wire.pass(1_000);
});

test("a wait for tokens beside the slot counts, too", async () => {
  const { wire, start, started } = world({ policy: "paced" });
  const first = start("a");
  await wire.pass(100);
  const task = start("b", { maxWaitMs: 30_000 });
  await wire.pass(40_000);
  assert.equal(task.error?.code, "wait_too_long");
  assert.equal(started.length, 1);
  first.end();
  await wire.pass(1_000);
});

test("what no wait mends is an error at once, and the next in line has its turn", async () => {
  const { wire, start, started } = world();
  const [large, right] = [start("a", { cost: 3 }), start("b")];
  await wire.pass(1_000);
  assert.ok(large.error instanceof NotGrantedError && large.error.answer.status === 400, `${large.error}`);
  assert.deepEqual(started, ["b 100"]);
  right.end("done");
  await wire.pass(1_000);
  assert.equal(right.value, "done");
});
