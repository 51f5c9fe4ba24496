// Limiters of many keys: `make()` returns a function that asks for one token of a key. The limit is the same for all, and slow
// enough that no key is full again while it is measured.
import { TokenBucket } from "limiter";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { Bucket, systemClock } from "tollgate";
import { KeyedLimiter } from "tollgate/keyed";

const POINTS = 100;
const HOUR_S = 3600;
const LIMIT = { rate: POINTS, periodMs: HOUR_S * 1000 };

export const contestants = {
  "Tollgate's KeyedLimiter": () => {
    const limiter = new KeyedLimiter(LIMIT);
    return (key) => limiter.tryConsume(key);
  },
  "a Map of Tollgate's Bucket": () => {
    const buckets = new Map();
    return (key) => {
      const now = systemClock.now();
      let bucket = buckets.get(key);
      if (!bucket) {
        bucket = new Bucket(now, LIMIT);
        buckets.set(key, bucket);
      }
      return bucket.tryConsume(now);
    };
  },
  "a Map of limiter's TokenBucket": () => {
    const buckets = new Map();
    return (key) => {
      let bucket = buckets.get(key);
      if (!bucket) {
        bucket = new TokenBucket({ bucketSize: POINTS, tokensPerInterval: POINTS, interval: HOUR_S * 1000 });
        bucket.content = POINTS;
        buckets.set(key, bucket);
      }
      return bucket.tryRemoveTokens(1);
    };
  },
  "rate-limiter-flexible": () => {
    const limiter = new RateLimiterMemory({ points: POINTS, duration: HOUR_S });
    return (key) => limiter.consume(key, 1);
  },
};
