// Limiter: how many calls run at once, and how they all end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, TollgateError } from "../../build/package/index.js";
import { law } from "../random.mjs";
import { FakeClock, START } from "./clock.mjs";
import { make, SECOND } from "./limiters.mjs";

const PLENTY = { rate: 100, periodMs: 1 };

test("a cap beside the rate: a call begins when another has ended", async () => {
  const { limiter, acquire } = make(PLENTY, { maxConcurrent: 2 });
  const grants = [await limiter.acquire(), await limiter.acquire()];
  const third = acquire();
  const fourth = acquire();
  await setImmediate();
  assert.deepEqual([third, fourth, limiter.waiting], [{}, {}, 2]);
  limiter.release(grants[0]);
  limiter.release(grants[0]); // idempotent
  await setImmediate();
  assert.equal(third.at, START);
  assert.deepEqual([fourth, limiter.waiting], [{}, 1]);
  limiter.release(grants[1]);
  await setImmediate();
  assert.equal(fourth.at, START);
});

test("without a cap, release does nothing", async () => {
  const { limiter } = make(PLENTY);
  const grant = await limiter.acquire();
  limiter.release(grant);
  limiter.release(undefined);
  assert.equal(limiter.remaining(), 99);
});

test("throttled calls release by themselves, whether they return or throw", async () => {
  const { limiter } = make(PLENTY, { maxConcurrent: 1 });
  const ends = [];
  const fn = limiter.throttle((fails) => new Promise((resolve, reject) => ends.push(fails ? reject : resolve)));
  const calls = [fn(false), fn(true), fn(false)].map((call) => call.catch((error) => error));
  for (let i = 0; i < 3; i++) {
    await setImmediate();
    assert.equal(ends.length, i + 1, "one at a time");
    ends[i](i);
  }
  assert.deepEqual(await Promise.all(calls), [0, 1, 2]);
  const controller = new AbortController();
  limiter.on(({ type }) => type === "allow" && controller.abort("now"));
  await assert.rejects(limiter.throttle(() => {}, { signal: controller.signal })(), (reason) => reason === "now");
  assert.ok(await limiter.acquire(), "an aborted one has released, too");
});

test("a wait that proves too long is rejected when the time is up", async () => {
  const { clock, limiter, acquire, to } = make(PLENTY, { maxConcurrent: 1 });
  const grant = await limiter.acquire();
  const fate = acquire({ maxWaitMs: 500 });
  const next = acquire();
  await to(500);
  assert.deepEqual(fate, {});
  await to(501);
  assert.deepEqual([fate.at, fate.error.code, limiter.waiting], [START + 501, "wait_too_long", 1]);
  const inTime = acquire({ maxWaitMs: 500, priority: 1 });
  await to(1001);
  limiter.release(grant);
  await setImmediate();
  assert.deepEqual([inTime.at, next, clock.timers], [START + 1001, {}, []]);
});

test("rejects a cap that is not a whole number from 1", () => {
  for (const maxConcurrent of [0, -1, 1.5, NaN, "2"])
    assert.throws(() => new Limiter(SECOND, { maxConcurrent }), TollgateError, String(maxConcurrent));
});

law(
  "admits no more at once than the cap, no faster than the rate, and all calls in order",
  { seed: 8, cases: 60 },
  async ({ below, chance }) => {
    const maxConcurrent = 1 + below(4);
    const limit = { rate: 1, periodMs: 10, capacity: 1 + below(3) };
    const { clock, limiter } = make(limit, { maxConcurrent });
    const began = [];
    let running = 0;
    const fn = limiter.throttle(
      (id, ms) =>
        new Promise((resolve) => {
          began.push([id, clock.now()]);
          running += 1;
          assert.ok(running <= maxConcurrent);
          clock.at(clock.now() + ms, () => {
            running -= 1;
            resolve();
          });
        }),
    );
    const calls = [];
    for (let id = 0; id < 40; id++) {
      calls.push(fn(id, 1 + below(60)));
      if (chance(0.4)) await clock.advance(below(40));
    }
    let isIdle = false;
    const idle = limiter.onIdle().then(() => (isIdle = true));
    await setImmediate();
    assert.equal(isIdle, running === 0 && began.length === 40);
    await clock.toTheEnd();
    await Promise.all([...calls, idle]);
    assert.deepEqual(
      began.map(([id]) => id),
      calls.map((_, id) => id),
    );
    for (const [i, [, from]] of began.entries())
      for (const [j, [, to]] of began.entries())
        if (j >= i) assert.ok(j - i + 1 <= limit.capacity + Math.floor((to - from) / 10));
  },
);

test("onIdle waits for all waiters and all running throttled calls", async () => {
  const { clock, limiter, to } = make({ rate: 1, periodMs: 1000 });
  await limiter.onIdle();
  let isIdle = false;
  const end = Promise.withResolvers?.() ?? deferred();
  void limiter.throttle(() => end.promise)();
  void limiter.acquire();
  const idle = clock.follow(limiter.onIdle().then(() => (isIdle = true)));
  await to(1000);
  assert.deepEqual([isIdle, limiter.waiting], [false, 0]);
  end.resolve();
  await to(1001);
  assert.deepEqual([isIdle, idle.at], [true, START + 1000]);
  const dropped = limiter.acquire({ signal: AbortSignal.abort() }).catch(() => "dropped");
  assert.equal(await dropped, "dropped");
  await limiter.onIdle();
});

test("clear rejects all waiters and takes nothing", async () => {
  const { clock, limiter, events, acquire, admitted } = make(SECOND);
  for (let i = 0; i < 3; i++) acquire({ maxWaitMs: 5000 });
  const idle = limiter.onIdle();
  limiter.clear();
  await idle;
  await setImmediate();
  assert.deepEqual([admitted(), limiter.waiting, clock.timers], [[0, "cleared", "cleared"], 0, []]);
  assert.equal(events.filter(({ type }) => type === "drop").length, 2);
  const next = acquire();
  await clock.toTheEnd();
  assert.equal(next.at, START + 1000, "it can be used again");
});

test("close rejects all waiters and later calls, and leaves no timer", async () => {
  for (const close of [(limiter) => limiter.close(), (limiter) => limiter[Symbol.dispose]()]) {
    const { clock, limiter, acquire, admitted } = make(SECOND);
    acquire();
    acquire();
    close(limiter);
    acquire();
    await setImmediate();
    assert.deepEqual([admitted(), clock.timers], [[0, "closed", "closed"], []]);
  }
});

test("a clock may start at 0", async () => {
  const limiter = new Limiter({ rate: 1, periodMs: 1000, initial: 0 }, { clock: new FakeClock(0) });
  const grant = limiter.acquire();
  await limiter.clock.to(1000);
  assert.equal((await grant).readyAt, 1000);
});

function deferred() {
  let resolve;
  const promise = new Promise((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
