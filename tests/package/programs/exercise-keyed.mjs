// KeyedLimiter's behaviour in every environment.

export function exerciseKeyed({ KeyedLimiter }) {
  let now = 1_700_000_000_000;
  const limiter = new KeyedLimiter({ rate: 2, periodMs: 1000 }, { maxKeys: 2, clock: { now: () => now } });
  const said = [limiter.tryConsume("a", 2), limiter.tryConsume("a"), limiter.tryConsume("b")];
  said.push(limiter.decide("c").retryAfterMs, limiter.size);
  now += 500;
  said.push(limiter.tryConsume("c"), new KeyedLimiter({ rate: 1, periodMs: 1000 }).tryConsume("by its own clock"));
  return said;
}

export const EXPECTED_KEYED = [true, false, true, 500, 2, true, true];
