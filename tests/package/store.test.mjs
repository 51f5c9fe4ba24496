// watch: when listeners are called, and that nothing runs in between.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { countdown, Limiter, watch } from "../../build/package/index.js";
import { law } from "../random.mjs";
import { FakeClock, START } from "./clock.mjs";

/** A limiter with counted listeners, its store, and each call of the store's listener: its time and state. */
function make(limits, cost) {
  const clock = new FakeClock();
  const limiter = new Limiter(limits, { clock });
  const counted = { listeners: 0 };
  const { on } = Limiter.prototype;
  limiter.on = (listener) => {
    const off = on.call(limiter, listener);
    counted.listeners += 1;
    return () => {
      counted.listeners -= 1;
      off();
    };
  };
  const store = watch(limiter, cost);
  const calls = [];
  const listen = () => store.subscribe(() => calls.push([clock.now() - START, store.get()]));
  return { clock, limiter, store, counted, calls, listen };
}

test("without listeners it follows time, and stays the same object until it changes", async () => {
  const { clock, limiter, store, counted } = make({ rate: 1, periodMs: 1000, capacity: 2 });
  const full = store.get();
  assert.deepEqual(full, { ok: true, remaining: 2, readyAt: 0 });
  assert.equal(store.get(), full);
  limiter.tryConsume(2);
  const empty = store.get();
  assert.deepEqual(empty, { ok: false, remaining: 0, readyAt: START + 1000 });
  await clock.advance(999);
  assert.equal(store.get(), empty);
  await clock.advance(1);
  assert.deepEqual(store.get(), { ok: true, remaining: 1, readyAt: 0 });
  await clock.advance(1000);
  assert.deepEqual(store.get(), full);
  assert.deepEqual([clock.timers, counted.listeners], [[], 0]);
});

test("listeners are called with each whole token until it is full, and nothing runs in between", async () => {
  const { clock, limiter, store, calls, listen } = make({ rate: 1, periodMs: 1000, capacity: 3 }, 2);
  store.get();
  listen();
  assert.deepEqual([calls, clock.timers], [[], []], "the limiter is full, so there is no timer");
  limiter.tryConsume(3);
  for (const [moment, next] of [
    [0, [1000]],
    [999, [1000]],
    [1000, [2000]],
    [2000, [3000]],
    [9000, []],
  ]) {
    await clock.to(START + moment);
    assert.deepEqual(
      clock.timers,
      next.map((ms) => START + ms),
      `${moment}`,
    );
  }
  assert.deepEqual(calls, [
    [0, { ok: false, remaining: 0, readyAt: START + 2000 }],
    [1000, { ok: false, remaining: 1, readyAt: START + 2000 }],
    [2000, { ok: true, remaining: 2, readyAt: 0 }],
    [3000, { ok: true, remaining: 3, readyAt: 0 }],
  ]);
});

test("tokens that come faster than a screen shows are reported once for each frame, readyAt exactly", async () => {
  const { clock, limiter, calls, listen } = make({ rate: 1, periodMs: 1, capacity: 40 }, 20);
  listen();
  limiter.tryConsume(40);
  await clock.toTheEnd();
  assert.deepEqual(
    calls.map(([at, { ok, remaining }]) => [at, ok, remaining]),
    [
      [0, false, 0],
      [1, false, 1],
      [17, false, 17],
      [20, true, 20],
      [33, true, 33],
      [49, true, 40],
    ],
  );
});

test("the tokens are shown as they come while the limiter is paused and while calls wait", async () => {
  const { clock, limiter, calls, listen } = make({ rate: 1, periodMs: 1000, capacity: 3, initial: 0 });
  limiter.pause(START + 1500);
  void limiter.acquire({ cost: 2 });
  listen();
  await clock.to(START + 9000);
  assert.deepEqual(
    calls.map(([at, { ok, remaining, readyAt }]) => [at, ok, remaining, readyAt && readyAt - START]),
    [
      [1000, false, 1, 3000],
      [2000, false, 2, 3000],
      [2000, false, 0, 3000], // and at once they are taken
      [3000, true, 1, 0],
      [4000, true, 2, 0],
      [5000, true, 3, 0],
    ],
  );
});

test("a wake-up is not lost if its moment passes between two readings of the clock", async () => {
  for (let at = 1; at <= 10; at++) {
    const { clock, limiter, store, listen } = make({ rate: 1, periodMs: 50, capacity: 2 });
    listen();
    limiter.tryConsume(2);
    const { now } = clock;
    let looks = 0;
    clock.now = () => {
      if (++looks === at) clock.set(START + 50);
      return now.call(clock);
    };
    limiter.refund(0);
    clock.now = now;
    await clock.toTheEnd();
    assert.deepEqual(store.get(), { ok: true, remaining: 2, readyAt: 0 }, `at the look ${at}`);
  }
});

test("listeners are called once for each change of the answer, and for nothing else", async () => {
  const { clock, limiter, calls, store, listen } = make({ rate: 1, periodMs: 1000, capacity: 3, maxDebt: 2 });
  store.get();
  listen();
  // biome-ignore format: a table
  const table = [
    // what happens                             remaining, ready after
    [() => limiter.tryConsume(1),                  2, 0],
    [() => limiter.tryConsume(0),                  undefined],
    [() => limiter.tryConsume(3),                  undefined], // refused
    [() => limiter.peek(3),                     undefined],
    [() => limiter.tryConsume(2),                  0, 1000],
    [() => limiter.tryConsume(1),                  undefined],
    [() => limiter.charge(1),                   0, 2000],
    [() => limiter.refund(2),                   1, 0],
    [() => limiter.refund(0),                   undefined],
    [() => limiter.reset(),                     3, 0],
    [() => limiter.pause(START + 700),          3, 700],
    [() => limiter.pause(START + 600),          undefined],
    [() => limiter.restore([{ tokens: 1, drops: 0, at: START }]), 1, 700],
  ];
  for (const [happens, remaining, after] of table) {
    const before = store.get();
    calls.length = 0;
    happens();
    if (remaining === undefined) assert.deepEqual([calls, store.get() === before], [[], true], `${happens}`);
    else assert.deepEqual(calls, [[0, { ok: after === 0, remaining, readyAt: after && START + after }]], `${happens}`);
  }
  assert.deepEqual(clock.timers, [START + 700]);
  calls.length = 0;
  await clock.to(START + 700);
  assert.deepEqual(calls, [[700, { ok: true, remaining: 1, readyAt: 0 }]]);
});

test("is ready when the queue has been served", async () => {
  const { clock, limiter, calls, store, listen } = make({ rate: 1, periodMs: 1000, initial: 0 });
  store.get();
  listen();
  void limiter.acquire();
  void limiter.acquire();
  assert.deepEqual(
    calls.map(([at, { readyAt }]) => [at, readyAt - START]),
    [
      [0, 2000],
      [0, 3000],
    ],
  );
  await clock.to(START + 2999);
  assert.equal(store.get().ok, false);
  await clock.to(START + 3000);
  assert.deepEqual(calls.at(-1), [3000, { ok: true, remaining: 1, readyAt: 0 }]);
});

test("a cost that is never ready has no timer", () => {
  for (const [limit, cost] of [
    [{ rate: 3, periodMs: 1000 }, 4],
    [{ rate: 0, periodMs: 1000, capacity: 1, initial: 0 }, 1],
  ]) {
    const { clock, limiter, store, listen } = make(limit, cost);
    listen();
    assert.deepEqual([store.get().ok, store.get().readyAt, clock.timers], [false, Infinity, []]);
    limiter.refund(1);
    assert.deepEqual(clock.timers, []);
  }
  const { clock, limiter, store, listen } = make({ rate: 0, periodMs: 1000, capacity: 3 });
  listen();
  limiter.tryConsume(1);
  assert.deepEqual([store.get().ok, clock.timers], [true, []], "a limit that never refills is never full again");
});

test("without listeners there is no timer, and a new listener starts one", async () => {
  const { clock, limiter, store, counted, calls, listen } = make({ rate: 1, periodMs: 1000 });
  limiter.tryConsume();
  const offs = [listen(), listen(), listen()];
  assert.deepEqual([counted.listeners, clock.timers], [1, [START + 1000]]);
  offs[0]();
  offs[0](); // idempotent
  offs[1]();
  assert.deepEqual([counted.listeners, clock.timers], [1, [START + 1000]]);
  offs[2]();
  assert.deepEqual([counted.listeners, clock.timers], [0, []]);
  offs[2]();
  assert.deepEqual([counted.listeners, clock.timers], [0, []]);
  calls.length = 0;
  await clock.to(START + 500);
  limiter.refund(1);
  limiter.tryConsume(1);
  assert.deepEqual(calls, []);
  await clock.to(START + 800);
  const off = listen();
  assert.deepEqual([store.get().readyAt, counted.listeners, clock.timers], [START + 1500, 1, [START + 1500]]);
  await clock.to(START + 1500);
  assert.equal(store.get().ok, true);
  off();
  assert.deepEqual([counted.listeners, clock.timers], [0, []]);
});

test("a function added twice is called twice, and removed once at a time", () => {
  const { limiter, store } = make({ rate: 5, periodMs: 1000 });
  store.get();
  let calls = 0;
  const listener = () => (calls += 1);
  const offs = [store.subscribe(listener), store.subscribe(listener)];
  limiter.tryConsume();
  assert.equal(calls, 2);
  offs[0]();
  limiter.tryConsume();
  assert.equal(calls, 3);
  offs[1]();
  limiter.tryConsume();
  assert.equal(calls, 3);
});

test("a listener may add and remove listeners", async () => {
  const { clock, limiter, store, counted } = make({ rate: 1, periodMs: 1000, capacity: 3 });
  store.get();
  const calls = [];
  const off = store.subscribe(() => {
    calls.push("outer");
    off();
    const inner = store.subscribe(() => {
      calls.push("inner");
      inner();
    });
  });
  limiter.tryConsume();
  limiter.tryConsume();
  limiter.tryConsume();
  await clock.toTheEnd();
  assert.ok(calls.includes("outer") && calls.includes("inner"), `${calls}`);
  assert.deepEqual([calls.filter((who) => who === "outer").length, counted.listeners, clock.timers], [1, 0, []]);
});

test("a listener added by a listener hears of the next change", async () => {
  const { limiter, store } = make({ rate: 1, periodMs: 1000, capacity: 3 });
  store.get();
  let heard = 0;
  const again = () => {
    const off = store.subscribe(() => {
      off();
      heard++;
      again();
    });
  };
  store.subscribe(() => {});
  again();
  limiter.tryConsume();
  limiter.tryConsume();
  assert.equal(heard, 2);
});

test("a change before the first listener is not reported", () => {
  const { limiter, store } = make({ rate: 5, periodMs: 1000 });
  let calls = 0;
  store.subscribe(() => (calls += 1));
  assert.equal(calls, 0, "get was not called");
  limiter.tryConsume();
  assert.equal(calls, 1);
});

test("its functions do not use `this`", () => {
  const {
    store: { get, subscribe },
  } = make({ rate: 1, periodMs: 1000 });
  subscribe(() => {})();
  assert.equal(get().ok, true);
});

test("watches a cost by names", async () => {
  const { clock, limiter, store, listen } = make(
    [
      { name: "a", rate: 1, periodMs: 1000, capacity: 5 },
      { name: "b", rate: 2, periodMs: 1000, capacity: 5 },
    ],
    { a: 1, b: 3 },
  );
  listen();
  limiter.tryConsume(5);
  assert.deepEqual([store.get(), clock.timers], [{ ok: false, remaining: 0, readyAt: START + 1500 }, [START + 1000]]);
  await clock.to(START + 1500);
  assert.deepEqual([store.get(), clock.timers], [{ ok: true, remaining: 1, readyAt: 0 }, [START + 2000]]);
});

test("a countdown shows the whole seconds that are left, and wakes once for each", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 1, periodMs: 2500 }, { clock });
  const store = countdown(limiter);
  const calls = [];
  const off = store.subscribe(() => calls.push([clock.now() - START, store.get()]));
  assert.deepEqual([store.get(), clock.timers], [0, []]);
  limiter.tryConsume();
  await clock.to(START + 9000);
  assert.deepEqual(calls, [
    [0, 3],
    [500, 2],
    [1500, 1],
    [2500, 0],
  ]);
  limiter.tryConsume();
  off();
  assert.deepEqual([clock.timers, store.get()], [[], 3]);
  await clock.to(START + 9501);
  assert.equal(store.get(), 2, "it follows time without listeners, too");
  const never = countdown(limiter, 2);
  never.subscribe(() => {});
  assert.deepEqual([never.get(), clock.timers], [Infinity, []]);
});

law("at every moment listeners know what a fresh look shows", { seed: 9, cases: 30 }, async ({ below, pick }) => {
  const cost = 1 + below(3);
  const { clock, limiter, store, listen } = make(
    [{ rate: pick([1, 3]), periodMs: pick([100, 333]), capacity: 3 + below(4), maxDebt: 3 }],
    cost,
  );
  const seconds = countdown(limiter, cost);
  const offs = [listen(), seconds.subscribe(() => {})];
  for (let step = 0; step < 40; step++) {
    const what = below(6);
    if (what === 0) limiter.tryConsume(below(4));
    if (what === 1) limiter.acquire({ cost: below(4), maxWaitMs: below(500) }).catch(() => {});
    if (what === 2) limiter.charge(below(3));
    if (what === 3) limiter.refund(below(3));
    if (what === 4 && below(4) === 0) limiter.pause(clock.now() + below(200));
    await clock.advance(below(90));
    await setImmediate();
    assert.deepEqual(store.get(), watch(limiter, cost).get(), `step ${step}`);
    assert.equal(seconds.get(), countdown(limiter, cost).get(), `step ${step}`);
  }
  for (const off of offs) off();
  await clock.toTheEnd();
  assert.deepEqual(clock.timers, []);
});
