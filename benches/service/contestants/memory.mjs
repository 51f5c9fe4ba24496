// An object per key that keeps its levels in memory alone: as fast as an object can be, and every budget is full again when it is
// evicted.
import { DurableObject } from "cloudflare:workers";
import { Buckets } from "./buckets.mjs";
import { asksObjects, policiesOf } from "./worker.mjs";

export default asksObjects;

export class KeyObject extends DurableObject {
  #buckets = new Buckets();

  consume(policy, cost) {
    return this.#buckets.consume(policy, policiesOf(this.env).get(policy), cost);
  }
}
