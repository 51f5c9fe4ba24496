import { Bucket, Limiter, TollgateError } from "tollgate";
import { exercise } from "./exercise.mjs";

/** Made while the Worker starts, before any request. */
const early = new Bucket(0, { rate: 3, periodMs: 1000 });

export default {
  async fetch() {
    return Response.json({ early: early.remaining(0), exercise: await exercise({ Bucket, Limiter, TollgateError }) });
  },
};
