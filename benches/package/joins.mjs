// How each of many calls joins a queue, as Tollgate's options and as p-queue's.

export const JOINS = {
  "without options": [() => undefined, () => undefined],
  "with a longest wait": [() => ({ maxWaitMs: LONG_MS }), () => ({ timeout: LONG_MS })],
  "with a signal each": [withSignal, withSignal],
};

function withSignal() {
  return { signal: new AbortController().signal };
}

/** Longer than the benchmark runs. */
export const LONG_MS = 100_000_000;
