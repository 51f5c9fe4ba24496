// No object at all: the Worker answers from its own memory, as if there were no other isolate. That limits nothing where there are
// two, so it is not a usable limiter: it is the least that a request to a Worker can take.
import { DurableObject } from "cloudflare:workers";
import { Buckets } from "./buckets.mjs";
import { decides } from "./worker.mjs";

const decoder = new TextDecoder();
const buckets = new Buckets();

export default decides(() => (keyBytes, policy, cost) => {
  return buckets.consume(`${policy.name}:${decoder.decode(keyBytes)}`, policy, cost);
});

export class KeyObject extends DurableObject {}
