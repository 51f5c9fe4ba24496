// Tollgate inside the calling Worker, as the limiters written by hand are inside theirs.
import { tollgate } from "../../../build/worker/embedded.mjs";

export { KeyObject } from "../../../build/worker/key_object.mjs";

export default {
  async fetch(request, env) {
    const decision = await tollgate(env).consume(await request.json());
    return decision.response();
  },
};
