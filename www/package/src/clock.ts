// The time, and waking at one.

/** A time to go by. Where none is given it is {@link systemClock}; a test gives its own. */
export interface Clock {
  /** Unix milliseconds, whole, never less than before. */
  now(): number;
  /** Calls `wake` once, as soon as {@link now} has come to `moment` and never before. Returns what prevents it. */
  at(moment: number, wake: () => void): () => void;
}

/**
 * Makes a clock of two that run: the wall's, which may be set and is the only one that goes on while a laptop sleeps, and
 * a monotonic one, which is neither. It is anchored to the wall's once, so it does not jump with it. Only when the wall's has
 * come to be ahead by more than a minute was that a sleep, and the clock follows. It never goes back.
 */
export function makeClock(
  wallMs: () => number = () => Date.now(),
  monotonicMs: () => number = () => performance.now(),
): Clock {
  let offsetMs: number | undefined;
  const now = () => {
    const elapsedMs = monotonicMs();
    const apartMs = wallMs() - elapsedMs;
    if (offsetMs === undefined || apartMs - offsetMs > SLEEP_MS) offsetMs = apartMs;
    return Math.floor(elapsedMs + offsetMs);
  };
  return {
    now,
    at(moment, wake) {
      let timer: ReturnType<typeof setTimeout>;
      const sleep = () => {
        clearTimeout(timer);
        timer = setTimeout(look, Math.min(moment - now(), LONGEST_TIMER_MS));
      };
      const look = () => {
        if (moment > now()) return sleep();
        cancel();
        wake();
      };
      const cancel = () => {
        clearTimeout(timer);
        sleepers.delete(look);
      };
      sleepers.add(look);
      sleep();
      return cancel;
    },
  };
}

// A timer does not run while the laptop sleeps: those who wait look again when somebody looks at the page again.
const sleepers = new Set<() => void>();
const wakeAll = () => sleepers.forEach((look) => look());
globalThis.document?.addEventListener("visibilitychange", wakeAll);

/** More than clocks are corrected by at once, and less than anybody would call a sleep. The core's step back is as long. */
const SLEEP_MS = 60_000;
/** What a timer can wait: with more it fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** The clock of this page or process. */
export const systemClock: Clock = makeClock();
