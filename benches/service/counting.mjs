// Around any of the contestants: counts the rows that its objects write, as the platform bills them, and tells at /rows. It
// takes time, so whoever is counted is not timed.
import * as counted from "./counted.mjs";

let rows = 0;

export class KeyObject extends counted.KeyObject {
  constructor(state, env) {
    watch(state.storage);
    super(state, env);
  }
}

export default {
  fetch(request, env, context) {
    return new URL(request.url).pathname === "/rows" ? new Response(String(rows)) : counted.default.fetch(request, env, context);
  },
};

/** The methods of storage are on prototypes that all objects share. */
function watch(storage) {
  if (isWatched) return;
  isWatched = true;
  wrap(storage.sql, "exec", ({ rowsWritten }) => rowsWritten);
  for (const verb of ["setAlarm", "put", "delete"]) wrap(storage, verb, () => 1);
  for (const verb of ["put", "delete"]) wrap(storage.kv, verb, () => 1);
}
let isWatched = false;

/** Adds the rows that each call of the method has written. */
function wrap(object, name, rowsOf) {
  const prototype = Object.getPrototypeOf(object);
  const method = prototype[name];
  prototype[name] = function (...args) {
    const result = method.apply(this, args);
    rows += rowsOf(result);
    return result;
  };
}
