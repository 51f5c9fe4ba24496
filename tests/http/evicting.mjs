// Around the built Worker: a request to /evict evicts all objects, as the runtime does with idle ones, collects
// garbage, and reports how many objects are still in memory and how many bytes WebAssembly has.
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

/** What is still there after as many turns stays there. */
const MOST_TURNS = 500;

/** Every object ever created, by weak reference. */
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
    // Finalizers free what the first collection finds dead; only the next one finds what those objects kept alive. On a busy machine the
    // runtime may let go of an object a few turns later.
    let alive = made.length;
    for (let turn = 0; turn < 5 || (alive > 0 && turn < MOST_TURNS); turn++) {
      await scheduler.wait(1); // what was looked at stays until then
      gc();
      await scheduler.wait(1);
      alive = made.filter((object) => object.deref() !== undefined).length;
    }
    return Response.json({ made: made.length, alive, bytes: memory.buffer.byteLength });
  },
};
