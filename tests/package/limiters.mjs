// Shared by the tests of Limiter.
import { Limiter } from "../../build/package/index.js";
import { check } from "./buckets.mjs";
import { FakeClock, START } from "./clock.mjs";

export const SECOND = { rate: 1, periodMs: 1000 };
export const allow = (tokens, readyAt) => ({ allowed: true, tokens, readyAt: START + readyAt });
export const wait = (retryAt) => ({ allowed: false, retryAt: START + retryAt });
export const never = (maxCost) => ({ allowed: false, retryAt: Infinity, maxCost });

/**
 * A limiter, its clock, its events, and its `acquire`, whose outcomes are recorded. Moments count from the start. Of each
 * answer `remaining` and `retryAfterMs` are checked and left out.
 */
export function make(limits, options, lateMs = 0) {
  const clock = new FakeClock(START, lateMs);
  const limiter = new Limiter(limits, { clock, ...options });
  const events = [];
  limiter.on(({ decision, ...event }) =>
    events.push(decision ? { ...event, decision: check(limiter, decision, clock.now()) } : event),
  );
  const fates = [];
  const acquire = (options) => {
    const fate = clock.follow(limiter.acquire(options).then(({ remaining, retryAfterMs, ...grant }) => grant));
    fates.push(fate);
    return fate;
  };
  /** For each `acquire` call: when it was admitted, or the code of its error, or undefined while it waits. */
  const admitted = () => fates.map(({ at, value, error }) => (value ? at - START : (error?.code ?? error)));
  const to = (ms) => clock.to(START + ms);
  return { clock, limiter, events, acquire, admitted, to };
}
