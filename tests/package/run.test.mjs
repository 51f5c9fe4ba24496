// run: work that holds a slot of a real server, on a network where answers are delayed and lost.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { NotGrantedError, run, TollgateError } from "../../build/package/client.js";
import { start } from "../http/workerd.mjs";
import { Wire } from "./wire.mjs";

const tollgate = await start({
  policies: {
    uploads: { kind: "slots", capacity: 2, reservation_ttl: "1m" },
    api: { rate: 10, period: "10s" },
  },
});

let keys = 0;
/** A network, an unused key, and work that lasts until it is told to end. */
function world(options) {
  const wire = new Wire(tollgate, options);
  const client = wire.client();
  const budget = { policy: "uploads", key: `key ${keys++}` };
  const began = wire.now;
  const started = [];
  const start = (name, more = {}) => {
    const task = { fate: undefined };
    const work = () => {
      started.push(`${name} ${wire.now - began}`);
      return new Promise((resolve, reject) => Object.assign(task, { end: resolve, fail: reject }));
    };
    run(client, { ...budget, clock: wire.clock, ...more }, work).then(
      (value) => {
        task.fate = value;
      },
      (error) => {
        task.fate = error;
      },
    );
    return task;
  };
  const sent = () =>
    wire.sent
      .filter(({ body }) => body.key === budget.key)
      .map(({ path, sentAt }) => `${path.slice("/v1/".length)} ${sentAt - began}`);
  const free = async () => (await wire.until(client.inspect(budget))).limits[0].remaining;
  return { wire, client, budget, start, started, sent, free };
}

test("at most so many run at once, first come, first served, and nobody asks but when told", async () => {
  const { wire, start, started, sent, free } = world();
  const [first, second, third, fourth] = ["a", "b", "c", "d"].map((name) => start(name));
  await wire.pass(1_000);
  assert.deepEqual(started, ["a 50", "b 150"]);
  first.end("done");
  await wire.pass(100);
  assert.equal(first.fate, "done");
  // The third asked before that, and was told when the first would end at the latest.
  await wire.pass(58_000);
  assert.equal(started.length, 2);
  second.fail(new Error("of the work"));
  await wire.pass(5_000);
  assert.equal(second.fate.message, "of the work");
  const [, , ...later] = started;
  assert.deepEqual(
    later.map((line) => line.slice(0, 1)),
    ["c", "d"],
  );
  const asked = sent().filter((line) => line.startsWith("consume"));
  assert.equal(asked.length, 5, `${asked}`);
  // So that an answer that is lost takes no slot beside that of its repetition.
  assert.ok(wire.sent.every(({ path, headers }) => path !== "/v1/consume" || headers["idempotency-key"]));
  third.end();
  fourth.end();
  await wire.pass(1_000);
  assert.equal(await free(), 2);
});

test("whoever waits may give up: in time, or by a signal", async () => {
  const { wire, start, sent } = world();
  const [first, second] = [start("a"), start("b")];
  await wire.pass(500);
  const abort = new AbortController();
  const late = start("c", { maxWaitMs: 50_000 });
  const behind = start("d", { maxWaitMs: 50_000 });
  const aborted = start("e", { signal: abort.signal });
  await wire.pass(1_000);
  assert.ok(late.fate instanceof TollgateError && late.fate.code === "wait_too_long", "as soon as that is known");
  assert.equal(behind.fate.code, "wait_too_long");
  assert.equal(aborted.fate, undefined);
  abort.abort("gone");
  await wire.pass(0);
  assert.equal(aborted.fate, "gone");
  assert.equal(getEventListeners(abort.signal, "abort").length, 0);
  const before = sent().length;
  await wire.pass(90_000);
  assert.equal(sent().length, before);
  first.end();
  second.end();
  await wire.pass(1_000);
});

test("what no wait mends is an error at once, and the next in line has its turn", async () => {
  const { wire, start, started } = world();
  const [wrong, large, right] = [start("a", { policy: "api" }), start("b", { cost: 3 }), start("c")];
  await wire.pass(1_000);
  assert.equal(wrong.fate, undefined, "a token is reserved, as for any policy");
  assert.ok(large.fate instanceof NotGrantedError && large.fate.answer.status === 400, `${large.fate}`);
  assert.deepEqual(
    started.map((line) => line.slice(0, 1)),
    ["a", "c"],
  );
  wrong.end();
  right.end();
  await wire.pass(1_000);
  assert.deepEqual([wrong.fate, right.fate], [undefined, undefined]);
});
