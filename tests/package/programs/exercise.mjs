// Required of every environment: exact numbers from the core, waits by a fake clock and by the real one, and errors.

/** The expected result of {@link exercise}. */
export const EXPECTED = {
  burst: [true, false],
  refusal: { allowed: false, retryAt: 334, retryAfterMs: 334, remaining: 0 },
  never: { allowed: false, remaining: 0, maxCost: 3, retryAt: "Infinity", retryAfterMs: "Infinity" },
  promise: [false, true], // refused at 333, granted at 334
  snapshot: { tokens: 0, drops: 2, at: 334 },
  window: { allowed: false, retryAt: 60_000, retryAfterMs: 1, remaining: 0 },
  buckets: 1000,
  queued: {
    waiting: 1,
    wakesAt: 334,
    decision: { allowed: true, tokens: 1, readyAt: 334, remaining: 0, retryAfterMs: 0 },
  },
  waited: { decision: { allowed: true, tokens: 1, remaining: 0, retryAfterMs: 0 }, isEarly: false, isUnixTime: true },
  wrongCost: { isError: true, name: "TollgateError", code: "cost_not_whole", min: 0, max: 2 ** 53 - 1 },
  wrongLimit: { isError: true, name: "TollgateError", code: "capacity_too_large", min: 0, max: 2048 },
  wrongAcquire: { isError: true, name: "TollgateError", code: "cost_never_granted", maxCost: 1 },
};

/** Exercises the package, given its exports. Returns JSON. */
export async function exercise({ Bucket, Limiter, TollgateError }) {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const window = new Bucket(0, { kind: "fixed_window", rate: 2, periodMs: 60_000 });
  window.tryConsume(1, 2);
  const error = async (fail) => {
    try {
      await fail();
    } catch (error) {
      const { name, code, min, max, maxCost } = error;
      return JSON.parse(
        JSON.stringify({
          isError: error instanceof Error && error instanceof TollgateError,
          name,
          code,
          min,
          max,
          maxCost,
        }),
      );
    }
    return "nothing was thrown";
  };
  return {
    burst: [3, 1].map((cost) => bucket.tryConsume(0, cost)),
    refusal: bucket.peek(0),
    never: finite(bucket.peek(0, { cost: 4 })),
    promise: [333, 334].map((now) => bucket.tryConsume(now)),
    snapshot: bucket.save(334),
    window: window.peek(59_999),
    buckets: buckets(Bucket),
    queued: await queued(Limiter),
    waited: await waited(Limiter),
    wrongCost: await error(() => bucket.tryConsume(0, 1.5)),
    wrongLimit: await error(() => new Bucket(0, { rate: 1, periodMs: 2 ** 40, capacity: 2049 })),
    wrongAcquire: await error(() => new Limiter({ rate: 1, periodMs: 1 }).acquire({ cost: 2 })),
  };
}

/** A clock that moves only when it is set. */
export function standingClock() {
  let now = 0;
  const sleepers = new Map();
  return {
    now: () => now,
    at(moment, wake) {
      const own = () => wake();
      sleepers.set(own, moment);
      return () => sleepers.delete(own);
    },
    moments: () => [...sleepers.values()],
    set(moment) {
      now = moment;
      for (const [wake, at] of [...sleepers]) if (at <= now && sleepers.delete(wake)) wake();
    },
  };
}

/** How many of a thousand buckets keep their own numbers: more than fit in one page of the core's memory. */
function buckets(Bucket) {
  const all = Array.from({ length: 1000 }, (_, i) => new Bucket(0, { rate: i + 1, periodMs: 1000 }));
  const granted = all.filter((bucket, i) => bucket.tryConsume(0, i));
  return granted.filter((bucket, i) => bucket.remaining(0) === 1 && bucket.peek(0, { cost: i + 2 }).maxCost === i + 1)
    .length;
}

async function queued(Limiter) {
  const clock = standingClock();
  const limiter = new Limiter({ rate: 3, periodMs: 1000 }, { clock });
  limiter.tryConsume(3);
  const admitted = limiter.acquire();
  const { waiting } = limiter;
  const [wakesAt] = clock.moments();
  clock.set(wakesAt);
  return { waiting, wakesAt, decision: await admitted };
}

async function waited(Limiter) {
  const limiter = new Limiter({ rate: 1, periodMs: 50 });
  limiter.tryConsume();
  const { retryAt } = limiter.peek();
  const { readyAt, ...decision } = await limiter.acquire();
  return { decision, isEarly: readyAt < retryAt, isUnixTime: Math.abs(limiter.clock.now() - Date.now()) < 1000 };
}

/** JSON has no infinity. */
const finite = ({ retryAt, retryAfterMs, ...others }) => ({
  ...others,
  retryAt: String(retryAt),
  retryAfterMs: String(retryAfterMs),
});
