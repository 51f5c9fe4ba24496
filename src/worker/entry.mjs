// The module the runtime loads; .ci/build-worker puts it beside what worker-build made. The class that
// worker-build exports does not extend `DurableObject`, so the runtime would not let it answer RPC; this one does.
import { DurableObject } from "cloudflare:workers";
import * as built from "./index.js";

export default built.default;

export class KeyObject extends DurableObject {
  #inner;
  constructor(state, env) {
    super(state, env);
    this.#inner = new built.KeyObject(state, env);
  }
  consume(policy, cost) {
    return this.#inner.consume(policy, cost);
  }
  peek(policy, cost) {
    return this.#inner.peek(policy, cost);
  }
}
