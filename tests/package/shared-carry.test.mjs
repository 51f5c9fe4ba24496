// SharedLimiter: how a tab with other numbers carries tokens over.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import "../../build/package/index.js";
import { SharedBudget } from "../../build/package/shared-budget.js";

const vectors = JSON.parse(readFileSync(new URL("../vectors/carry/as_is.json", import.meta.url), "utf8"));

for (const { name, old, tokens, drops, new: renewed, expect } of vectors.cases) {
  test(`tokens are carried over as the core does it: ${name}`, () => {
    assert.deepEqual(carried(limitOf(old), tokens, drops, limitOf(renewed)), expect);
  });
}

test("a limit of another kind starts anew", () => {
  const window = { kind: "fixed_window", rate: 3, periodMs: 1000 };
  assert.deepEqual(carried(window, 1, 0, { rate: 2, periodMs: 701 }), { tokens: 2, drops: 0 });
});

/** A bucket of the limit `old`, carried over by a tab with the limit `renewed`. */
function carried(old, tokens, drops, renewed) {
  const budget = new SharedBudget(renewed);
  budget.load([1, 0, 9000, [old], [{ tokens, drops, at: 9000 }], 0, 0, []], 9000);
  const [{ at, ...level }] = budget.save(9000)[4];
  assert.equal(at, 9000);
  return level;
}

function limitOf({ period_ms: periodMs, max_debt: maxDebt, ...others }) {
  return { ...others, periodMs, ...(maxDebt !== undefined && { maxDebt }) };
}

test("what came back before a step back of the clock does not come back again under other numbers", () => {
  const budget = new SharedBudget({ rate: 2, periodMs: 1000 });
  budget.load([1, 0, 1000, [{ rate: 3, periodMs: 1000 }], [{ tokens: 0, drops: 0, at: 5000 }], 0, 0, []], 1000);
  assert.deepEqual(
    [1000, 5000, 5499, 5500].map((now) => budget.budget.remaining(now)),
    [0, 0, 0, 1],
  );
});
