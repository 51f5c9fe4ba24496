// The clock, and timers by it.

/** A source of time. The default is {@link systemClock}; a test passes its own. */
export interface Clock {
  /** Unix milliseconds: a whole number that never decreases. */
  now(): number;
  /**
   * Calls `wake` once, as soon as {@link now} has reached `moment` and never before. Returns a function that cancels
   * it.
   */
  at(moment: number, wake: () => void): () => void;
}

/**
 * Makes a clock of two others: the wall clock, which can be set and keeps running while a laptop sleeps, and a
 * monotonic clock, which cannot be set and may stop. It is anchored to the wall clock when it is first read and then
 * follows the monotonic one, so it does not jump. Only when the wall clock has got more than a minute ahead, as after a
 * sleep, does it catch up. It never goes back.
 *
 * Timers stop while a machine sleeps. So all that are due fire as soon as the clock is read afterwards, and at the latest
 * within a minute.
 */
export function makeClock(
  wallMs: () => number = () => Date.now(),
  monotonicMs: () => number = () => performance.now(),
): Clock {
  let offsetMs: number | undefined;
  const now = () => {
    const elapsedMs = monotonicMs();
    const differenceMs = wallMs() - elapsedMs;
    if (offsetMs === undefined) offsetMs = differenceMs;
    else if (differenceMs - offsetMs > SLEEP_MS) {
      offsetMs = differenceMs;
      queueMicrotask(checkAll);
    }
    return Math.floor(elapsedMs + offsetMs);
  };
  return {
    now,
    at(moment, wake) {
      let timer: ReturnType<typeof setTimeout>;
      const setTimer = () => {
        clearTimeout(timer);
        timer = setTimeout(check, Math.min(moment - now(), SLEEP_MS));
      };
      const check = () => {
        if (moment > now()) return setTimer();
        cancel();
        wake();
      };
      const cancel = () => {
        clearTimeout(timer);
        pending.delete(check);
      };
      pending.add(check);
      setTimer();
      return cancel;
    },
  };
}

// Check all timers, too, when a page that was frozen is seen or used again.
const pending = new Set<() => void>();
const checkAll = () => {
  for (const check of pending) check();
};
for (const type of ["visibilitychange", "resume", "focus", "pageshow"])
  for (const target of [globalThis.document, globalThis.window]) target?.addEventListener(type, checkAll);

/**
 * More than a clock is corrected by, and shorter than any real sleep. The core tolerates a step back of the same
 * length. No timer is set for longer, because it may stop for as long as a machine sleeps.
 */
const SLEEP_MS = 60_000;

/** The clock of this page or process: see {@link makeClock}. */
export const systemClock: Clock = makeClock();
