// Limiters that call a function if it is allowed: Tollgate's Limiter beside `@tanstack/pacer`, each with its own clock.
//
// Pacer keeps the moment of every call and scans all of them each time, so it gets a realistic limit, and both are
// refilled after that many calls.
import { RateLimiter } from "@tanstack/pacer/rate-limiter";
import { Limiter } from "tollgate";

const COMMON = { rate: 100, periodMs: 86_400_000 };

export const limiterConsume = {
  name: "Tollgate's Limiter",
  make() {
    const limiters = [new Limiter(COMMON), new Limiter(COMMON)];
    let calls = 0;
    const call = () => void calls++;
    while (limiters[1].tryConsume());
    return (asked) => {
      calls = 0;
      for (let i = 0; i < asked.length; i++) {
        if (i % COMMON.rate === 0) limiters[0].reset();
        if (limiters[asked[i]].tryConsume()) call();
      }
      return calls;
    };
  },
};

export const pacer = {
  name: "@tanstack/pacer: RateLimiter",
  make() {
    let calls = 0;
    const call = () => void calls++;
    const limiters = [1, 2].map(
      () => new RateLimiter(call, { limit: COMMON.rate, window: COMMON.periodMs, windowType: "fixed" }),
    );
    while (limiters[1].maybeExecute());
    return (asked) => {
      calls = 0;
      for (let i = 0; i < asked.length; i++) {
        if (i % COMMON.rate === 0) limiters[0].reset();
        limiters[asked[i]].maybeExecute();
      }
      limiters[0].reset(); // and with it the timer
      return calls;
    };
  },
};
