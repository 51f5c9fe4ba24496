// Around the built Worker: counts the storage operations of key objects. A request to /rows is answered with the rows read and
// written so far, where a deletion and setting an alarm are a row each; one to /evict evicts all objects.
import unsafe from "workerd:unsafe";
import front, { KeyObject as Real } from "./entry.js";

const rows = { read: 0, written: 0 };

export class KeyObject extends Real {
  constructor(context, env) {
    watch(context.storage);
    super(context, env);
  }
}

export default {
  async fetch(request, env, context) {
    const { pathname } = new URL(request.url);
    if (pathname === "/rows") return Response.json(rows);
    if (pathname !== "/evict") return front.fetch(request, env, context);
    await unsafe.evictAllDurableObjects();
    return new Response();
  },
};

/** The methods of storage are on prototypes that all objects share. */
function watch(storage) {
  if (isWatched) return;
  isWatched = true;
  const write = () => void rows.written++;
  for (const part of [storage, storage.kv]) for (const verb of ["put", "delete"]) wrap(part, verb, write);
  wrap(storage, "setAlarm", write);
  wrap(storage.kv, "list", (found) => {
    const listed = [...found];
    rows.read += listed.length;
    return listed;
  });
}
let isWatched = false;

/** Passes the result of each call of the method to `count`, which may return something equal. */
function wrap(object, name, count) {
  const prototype = Object.getPrototypeOf(object);
  const method = prototype[name];
  prototype[name] = function (...args) {
    const result = method.apply(this, args);
    return count(result) ?? result;
  };
}
