// After a panic: a new instance of the Rust module, with memory of its own.
//
// Rust aborts when it panics. Nothing is unwound, so a bucket may be half changed and a lock never opened: the instance must
// not be called again. A new one takes its place at once, and what lived in the old one is made anew when it is next used.
// Requests that were under way fail; budgets are what storage says.

/** How many instances there have been before this one. */
let count = 0;

/**
 * The exports of an instance, watched; `reset` replaces it. The build puts this into what wasm-bindgen writes.
 *
 * What is thrown out of an export was thrown in the middle of Rust: by a trap, which is how a panic ends, or by JavaScript
 * that Rust had called. Errors that Rust returns are thrown by wasm-bindgen, outside.
 */
export function watched(exports, reset) {
  let depth = 0;
  let isBroken = false;
  const watch =
    (call) =>
    (...args) => {
      depth++;
      try {
        return call(...args);
      } catch (error) {
        isBroken = true;
        throw error;
      } finally {
        // Not while it still runs further out, where JavaScript that Rust had called has called Rust and caught the error.
        if (--depth === 0 && isBroken) {
          count++;
          reset();
        }
      }
    };
  // A start that fails once would fail for ever.
  const isWatched = ([name, value]) => typeof value === "function" && name !== "__wbindgen_start";
  const entries = Object.entries(exports);
  return Object.fromEntries(entries.map((entry) => (isWatched(entry) ? [entry[0], watch(entry[1])] : entry)));
}

/** A function that gives what `make` makes in Rust's memory: always the same, until that memory is a new one. */
export function lasting(make) {
  let made;
  let madeIn;
  return () => {
    if (madeIn !== count) {
      made = make();
      madeIn = count;
    }
    return made;
  };
}
