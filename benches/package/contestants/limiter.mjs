// `limiter`: its TokenBucket, which is faster than its RateLimiter. It reads `performance.now()` itself.
import { TokenBucket } from "limiter";
import { PLENTY, SPENT } from "../limits.mjs";

export const limiter = {
  name: "limiter: TokenBucket",
  make() {
    const buckets = [PLENTY, SPENT].map(({ rate, periodMs, capacity, initial = capacity }) => {
      const bucket = new TokenBucket({ bucketSize: capacity, tokensPerInterval: rate, interval: periodMs });
      bucket.content = initial;
      return bucket;
    });
    return (asked) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) if (buckets[asked[i]].tryRemoveTokens(1)) allowed++;
      return allowed;
    };
  },
};
