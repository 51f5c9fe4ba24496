// `WarmUp` of `tollgate/kinds`: the pace after a warm-up, beside Guava's own answers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Bucket } from "../../build/package/index.js";
import { WarmUp } from "../../build/package/kinds.js";

const { paces } = JSON.parse(readFileSync(new URL("../warm_up.json", import.meta.url), "utf8"));

test("a start is the first millisecond at or after Guava's, which cuts off fractions of a microsecond", () => {
  for (const { rate, period_ms, warm_up_ms, calls } of paces) {
    const pace = new WarmUp(0, { rate, periodMs: period_ms, warmUpMs: warm_up_ms });
    for (const [cutOff, [now, cost, guavaUs]] of calls.entries()) {
      const foreseen = pace.peek(now, { cost });
      const answer = pace.borrow(now, { cost });
      assert.deepEqual(answer, foreseen);
      const lateUs = answer.readyAt * 1000 - guavaUs;
      assert.ok(lateUs >= 0 && lateUs < 1000 + cutOff, `${rate} per ${period_ms} ms, ${now}: ${answer.readyAt}`);
    }
  }
});

test("a wait is refused while it is too long, and costs nothing", () => {
  const pace = new WarmUp(0, { rate: 2, periodMs: 1000, warmUpMs: 4000 });
  const granted = { allowed: true, tokens: 1, readyAt: 0, retryAfterMs: 0 };
  assert.deepEqual(pace.borrow(0, { maxWaitMs: 0 }), granted);
  assert.deepEqual(pace.borrow(0, { maxWaitMs: 1374 }), { allowed: false, retryAt: 1, retryAfterMs: 1 });
  assert.deepEqual(pace.borrow(0, { maxWaitMs: 1375 }), { ...granted, readyAt: 1375 });
  assert.deepEqual(pace.borrow(0, { cost: 0 }), { ...granted, tokens: 0, readyAt: 2500 });
});

test("numbers that cannot be kept exact are named, with the range of those that can", () => {
  const good = { rate: 1, periodMs: 1000, warmUpMs: 0 };
  const most = 2 ** 42;
  for (const [name, value, fault, range] of [
    ["rate", 0, "too_small", [1, 2 ** 53 - 1]],
    ["rate", most + 1, "too_large", [1, most]],
    ["rate", 1.5, "not_whole", [1, 2 ** 53 - 1]],
    ["periodMs", 0, "too_small", [1, 2 ** 53 - 1]],
    ["periodMs", most + 1, "too_large", [1, most]],
    ["warmUpMs", -1, "too_small", [0, 2 ** 53 - 1]],
    ["warmUpMs", most + 1, "too_large", [0, most]],
  ]) {
    const [min, max] = range;
    assert.throws(() => new WarmUp(0, { ...good, [name]: value }), { code: `${name}_${fault}`, min, max }, `${name}`);
  }
  for (const numbers of [{ rate: most }, { periodMs: most }, { warmUpMs: most }])
    new WarmUp(0, { ...good, ...numbers });
  const pace = new WarmUp(0, good);
  assert.throws(() => new WarmUp(2 ** 52 + 1, good), { code: "now_too_large" });
  assert.throws(() => pace.borrow(0.5), { code: "now_not_whole" });
  assert.throws(() => pace.borrow(0, { cost: -1 }), { code: "cost_too_small" });
  assert.throws(() => pace.borrow(0, { maxWaitMs: NaN }), { code: "maxWaitMs_not_whole" });
  assert.throws(() => pace.borrow(0, 1), { code: "options_unknown" });
  assert.equal(pace.borrow(0).readyAt, 0, "nothing was taken");
});

test("paces and buckets share the module's memory, and keep apart", () => {
  const [paces, buckets] = [[], []];
  for (let i = 0; i < 1000; i++) {
    paces.push(new WarmUp(i, { rate: 1, periodMs: 1000, warmUpMs: 0 }));
    buckets.push(new Bucket(i, { rate: 1, periodMs: 1000 }));
  }
  for (const [i, pace] of paces.entries()) assert.equal(pace.borrow(i, { cost: i + 1 }).readyAt, i);
  for (const [i, bucket] of buckets.entries()) assert.ok(bucket.tryConsume(i));
  for (const [i, pace] of paces.entries()) assert.equal(pace.borrow(i).readyAt, i + 1000 * (i + 1));
  for (const [i, bucket] of buckets.entries()) assert.equal(bucket.peek(i).retryAt, i + 1000);
});
