// Shared by the tests of Bucket.
import assert from "node:assert/strict";
import { TollgateError } from "../../build/package/index.js";

export const MAX = Number.MAX_SAFE_INTEGER;
export const MOMENT = 2 ** 52;
export const SPAN = 2 ** 51;
export const VERBS = ["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"];

/** A random limit with numbers small enough to matter. */
export function randomLimit({ below, pick }) {
  const periodMs = pick([1, 7, 333, 1000]);
  const kind = pick(["token_bucket", "fixed_window"]);
  return {
    kind,
    rate: pick([0, 1, 3, 7]),
    periodMs,
    capacity: below(12),
    maxDebt: pick([0, 5]),
    offsetMs: kind === "fixed_window" ? below(periodMs) : 0,
  };
}

/** Asserts that `call` throws a TollgateError with this code, and returns it. */
export function assertRefused(call, code, where = code) {
  try {
    call();
  } catch (error) {
    assert.equal(error.constructor, TollgateError, `${where}: ${error.stack}`);
    assert.equal(error.code, code, where);
    assert.deepEqual([error instanceof Error, error.name], [true, "TollgateError"], where);
    if (error.min !== undefined)
      assert.ok(error.min <= error.max && error.message.includes(`from ${error.min} to ${error.max}`), error.message);
    return error;
  }
  assert.fail(`${where} did not throw`);
}

/**
 * Returns what `call` returns, or undefined if it throws a TollgateError, or the TypeError of a failed conversion. Any
 * other error fails.
 */
export function assertSafe(call, row) {
  try {
    return call();
  } catch (error) {
    assert.ok(
      error.constructor === TollgateError || error.constructor === TypeError,
      `${describe(row)}: ${error.stack}`,
    );
    if (error.constructor === TollgateError)
      assert.match(error.code, /^([a-zA-Z]+_(not_whole|too_small|too_large)|snapshot_mismatched)$/);
    return undefined;
  }
}

export function assertDecision(
  { allowed, tokens, readyAt, retryAt, retryAfterMs, remaining, maxCost, ...others },
  now,
  row,
) {
  assert.deepEqual(others, {}, row);
  assert.equal(retryAfterMs, allowed ? 0 : retryAt - now, row);
  assert.ok(Number.isSafeInteger(remaining) && remaining >= 0, row);
  if (allowed)
    assert.ok(
      Number.isSafeInteger(tokens) && tokens >= 0 && readyAt >= now && retryAt === undefined && maxCost === undefined,
      row,
    );
  else if (retryAt === Infinity)
    assert.ok(Number.isSafeInteger(maxCost) && maxCost >= 0 && tokens === undefined && readyAt === undefined, row);
  else assert.ok(retryAt > now && maxCost === undefined && tokens === undefined && readyAt === undefined, row);
}

export function describe(value) {
  return JSON.stringify(value, (_, part) =>
    Object.is(part, -0)
      ? "-0"
      : ["object", "boolean", "string"].includes(typeof part) || Number.isFinite(part)
        ? part
        : String(part),
  );
}

/** Calls the methods of `subject`, and returns each answer without the members that {@link check} checks. */
export function checked(subject) {
  const by =
    (method) =>
    (...args) =>
      check(subject, subject[method](...args), subject.clock?.now() ?? args[0]);
  return { decide: by("decide"), peek: by("peek"), reserve: by("reserve") };
}

/** Checks `remaining` and `retryAfterMs`, which follow from the rest of an answer and from `subject`. Returns the rest. */
export function check(subject, { remaining, retryAfterMs, ...answer }, now) {
  assert.equal(remaining, subject.remaining(now), describe(answer));
  assert.equal(retryAfterMs, answer.allowed ? 0 : answer.retryAt - now, describe(answer));
  return answer;
}
