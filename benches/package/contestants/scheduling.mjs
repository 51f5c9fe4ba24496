// Limiters that call a function as soon as it is allowed, and return a promise of its result. They never refuse, so
// only calls that are admitted at once are measured; up to a hundred together, because bottleneck waits for several
// timers with each call, even if nothing is limited, which is nearly all of its time. All read their own clocks.
import Bottleneck from "bottleneck";
import pThrottle from "p-throttle";
import { Limiter } from "tollgate";
import { PLENTY } from "../limits.mjs";

export const limiterThrottle = {
  name: "Tollgate's Limiter.throttle",
  make() {
    let calls = 0;
    const throttled = new Limiter(PLENTY).throttle(() => ++calls);
    return async (asked) => {
      calls = 0;
      for (let i = 0; i < asked.length; ) {
        const results = [];
        for (const end = Math.min(i + TOGETHER, asked.length); i < end; i++) results.push(throttled());
        await Promise.all(results);
      }
      return calls;
    };
  },
};

export const pThrottled = {
  name: "p-throttle",
  make() {
    let calls = 0;
    const throttled = pThrottle({ limit: PLENTY.capacity, interval: PLENTY.periodMs })(() => ++calls);
    return async (asked) => {
      calls = 0;
      for (let i = 0; i < asked.length; ) {
        const results = [];
        for (const end = Math.min(i + TOGETHER, asked.length); i < end; i++) results.push(throttled());
        await Promise.all(results);
      }
      return calls;
    };
  },
};

export const bottleneck = {
  name: "bottleneck",
  make() {
    let calls = 0;
    const throttled = new Bottleneck({ reservoir: PLENTY.capacity }).wrap(async () => ++calls);
    return async (asked) => {
      calls = 0;
      for (let i = 0; i < asked.length; ) {
        const results = [];
        for (const end = Math.min(i + TOGETHER, asked.length); i < end; i++) results.push(throttled());
        await Promise.all(results);
      }
      return calls;
    };
  },
};

const TOGETHER = 100;
