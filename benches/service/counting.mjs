// Wraps each contestant: counts the rows that its objects write, as the platform bills them, and reports them at /rows.
import * as counted from "./counted.mjs";

export * from "./counted.mjs";

let rows = 0;

export class KeyObject extends counted.KeyObject {
  constructor(state, env) {
    watch(state.storage);
    super(state, env);
  }
}

const front = counted.default;
// One is a class, whose fetch() finds `env` itself, and the others are objects.
export default typeof front === "function"
  ? class extends front {
      fetch(request) {
        return isForUs(request) ? told() : super.fetch(request);
      }
    }
  : { fetch: (request, env, context) => (isForUs(request) ? told() : front.fetch(request, env, context)) };

const isForUs = ({ url }) => url.endsWith("/rows");
const told = () => new Response(String(rows));

/** The methods of storage are on prototypes that all objects share. */
function watch(storage) {
  if (isWatched) return;
  isWatched = true;
  wrap(storage.sql, "exec", ({ rowsWritten }) => rowsWritten);
  for (const part of [storage, storage.kv]) for (const verb of ["put", "delete"]) wrap(part, verb, () => 1);
  wrap(storage, "setAlarm", () => 1);
}
let isWatched = false;

/** Adds the rows written by each call of the method. */
function wrap(object, name, rowsOf) {
  const prototype = Object.getPrototypeOf(object);
  const method = prototype[name];
  prototype[name] = function (...args) {
    const result = method.apply(this, args);
    rows += rowsOf(result);
    return result;
  };
}
