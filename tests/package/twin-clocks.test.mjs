// Twin: clocks that differ, drift, step and sleep.
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClock } from "../../build/package/index.js";
import { NOW } from "../http/workerd.mjs";
import { asked, DAY, HOUR, synced } from "./twins.mjs";

test("moments are by the local clock, even if the server's is hours ahead or behind", async () => {
  for (const theirsMs of [-5 * HOUR, -1, 0, 7, 5 * HOUR]) {
    for (const oursMs of [0, -3 * HOUR, 2 * DAY]) {
      const { wire, twin } = await synced({ theirsMs, oursMs });
      const sentAt = wire.clock.now();
      const { now } = await wire.until(twin.consume(10));
      assert.equal(now, sentAt - oursMs + 20 + theirsMs);
      assert.equal(twin.peek(2).retryAt, sentAt + 2_000);
      await wire.to(sentAt - oursMs + 1_999);
      assert.equal((await twin.consume(2)).predicted, true);
      await wire.pass(1);
      assert.equal((await wire.until(twin.consume(2))).status, 200);
      assert.equal(asked(wire), 2);
    }
  }
});

test("the clock offset is that of the quickest request", async () => {
  const { wire, twin } = await synced({ upMs: 400, downMs: 100 });
  const ways = [
    [20, 300],
    [100, 10],
    [20, 0],
  ];
  const takenAt = []; // as if each request took 20 ms
  for (const [upMs, downMs] of [[400, 100], ...ways]) {
    wire.travel = () => ({ upMs, downMs });
    takenAt.push(wire.now + upMs - 20);
    await wire.until(twin.consume(1));
  }
  assert.equal(twin.peek(10).retryAt, takenAt[0] + 4_000);
  await wire.to(takenAt[0] + 4_000);
  assert.equal((await wire.until(twin.consume(10))).status, 200);
});

test("a step of the server's clock is followed with the next response", async () => {
  for (const stepMs of [1_000, -1_000, 61_000, -61_000, 2 * HOUR, -2 * HOUR]) {
    const { wire, twin, ask, other } = await synced();
    await wire.until(twin.consume(10));
    wire.theirsMs += stepMs;
    const { status, now } = await wire.until(twin.consume(10, { idempotencyKey: "asks in any case" }));
    assert.deepEqual([status, now], [stepMs > 10_000 ? 200 : 429, wire.now - 30 + stepMs]);
    const { retryAt } = twin.peek(10);
    const answer = await wire.until(other.peek({ ...ask, cost: 10 }));
    assert.equal(retryAt, answer.retry_at - 20 - stepMs);
    await wire.to(retryAt);
    assert.equal((await wire.until(twin.consume(10))).status, 200);
  }
});

test("after a day of drift the error is at most one round trip", async () => {
  for (const ppm of [100, -100]) {
    const { wire, twin, ask } = await synced();
    const began = wire.now;
    wire.theirsMs = 0;
    let wasted = 0;
    for (let hour = 1; hour <= 96; hour++) {
      await wire.to(began + hour * (HOUR / 4));
      wire.theirsMs = Math.round(((wire.now - began) * ppm) / 1e6);
      if ((await wire.until(twin.consume(10))).status !== 200) wasted++;
      const { retryAt } = twin.peek(1);
      const { retry_at } = await wire.until(wire.client().peek({ ...ask, cost: 1 }));
      const exactly = retry_at - wire.theirsMs - 20; // the right moment to send it
      assert.ok(Math.abs(retryAt - exactly) <= 50, `${retryAt - exactly} ms off after ${hour} quarters of an hour`);
    }
    assert.equal(wasted, 0);
    assert.ok(Math.abs(wire.theirsMs) === 8_640);
  }
});

test("after the clock has slept, the known state continues from the new time", async () => {
  const { wire, ask } = await synced();
  let [asleepMs, slowMs] = [0, 0];
  const clock = {
    ...wire.clock,
    ...{
      now: makeClock(
        () => wire.now,
        () => wire.now - NOW - asleepMs - slowMs,
      ).now,
    },
  };
  const twin = wire.twin({ ...ask, clock });
  await wire.until(twin.consume(10));
  assert.equal(twin.remaining(), 0);
  await wire.pass(HOUR);
  asleepMs = HOUR; // no time on the monotonic clock
  assert.deepEqual([twin.remaining(), clock.now()], [10, wire.now]);
  assert.equal((await wire.until(twin.consume(10))).status, 200);
  slowMs = 50_000; // too little to be followed
  await wire.until(twin.sync());
  assert.equal(clock.now(), wire.now - 50_000);
  await wire.until(twin.consume(1));
  await wire.pass(20_000);
  asleepMs += 15_000; // a short sleep makes it enough
  assert.equal(clock.now(), wire.now);
  await wire.until(twin.consume(10));
  await wire.pass(1);
  const retryAt = twin.peek(1).retryAt;
  const { retry_at } = await wire.until(wire.client().peek(ask));
  assert.equal(retryAt, retry_at - 20);
});
