// Around the built Worker: a request to /evict puts all objects to sleep, as the runtime does with those that nobody asks,
// collects garbage, and says how many objects are still in memory and how many bytes WebAssembly has taken.
import unsafe from "workerd:unsafe";

let memory;
const { Instance } = WebAssembly;
WebAssembly.Instance = new Proxy(Instance, {
  construct(target, args) {
    const instance = new target(...args);
    ({ memory } = instance.exports);
    return instance;
  },
});
const { default: front, KeyObject: Real } = await import("./entry.js");

/** Each object that was ever made and may be there still. */
const made = [];

export class KeyObject extends Real {
  constructor(context, env) {
    super(context, env);
    made.push(new WeakRef(this));
  }
}

export default {
  async fetch(request, env, context) {
    if (new URL(request.url).pathname !== "/evict") return front.fetch(request, env, context);
    await unsafe.evictAllDurableObjects();
    // What the first collection finds dead is given back by finalizers, and only the next one finds what they held.
    for (let turn = 0; turn < 5; turn++) {
      gc();
      await scheduler.wait(1);
    }
    const alive = made.filter((object) => object.deref() !== undefined).length;
    return Response.json({ made: made.length, alive, bytes: memory.buffer.byteLength });
  },
};
