// The module the runtime loads. worker-build exports a class that answers `fetch` but not RPC, because it does not
// extend `DurableObject`; this one does, and forwards to it.
import { DurableObject } from "cloudflare:workers";
import * as built from "../../build/index.js";

export default built.default;

export class KeyObject extends DurableObject {
  #inner;
  constructor(state, env) {
    super(state, env);
    this.#inner = new built.KeyObject(state, env);
  }
  fetch(request) {
    return this.#inner.fetch(request);
  }
}
