// After a panic: a new instance of the Rust module, with memory of its own.
//
// Rust aborts when it panics. Nothing is unwound, so a bucket may be half changed and a lock never released: the
// instance must not be called again. A new one takes its place at once, and objects of the old one are made again when
// they are next used. Requests in flight fail; budgets are reloaded from storage.

/** Number of instances before this one. */
let count = 0;

/** Number of calls of {@link forget}. */
let forgotten = 0;

/** Has everything that is {@link lasting} and forgetful made again when it is next used. For tests. */
export function forget() {
  forgotten++;
}

/**
 * The exports of an instance, watched; `reset` replaces it. The build inserts this into wasm-bindgen's output.
 *
 * An exception that leaves an export interrupted Rust: a trap, which is how a panic ends, or an error in JavaScript
 * that Rust called. Errors that Rust returns are thrown by wasm-bindgen, outside the exports.
 */
export function watched(exports, reset) {
  let depth = 0;
  let isBroken = false;
  const watch = (call) => {
    if (call.length > MOST_PARAMETERS)
      throw new Error(`an export has ${call.length} parameters, not ${MOST_PARAMETERS}`);
    // Named parameters, not `...args`, which would allocate an array for each call. An export ignores surplus arguments.
    return (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) => {
      depth++;
      try {
        return call(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
      } catch (error) {
        isBroken = true;
        throw error;
      } finally {
        // Not while an outer call still runs: Rust may have called JavaScript that called Rust again and caught the
        // error.
        if (--depth === 0 && isBroken) {
          count++;
          reset();
        }
      }
    };
  };
  // The start function is not watched: if it fails once, it fails always.
  const isWatched = ([name, value]) => typeof value === "function" && name !== "__wbindgen_start";
  const entries = Object.entries(exports);
  return Object.fromEntries(entries.map((entry) => (isWatched(entry) ? [entry[0], watch(entry[1])] : entry)));
}

/** Maximum parameters that {@link watched} passes on. `Frontend.head` and `Frontend.ask` have the most. */
const MOST_PARAMETERS = 16;

/**
 * A function that returns what `make` makes in Rust's memory. It calls `make` again only after that memory was replaced or, if it is
 * forgetful, after {@link forget}; the argument says whether {@link forget} is why.
 */
export function lasting(make, isForgetful = false) {
  let made;
  let madeIn;
  let madeAfter = forgotten;
  return () => {
    if (madeIn !== count || (isForgetful && madeAfter !== forgotten)) {
      made = make(madeAfter !== forgotten);
      madeIn = count;
      madeAfter = forgotten;
    }
    return made;
  };
}
