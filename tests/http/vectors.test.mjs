// The shared vectors, tests/vectors/*.json, through HTTP: all cases that the service has the verbs and policies for.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { start } from "./workerd.mjs";

const folder = new URL("../vectors/", import.meta.url);
const cases = readdirSync(folder)
  .filter((name) => name.endsWith(".json"))
  .flatMap((name) => JSON.parse(readFileSync(new URL(name, folder), "utf8")).cases.map((each) => ({ ...each, file: name })));
const mine = cases.filter(({ limit, steps }) => !limit.max_debt && steps.every(({ verb }) => ["consume", "peek"].includes(verb)));

/** The limit as POLICIES has it. */
function policy({ kind, rate, period_ms, capacity, initial, offset_ms, max_debt: _, ...others }) {
  assert.deepEqual(others, {}, "a limit with fields that this test does not pass on");
  const policy = { kind, rate, period: `${period_ms}ms`, capacity, initial };
  // Natively a window without an offset has the phase 0; here it would have the key's.
  if (kind === "fixed_window") policy.offset = `${offset_ms ?? 0}ms`;
  return policy;
}

const tollgate = await start({ policies: Object.fromEntries(mine.map(({ limit }, i) => [`case-${i}`, policy(limit)])) });

for (const [index, { file, name, limit, steps }] of mine.entries()) {
  test(`${file}: ${name}`, async () => {
    const ask = { policy: `case-${index}`, key: name };
    const capacity = limit.capacity ?? limit.rate;
    for (const [number, { at, verb, cost, expect, remaining }] of steps.entries()) {
      const { status, headers, body } = await tollgate[verb]({ ...ask, cost }, { now: at });
      const found = { status, retry_after: headers["retry-after"], retry_at: body.retry_at, max_cost: body.max_cost };
      const step = `step ${number + 1}: ${JSON.stringify(body)}`;
      assert.deepEqual(found, { ...NOTHING, ...expected(expect, at, cost, capacity) }, step);
      const left = status === 400 ? (await tollgate.peek({ ...ask, cost: 0 }, { now: at })).body : body;
      assert.deepEqual([left.remaining, left.now, left.limit], [remaining, at, capacity], step);
      if (expect.allow) assert.deepEqual([body.cost, body.now], [expect.allow.tokens, expect.allow.ready_at], step);
      // A budget that does not come back: the most that could pass is what is left.
      if (expect.never && status === 429) assert.deepEqual([expect.never.max, body.reset_at], [remaining, null], step);
    }
  });
}

const NOTHING = { retry_after: undefined, retry_at: undefined, max_cost: undefined };

function expected({ wait, never }, now, cost, capacity) {
  if (wait) {
    const seconds = Math.max(1, Math.ceil((wait.retry_at - now) / 1_000));
    return { status: 429, retry_at: wait.retry_at, retry_after: String(seconds) };
  }
  if (never) return cost > capacity ? { status: 400, max_cost: never.max } : { status: 429 };
  return { status: 200 };
}

test("at least one case ran", () => {
  assert.ok(mine.length > 0);
  const steps = mine.reduce((sum, { steps }) => sum + steps.length, 0);
  console.log(`${mine.length} of ${cases.length} cases, ${steps} steps; the others have verbs or debts that the service has not`);
});
