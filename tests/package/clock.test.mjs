// makeClock, with a wall clock, a monotonic clock and timers that the test controls.
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClock, systemClock } from "../../build/package/index.js";
import { law } from "../random.mjs";
import { START } from "./clock.mjs";

const MINUTE = 60_000;

/** A clock made of a wall clock and a monotonic one. The test sets either; `pass` advances both. */
function make(wall = START, monotonic = 0) {
  const pass = (ms) => {
    it.wall += ms;
    it.monotonic += ms;
  };
  const it = { wall, monotonic, pass };
  it.clock = makeClock(
    () => it.wall,
    () => it.monotonic,
  );
  return it;
}

/** Mocked timers that advance with `it`, and the delays that were asked for. */
function timers(t, it) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const delays = [];
  const mocked = globalThis.setTimeout;
  t.mock.method(globalThis, "setTimeout", (wake, ms) => {
    delays.push(ms);
    return mocked(wake, ms);
  });
  /** Advances clocks and timers together, in steps of at most the longest timer. */
  const pass = (ms) => {
    for (let left = ms; left > 0; left -= MINUTE) {
      const step = Math.min(left, MINUTE);
      it.pass(step);
      t.mock.timers.tick(step);
    }
  };
  return { delays, pass, fire: (ms) => t.mock.timers.tick(ms) };
}

test("starts at the wall clock's time and follows the monotonic clock", () => {
  const it = make(START, 123_456);
  assert.equal(it.clock.now(), START);
  it.pass(10);
  assert.equal(it.clock.now(), START + 10);
});

test("a jump of the wall clock is followed only if it is forward and longer than a minute", () => {
  // biome-ignore format: a table
  const table = [
    // wall clock jumps  clock jumps
    [1,            0],
    [-1,           0],
    [MINUTE,       0],
    [MINUTE + 1,   MINUTE + 1],
    [3_600_000,    3_600_000], // a laptop has slept for an hour
    [-MINUTE,      0],
    [-MINUTE - 1,  0],
    [-3_600_000,   0],
  ];
  for (const [jump, follows] of table) {
    const it = make();
    it.clock.now();
    it.wall += jump;
    assert.equal(it.clock.now(), START + follows, `${jump}`);
    it.pass(1000);
    assert.equal(it.clock.now(), START + follows + 1000, `${jump}`);
  }
});

test("a wall clock that gains gradually is followed once it is more than a minute ahead", () => {
  const it = make();
  it.clock.now();
  for (let i = 0; i < 60; i++) {
    it.wall += 1000;
    assert.equal(it.clock.now(), START);
  }
  it.wall += 1;
  assert.equal(it.clock.now(), START + MINUTE + 1);
  it.wall -= 30_000;
  assert.equal(it.clock.now(), START + MINUTE + 1, "it does not follow back");
});

test("is anchored when it is first read", () => {
  const it = make();
  it.wall += 5000;
  it.monotonic += 1;
  assert.equal(it.clock.now(), START + 5000);
});

law("is whole and never goes back, whatever the wall clock does", { seed: 5, cases: 10 }, ({ below, pick }) => {
  const it = make(START + 0.25, 0.7);
  let last = it.clock.now();
  assert.ok(Number.isSafeInteger(last));
  for (let i = 0; i < 500; i++) {
    it.monotonic += below(1000) / 7;
    it.wall += pick([below(300) - 100, -below(1e6), below(70_000), 1e7 * below(2), 0.1]);
    const now = it.clock.now();
    assert.ok(Number.isSafeInteger(now) && now >= last, `${last} ${now}`);
    last = now;
  }
});

test("rounds down to whole milliseconds", () => {
  const it = make(START, 0);
  it.clock.now();
  it.monotonic += 0.999;
  assert.equal(it.clock.now(), START);
  it.monotonic = 1;
  assert.equal(it.clock.now(), START + 1);
});

test("wakes once, at the moment and not a millisecond before", (t) => {
  const it = make();
  const { delays, pass } = timers(t, it);
  const woken = [];
  it.clock.at(START + 100, () => woken.push(it.clock.now() - START));
  assert.deepEqual(delays, [100]);
  pass(99);
  assert.deepEqual(woken, []);
  pass(1);
  assert.deepEqual(woken, [100]);
  pass(1000);
  assert.deepEqual([woken, delays], [[100], [100]], "no timer is left");
});

test("a timer that fires early is set again", (t) => {
  const it = make();
  const { delays, fire } = timers(t, it);
  let woken = 0;
  it.clock.at(START + 100, () => (woken += 1));
  it.pass(99.5);
  fire(100);
  assert.deepEqual([woken, delays], [0, [100, 1]]);
  fire(1);
  assert.deepEqual([woken, delays], [0, [100, 1, 1]], "it fired before the moment");
  it.pass(0.5);
  fire(1);
  assert.equal(woken, 1);
});

test("no timer is longer than a minute, because it stops while a machine sleeps", (t) => {
  // biome-ignore format: a table
  const table = [
    // wait              timers
    [MINUTE - 1,         [MINUTE - 1]],
    [MINUTE,             [MINUTE]],
    [MINUTE + 1,         [MINUTE, 1]],
    [2 * MINUTE + 5,     [MINUTE, MINUTE, 5]],
  ];
  for (const [ms, expected] of table) {
    const it = make();
    const { delays, pass } = timers(t, it);
    let woken = 0;
    it.clock.at(START + ms, () => (woken += 1));
    pass(ms - 1);
    assert.equal(woken, 0, `${ms}`);
    pass(1);
    assert.deepEqual([woken, delays], [1, expected], `${ms}`);
    t.mock.restoreAll();
    t.mock.timers.reset();
  }
});

test("after a sleep, the first reading wakes all that is due, and else the next timer", async (t) => {
  for (const reads of [true, false]) {
    const it = make();
    const { fire } = timers(t, it);
    const woken = [];
    it.clock.at(START + 3_600_000, () => woken.push("due"));
    it.clock.at(START + 7_200_001, () => woken.push("later"));
    it.clock.at(START + 1_800_000, () => woken.push("also due"));
    it.wall += 7_200_000; // the monotonic clock stands still, and so do the timers
    if (reads) {
      it.clock.now();
      assert.deepEqual(woken, [], "not within the call that reads");
      await null;
    } else fire(MINUTE);
    assert.deepEqual(woken.toSorted(), ["also due", "due"]);
    t.mock.restoreAll();
    t.mock.timers.reset();
  }
});

test("a cancelled wake-up does not happen", (t) => {
  const it = make();
  const { pass } = timers(t, it);
  const woken = [];
  const first = it.clock.at(START + 10, () => woken.push("first"));
  const second = it.clock.at(START + 10, () => {
    woken.push("second");
    third();
  });
  const third = it.clock.at(START + 10, () => woken.push("third"));
  const far = it.clock.at(START + 2 ** 40, () => woken.push("far"));
  first();
  first();
  pass(2 ** 23);
  far();
  pass(2 ** 24);
  assert.deepEqual(woken, ["second"]);
  second();
});

test("a moment in the past wakes soon, but not before `at` returns", (t) => {
  for (const moment of [START, START - 1, 0, -Infinity]) {
    const it = make();
    const { fire } = timers(t, it);
    let woken = 0;
    it.clock.at(moment, () => (woken += 1));
    assert.equal(woken, 0, `${moment}`);
    fire(1);
    assert.equal(woken, 1, `${moment}`);
    t.mock.restoreAll();
    t.mock.timers.reset();
  }
});

test("a wait that ended while the laptop slept ends when the page is visible, focused, shown or resumed", async (t) => {
  const dispatched = [
    ["document", "visibilitychange"],
    ["document", "resume"],
    ["window", "focus"],
    ["window", "pageshow"],
  ];
  for (const [target, type] of dispatched) {
    await t.test(`${target} ${type}`, (t) => endsWith(t, () => globalThis[target].dispatchEvent(new Event(type))));
  }
});

async function endsWith(t, look) {
  globalThis.document = new EventTarget();
  globalThis.window = new EventTarget();
  try {
    const { makeClock } = await import(`../../build/package/clock.js?${pages++}`);
    const it = { wall: START, monotonic: 0, pass() {} };
    const clock = makeClock(
      () => it.wall,
      () => it.monotonic,
    );
    timers(t, it);
    const woken = [];
    clock.at(START + 3_600_000, () => woken.push("in time"));
    clock.at(START + 7_200_000, () => woken.push("later"));
    look();
    assert.deepEqual(woken, []);
    it.wall += 3_600_000 - 1; // while the monotonic clock stands still
    look();
    assert.deepEqual(woken, []);
    it.wall += MINUTE + 1; // less than a minute does not count as sleep
    look();
    assert.deepEqual(woken, ["in time"]);
    look();
    assert.deepEqual(woken, ["in time"], "once");
  } finally {
    delete globalThis.document;
    delete globalThis.window;
  }
}
let pages = 0;

test("a wake-up cancelled by another in the same check does not happen", async (t) => {
  globalThis.document = new EventTarget();
  try {
    const { makeClock } = await import("../../build/package/clock.js?with-another-page");
    const it = { wall: START, monotonic: 0, pass() {} };
    const clock = makeClock(
      () => it.wall,
      () => it.monotonic,
    );
    const { fire } = timers(t, it);
    const woken = [];
    clock.at(START + 1e6, () => {
      woken.push("first");
      second();
      third();
    });
    const second = clock.at(START + 1e6, () => woken.push("second"));
    const third = clock.at(START + 3e6, () => woken.push("third"));
    it.wall += 2e6;
    document.dispatchEvent(new Event("visibilitychange"));
    it.wall += 2e6;
    fire(2e6);
    assert.deepEqual(woken, ["first"]);
  } finally {
    delete globalThis.document;
  }
});

test("the system clock shows wall time in whole milliseconds", () => {
  assert.ok(Math.abs(systemClock.now() - Date.now()) < 1000);
  assert.ok(Number.isSafeInteger(systemClock.now()));
});
