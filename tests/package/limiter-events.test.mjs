// Limiter: its events, and what listeners may do.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { START } from "./clock.mjs";
import { allow, make, never, SECOND, wait } from "./limiters.mjs";

test("events come in order and are complete", async () => {
  const { limiter, events, acquire, to } = make({ rate: 1, periodMs: 1000 }, { maxQueue: 1 });
  const controller = new AbortController();
  const expectedEvents = [];
  const expect = (...expected) => {
    expectedEvents.push(...expected);
    assert.deepEqual(events, expectedEvents);
  };
  limiter.peek();
  expect();
  limiter.tryConsume(0);
  expect({ type: "allow", cost: 0, decision: allow(0, 0) });
  limiter.tryConsume();
  expect({ type: "allow", cost: 1, decision: allow(1, 0) });
  limiter.tryConsume(1);
  expect({ type: "refuse", cost: 1, decision: wait(1000) });
  limiter.tryConsume(2);
  expect({ type: "refuse", cost: 2, decision: never(1) });
  limiter.reserve();
  expect({ type: "refuse", cost: 1, decision: wait(1000) });
  acquire({ signal: controller.signal });
  expect({ type: "queue", cost: 1, waiting: 1 });
  limiter.tryConsume();
  expect({ type: "refuse", cost: 1, decision: wait(2000) });
  acquire({ cost: 0 }); // one too many
  expect({ type: "drop", cost: 0, reason: events.at(-1).reason });
  assert.equal(events.at(-1).reason.code, "queue_full");
  acquire({ cost: 2 });
  expect();
  controller.abort("enough");
  expect({ type: "drop", cost: 1, reason: "enough" });
  acquire({ maxWaitMs: 5 });
  expect({ type: "drop", cost: 1, reason: events.at(-1).reason });
  assert.equal(events.at(-1).reason.code, "wait_too_long");
  acquire();
  expect({ type: "queue", cost: 1, waiting: 1 });
  limiter.pause(START + 1500);
  expect({ type: "change" });
  await to(1500);
  expect({ type: "allow", cost: 1, decision: allow(1, 1500) });
  for (const change of [
    () => limiter.charge(),
    () => limiter.refund(),
    () => limiter.reset(),
    () => limiter.restore(limiter.save()),
    () => limiter.pause(0),
  ]) {
    change();
    expect({ type: "change" });
  }
  acquire();
  expect({ type: "allow", cost: 1, decision: allow(1, 1500) });
  limiter.reset();
  expect({ type: "change" });
  acquire();
  acquire();
  expect({ type: "allow", cost: 1, decision: allow(1, 1500) }, { type: "queue", cost: 1, waiting: 1 });
  limiter.refund();
  expect({ type: "change" }, { type: "allow", cost: 1, decision: allow(1, 1500) });
});

test("the drop of the oldest is reported before the admission of the new call", () => {
  const { events, acquire } = make({ ...SECOND, initial: 0 }, { maxQueue: 1, overflow: "drop_oldest" });
  acquire({ cost: 1 });
  acquire({ cost: 0 });
  assert.deepEqual(
    events.map(({ type, cost, waiting }) => [type, cost, waiting]),
    [
      ["queue", 1, 1],
      ["drop", 1, undefined],
      ["allow", 0, undefined],
    ],
  );
});

test("a listener added twice is called twice, until it is removed", () => {
  const { limiter } = make(SECOND);
  let heard = 0;
  const listener = () => (heard += 1);
  const offs = [limiter.on(listener), limiter.on(listener)];
  limiter.tryConsume();
  assert.equal(heard, 2);
  offs[0]();
  offs[0]();
  limiter.tryConsume();
  assert.equal(heard, 3);
  offs[1]();
  limiter.tryConsume();
  assert.equal(heard, 3);
});

test("a listener added by a listener hears of the next event, and one removed by it of none", () => {
  const { limiter } = make(SECOND);
  const heard = [];
  const once = (name, f) => {
    const off = limiter.on(() => {
      off();
      heard.push(name);
      f();
    });
    return off;
  };
  const again = () => once("again", again);
  again();
  once("first", () => removed());
  const removed = once("removed", () => {});
  limiter.tryConsume();
  limiter.tryConsume();
  assert.deepEqual(heard, ["again", "first", "again"]);
});

test("a listener may use the limiter", async () => {
  const { clock, limiter, events, acquire, admitted, to } = make({ ...SECOND, capacity: 2, initial: 0 });
  let more = 3;
  limiter.on(({ type }) => {
    limiter.peek();
    if (type === "allow" && more-- > 0) acquire();
  });
  acquire();
  acquire();
  await to(9000);
  assert.deepEqual(admitted(), [1000, 2000, 3000, 4000, 5000]);
  assert.deepEqual([limiter.waiting, clock.timers], [0, []]);
  assert.deepEqual(events.filter(({ type }) => type === "allow").length, 5);
});

test("there is at most one timer, whatever a listener does", async () => {
  const { clock, limiter, acquire, to } = make({ ...SECOND, capacity: 2, initial: 0 });
  let most = 0;
  limiter.on(({ type }) => {
    if (type === "allow") limiter.charge(0);
    most = Math.max(most, clock.timers.length);
  });
  for (let i = 0; i < 4; i++) acquire();
  for (let ms = 0; ms < 6000; ms += 500) {
    await to(ms);
    most = Math.max(most, clock.timers.length);
  }
  assert.equal(most, 1);
});

test("a drop caused by a listener of another drop affects no other waiter", async () => {
  const { limiter, acquire, admitted, to } = make({ ...SECOND, capacity: 5, initial: 0 });
  const group = new AbortController();
  acquire({ maxWaitMs: 1000, signal: group.signal });
  acquire({ maxWaitMs: 2000, signal: group.signal });
  acquire(); // belongs to no group
  limiter.on(({ type }) => type === "drop" && group.abort("all or none"));
  limiter.pause(START + 3000);
  assert.equal(limiter.waiting, 1);
  await to(9000);
  assert.deepEqual(admitted().slice(2), [3000]);
});

test("a listener that throws stops no waiter, and its error is reported", async () => {
  const program = `
    import { Limiter } from ${JSON.stringify(new URL("../../build/package/index.js", import.meta.url))};
    process.on("unhandledRejection", (error) => console.log(error.message));
    const limiter = new Limiter({ rate: 1, periodMs: 1 }, {});
    limiter.on(({ type }) => { if (type === "allow") throw new Error("of the listener"); });
    for (let i = 1; i <= 3; i++) limiter.acquire().then(() => console.log(i));`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program]);
  assert.deepEqual(stdout.trim().split("\n").sort(), [
    "1",
    "2",
    "3",
    "of the listener",
    "of the listener",
    "of the listener",
  ]);
});
