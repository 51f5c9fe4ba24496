// Limiter: throttled functions.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { START } from "./clock.mjs";
import { make } from "./limiters.mjs";

test("a throttled function returns or throws to its caller", async () => {
  const { limiter, to, clock } = make({ rate: 1, periodMs: 1000 });
  const calls = [];
  const fn = limiter.throttle((...args) => {
    calls.push([clock.now() - START, ...args]);
    if (args[0] === "throw") throw new Error("thrown");
    return args[0] === "reject" ? Promise.reject(new Error("rejected")) : Promise.resolve(args.length);
  });
  const fates = [[1, 2, 3], ["throw"], ["reject"], []].map((args) => clock.follow(fn(...args)));
  await setImmediate();
  assert.deepEqual(calls, [[0, 1, 2, 3]]);
  await to(5000);
  assert.deepEqual(calls, [[0, 1, 2, 3], [1000, "throw"], [2000, "reject"], [3000]]);
  assert.deepEqual(
    fates.map(({ value, error }) => value ?? error.message),
    [3, "thrown", "rejected", 0],
  );
  assert.equal(limiter.remaining(), 1, "an error gives no tokens back");
});

test("a throttled function costs a number, a number for each name, or what a function returns", async () => {
  const limits = [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "tokens", rate: 100, periodMs: 1000 },
  ];
  const table = [
    [undefined, [9, 99]],
    [{}, [9, 99]],
    [{ cost: 2 }, [8, 98]],
    [{ cost: 0 }, [10, 100]],
    [{ cost: { requests: 1, tokens: 40 } }, [9, 60]],
    [{ cost: (text) => text.length }, [7, 97]],
    [{ cost: async (text) => text.length }, [7, 97]],
    [{ cost: (text, times) => ({ requests: 1, tokens: text.length * times }) }, [9, 85]],
  ];
  for (const [options, left] of table) {
    const { limiter } = make(limits);
    assert.equal(await limiter.throttle((text) => text, options)("abc", 5), "abc");
    assert.deepEqual(
      limiter.save().map(({ tokens }) => tokens),
      left,
      String(options?.cost),
    );
  }
  const { limiter } = make(limits);
  let called = 0;
  const broken = limiter.throttle(() => called++, {
    cost: () => {
      throw new Error("no price");
    },
  });
  await assert.rejects(broken(), { message: "no price" });
  await assert.rejects(limiter.throttle(() => called++, { cost: () => 1.5 })(), { code: "cost_not_whole" });
  await assert.rejects(limiter.throttle(() => called++, { cost: 11 })(), { code: "cost_never_granted", maxCost: 10 });
  assert.deepEqual([called, limiter.remaining()], [0, 10]);
});

test("a throttled function waits like acquire, and is not called once its signal is aborted", async () => {
  const { limiter, clock, to } = make({ rate: 1, periodMs: 1000 });
  const controller = new AbortController();
  let called = 0;
  const impatient = limiter.throttle(() => ++called, { maxWaitMs: 999 });
  const fn = limiter.throttle(() => ++called, { signal: controller.signal });
  const urgent = limiter.throttle(() => ++called, { priority: 1 });
  await fn();
  await assert.rejects(impatient(), { code: "wait_too_long" });
  const fates = [clock.follow(fn()), clock.follow(urgent())];
  await to(1000);
  assert.deepEqual([called, fates[0].value, fates[1].value], [2, undefined, 2]);
  controller.abort("over");
  await assert.rejects(fn(), (reason) => reason === "over");
  await to(2000);
  assert.deepEqual([called, fates[0].error, limiter.remaining()], [2, "over", 1]);
});

test("a throttled function aborted between admission and call gives its tokens back", async () => {
  const { limiter } = make({ rate: 5, periodMs: 1000 });
  const controller = new AbortController();
  let called = 0;
  limiter.on(({ type }) => type === "allow" && controller.abort("just now"));
  await assert.rejects(
    limiter.throttle(() => ++called, { cost: 3, signal: controller.signal })(),
    (reason) => reason === "just now",
  );
  assert.deepEqual([called, limiter.remaining()], [0, 5]);
});

test("a throttled method keeps its `this`", async () => {
  const { limiter } = make({ rate: 5, periodMs: 1000 });
  const object = {
    name: "it",
    say: limiter.throttle(function () {
      return this?.name;
    }),
  };
  assert.equal(await object.say(), "it");
});

test("equal calls in flight are one call: one cost, and one result or error for all", async () => {
  const { limiter, to, clock } = make({ rate: 1, periodMs: 1000 });
  const calls = [];
  const ends = [];
  const fn = limiter.throttle(
    (...args) => {
      calls.push(args);
      const { promise, resolve, reject } = Promise.withResolvers();
      ends.push({ resolve, reject });
      return promise;
    },
    { join: (id) => id },
  );
  const [first, joined, other] = [fn("a", 1), fn("a", 2), fn("b")].map((call) => clock.follow(call));
  await setImmediate();
  assert.deepEqual([calls, limiter.waiting], [[["a", 1]], 1], "b waits for its token");
  const later = clock.follow(fn("b"));
  await to(1000);
  assert.deepEqual([calls.length, limiter.remaining(), limiter.waiting], [2, 0, 0], "b has joined while it waited");
  const result = { of: "a" };
  ends[0].resolve(result);
  ends[1].reject(new Error("of b"));
  await setImmediate();
  assert.ok(first.value === result && joined.value === result);
  assert.ok(other.error.message === "of b" && other.error === later.error);
  clock.follow(fn("a"));
  clock.follow(fn("b"));
  await to(3000);
  assert.deepEqual(calls.slice(2), [["a"], ["b"]], "an ended call is made again, whether it failed or not");
});

test("calls join by the value of their key, without `join` they do not, and a `join` that throws rejects", async () => {
  const { limiter } = make({ rate: 100, periodMs: 1000 });
  let called = 0;
  const fn = limiter.throttle(() => ++called, { join: (key) => (key === "throw" ? key.missing.key : key) });
  assert.deepEqual(await Promise.all([fn(1), fn(1), fn("1"), fn(Number.NaN), fn(Number.NaN)]), [1, 1, 2, 3, 3]);
  assert.deepEqual(await Promise.all([fn({}), fn({})]), [4, 5], "objects are equal to themselves alone");
  await assert.rejects(fn("throw"), TypeError);
  const alone = limiter.throttle(() => ++called);
  assert.deepEqual(await Promise.all([alone("a"), alone("a")]), [6, 7]);
  assert.equal(limiter.remaining(), 93);
  await limiter.onIdle();
});

test("a call that the queue rejects is rejected for all that joined it, and the next starts over", async () => {
  const { limiter } = make({ rate: 1, periodMs: 1000 });
  const fn = limiter.throttle((x) => x, { join: (x) => x, maxWaitMs: 0 });
  assert.equal(await fn("a"), "a");
  const calls = [fn("b"), fn("b")];
  for (const call of calls) await assert.rejects(call, { code: "wait_too_long" });
  limiter.reset();
  assert.equal(await fn("b"), "b");
});
