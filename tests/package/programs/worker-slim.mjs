import wasm from "tollgate/core.wasm";
import { Bucket, init, Limiter, TollgateError } from "tollgate/slim";
import { exercise } from "./exercise.mjs";

init(wasm);

export default {
  async fetch() {
    return Response.json({
      isModule: wasm instanceof WebAssembly.Module,
      exercise: await exercise({ Bucket, Limiter, TollgateError }),
    });
  },
};
