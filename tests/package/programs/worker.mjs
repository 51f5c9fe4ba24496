import { Bucket, Limiter, systemClock, TollgateError } from "tollgate";
import { exercise } from "./exercise.mjs";

/** Made while the Worker starts, before any request. */
const early = new Bucket(0, { rate: 3, periodMs: 1000 });
/** The clock stands at 0 then. */
const madeAt = systemClock.now();
const limiter = new Limiter({ rate: 1, periodMs: 60_000, initial: 0 });

export default {
  async fetch() {
    return Response.json({
      early: early.remaining(0),
      start: [madeAt, limiter.tryConsume(), limiter.clock.now() > madeAt],
      exercise: await exercise({ Bucket, Limiter, TollgateError }),
    });
  },
};
