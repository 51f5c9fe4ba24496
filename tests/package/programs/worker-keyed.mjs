import { KeyedLimiter } from "tollgate/keyed";
import { exerciseKeyed } from "./exercise-keyed.mjs";

/** Made while the Worker starts, when the clock stands at 0. */
const limiter = new KeyedLimiter({ rate: 1, periodMs: 60_000 });

export default {
  fetch() {
    const own = [limiter.tryConsume("a"), limiter.tryConsume("a")];
    return Response.json({ own, exercise: exerciseKeyed({ KeyedLimiter }) });
  },
};
