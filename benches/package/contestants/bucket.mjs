// Tollgate's Bucket with time as an argument, with its own clock, and the same in plain JavaScript.
import { Bucket, systemClock } from "tollgate";
import { PLENTY, SPENT } from "../limits.mjs";
import { Bucket as PlainBucket } from "./plain.mjs";

export const bucket = {
  name: "Tollgate's Bucket",
  make(now) {
    const buckets = [new Bucket(now, PLENTY), new Bucket(now, SPENT)];
    return (asked, now) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) if (buckets[asked[i]].tryConsume(now + (i >> 1), 1)) allowed++;
      return allowed;
    };
  },
};

export const bucketWithClock = {
  name: "Tollgate's Bucket with its clock",
  make() {
    const buckets = [PLENTY, SPENT].map((limit) => new Bucket(systemClock.now(), limit));
    return (asked) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) if (buckets[asked[i]].tryConsume(systemClock.now(), 1)) allowed++;
      return allowed;
    };
  },
};

export const plain = {
  name: "plain JavaScript",
  make(now) {
    const buckets = [new PlainBucket(now, PLENTY), new PlainBucket(now, SPENT)];
    return (asked, now) => {
      let allowed = 0;
      for (let i = 0; i < asked.length; i++) if (buckets[asked[i]].consume(now + (i >> 1), 1)) allowed++;
      return allowed;
    };
  },
};
