// `rate-limiter-flexible` in memory: a fixed window for each key, and a promise for each answer. It reads `Date.now()` itself.
import { RateLimiterMemory } from "rate-limiter-flexible";
import { PLENTY, SPENT } from "../limits.mjs";

export const flexibleOneByOne = {
  name: "rate-limiter-flexible, one by one",
  make() {
    const limiters = windows();
    return async (asked) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) {
        try {
          await limiters[asked[i]].consume("alice", 1);
          allowed++;
        } catch {}
      }
      return allowed;
    };
  },
};

/** Many calls before the first is awaited, in the cheapest way. */
export const flexibleTogether = {
  name: "rate-limiter-flexible, together",
  make() {
    const limiters = windows();
    return async (asked) => {
      let allowed = 0;
      const yes = () => void allowed++;
      const no = () => {};
      for (let i = 0; i < asked.length; ) {
        let last;
        for (const end = Math.min(i + TOGETHER, asked.length); i < end; i++)
          last = limiters[asked[i]].consume("alice", 1).then(yes, no);
        await last; // they are settled in turn
      }
      return allowed;
    };
  },
};

/** A window of a day, which does not end during the measurement; one of them has no points at all. */
function windows() {
  return [PLENTY, SPENT].map(
    ({ capacity, initial = capacity }) => new RateLimiterMemory({ points: initial, duration: 86_400 }),
  );
}

const TOGETHER = 1_000;
