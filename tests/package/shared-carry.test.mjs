// SharedLimiter: what a tab with other numbers makes of the tokens that it finds.
import assert from "node:assert/strict";
import { test } from "node:test";
import "../../build/package/index.js";
import { SharedBudget } from "../../build/package/shared-budget.js";

const MAX = Number.MAX_SAFE_INTEGER;
const SPAN = 2 ** 51;

test("tokens are carried over with the fraction of the next and a debt as deep as it was", () => {
  const old = { rate: 3, periodMs: 1000, capacity: 3, maxDebt: 2 };
  const renewed = { rate: 2, periodMs: 701, capacity: 2 };
  const widest = { rate: 1, periodMs: SPAN - 1, capacity: 1 };
  const next = { rate: 1, periodMs: SPAN, capacity: 1 };
  const window = { kind: "fixed_window", rate: 3, periodMs: 1000 };
  const table = [
    // old, tokens and drops of it, new, tokens and drops of that
    [old, [1, 999], renewed, [1, 700]], // of a token's 1000 drops then, 701 now
    [old, [3, 0], renewed, [2, 0]], // no more than the capacity
    [old, [-2, 1], renewed, [-2, 0]], // deeper than the new limit lets it become
    [old, [-1, 500], { ...renewed, rate: 0 }, [-1, 0]], // without refills a token is one drop
    [widest, [0, SPAN - 2], next, [0, SPAN - 2]], // not a whole token, although a float would round it to one
    [next, [0, SPAN - 1], widest, [0, SPAN - 2]],
    [{ rate: MAX, periodMs: 1, capacity: 0, maxDebt: MAX }, [-MAX, 0], next, [-1024, 0]], // the deepest the core keeps
    [window, [1, 0], { ...window, rate: 5, periodMs: 300 }, [1, 0]],
    [window, [1, 0], renewed, [2, 0]], // of another kind: a new bucket
  ];
  for (const [row, [was, [tokens, drops], is, [thenTokens, thenDrops]]] of table.entries()) {
    const budget = new SharedBudget(9000, is);
    budget.load([1, 0, 9000, [was], [{ tokens, drops, at: 9000 }], 0, 0, []], 9000);
    assert.deepEqual(budget.save(9000)[4], [{ tokens: thenTokens, drops: thenDrops, at: 9000 }], `row ${row}`);
  }
});

test("what came back before a step back of the clock does not come back again under other numbers", () => {
  const budget = new SharedBudget(1000, { rate: 2, periodMs: 1000 });
  budget.load([1, 0, 1000, [{ rate: 3, periodMs: 1000 }], [{ tokens: 0, drops: 0, at: 5000 }], 0, 0, []], 1000);
  assert.deepEqual(
    [1000, 5000, 5499, 5500].map((now) => budget.budget.remaining(now)),
    [0, 0, 0, 1],
  );
});
