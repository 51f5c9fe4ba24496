// After a machine has slept, what is due is admitted at the first call of any kind, although no timer has fired.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { acquire, countdown, Limiter, makeClock, watch } from "../../build/package/index.js";
import { SharedLimiter } from "../../build/package/shared.js";
import { FakeClock, START } from "./clock.mjs";

const HOUR = 3_600_000;

/** A clock of a machine whose timers never fire, and `sleep`, during which only its wall clock goes on. */
function sleepy(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let wall = START;
  const clock = makeClock(
    () => wall,
    () => 0,
  );
  return { clock, sleep: (ms) => (wall += ms) };
}

/** Those, and a clock that jumps and has no notion of sleep. */
function clocks(t) {
  const fake = new FakeClock();
  return [sleepy(t), { clock: fake, sleep: (ms) => fake.set(fake.now() + ms) }];
}

const LIMIT = { rate: 1, periodMs: HOUR };
const CALLS = {
  tryConsume: (limiter) => limiter.tryConsume(),
  decide: (limiter) => limiter.decide(),
  peek: (limiter) => limiter.peek(),
  remaining: (limiter) => limiter.remaining(),
  nextTokenAt: (limiter) => limiter.nextTokenAt(),
  fullAt: (limiter) => limiter.fullAt(),
  reserve: (limiter) => limiter.reserve(),
  charge: (limiter) => limiter.charge(0),
  refund: (limiter) => limiter.refund(0),
  acquire: (limiter) => void limiter.acquire().catch(() => {}),
  resume: (limiter) => limiter.resume(),
  release: (limiter) => limiter.release(undefined),
  onIdle: (limiter) => void limiter.onIdle(),
};

test("the first call of any kind admits the calls that are due", async (t) => {
  const kinds = [
    (options) => new Limiter(LIMIT, options),
    (options) => new Limiter(LIMIT, { ...options, maxConcurrent: 5 }),
    (options) => new SharedLimiter("sleep", LIMIT, options),
  ];
  for (const make of kinds) {
    for (const [name, call] of Object.entries(CALLS)) {
      for (const { clock, sleep } of clocks(t)) {
        const limiter = make({ clock });
        await limiter.tryConsume();
        const due = follow(limiter.acquire());
        const later = follow(limiter.acquire());
        await settled();
        assert.deepEqual([due.value, limiter.waiting], [undefined, 2]);
        sleep(HOUR);
        await settled();
        assert.equal(due.value, undefined, "no timer has fired");
        await call(limiter);
        await settled();
        assert.equal(due.value?.readyAt, START + HOUR, `${limiter.constructor.name} ${name}`);
        assert.equal(later.value, undefined);
        limiter.close();
        await settled();
      }
      t.mock.timers.reset();
    }
  }
});

test("a pause that ended meanwhile is over", async (t) => {
  for (const { clock, sleep } of clocks(t)) {
    const limiter = new Limiter({ rate: 9, periodMs: 1000 }, { clock });
    limiter.pause(START + HOUR);
    const due = follow(limiter.acquire());
    sleep(HOUR);
    assert.equal(limiter.peek().allowed, false, "those that wait come first");
    await settled();
    assert.deepEqual([due.value?.allowed, limiter.peek().allowed], [true, true]);
  }
});

test("what is watched is up to date at the first look, and its listeners are called", async (t) => {
  for (const { clock, sleep } of clocks(t)) {
    const limiter = new Limiter(LIMIT, { clock });
    limiter.tryConsume();
    const standing = watch(limiter);
    const seconds = countdown(limiter);
    const heard = [];
    standing.subscribe(() => heard.push("standing"));
    seconds.subscribe(() => heard.push("seconds"));
    assert.deepEqual([standing.get().ok, seconds.get(), heard], [false, 3600, []]);
    sleep(HOUR);
    assert.deepEqual([standing.get().ok, seconds.get()], [true, 0]);
    assert.equal(standing.get(), standing.get(), "the same object, as React needs it");
    await settled();
    assert.deepEqual(heard.toSorted(), ["seconds", "standing"]);
  }
});

test("a look after a sleep sets no timer once the last listener has left", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter(LIMIT, { clock });
  limiter.tryConsume();
  const store = watch(limiter);
  const stop = store.subscribe(() => {});
  clock.set(START + HOUR);
  store.get();
  stop();
  await settled();
  assert.deepEqual(clock.timers, []);
});

test("a call that waits for a server goes on when the clock is read", async (t) => {
  const { clock, sleep } = sleepy(t);
  const asked = [];
  const service = {
    consume: async ({ mode }) => {
      asked.push(mode ?? "take");
      if (mode) return { status: 200, reservation: "r", now: START, ready_at: START + HOUR };
      return { status: 429, now: START, retry_at: START + HOUR };
    },
    settle: async () => ({ status: 200, allowed: true, late: true }),
  };
  const granted = follow(acquire(service, { policy: "api", key: "a", clock }));
  await settled();
  assert.deepEqual([asked, granted.value], [["take", "reserve"], undefined]);
  sleep(HOUR);
  await settled();
  assert.equal(granted.value, undefined);
  clock.now();
  await settled();
  assert.equal(granted.value?.late, true);
});

function follow(promise) {
  const fate = {};
  promise.then(
    (value) => Object.assign(fate, { value }),
    (error) => Object.assign(fate, { error }),
  );
  return fate;
}

async function settled() {
  for (let i = 0; i < 5; i++) await setImmediate();
}
