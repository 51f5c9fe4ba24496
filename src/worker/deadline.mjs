// Waiting with a time limit.

/** Settles like `promise`, or rejects with a {@link Timeout} after `ms` milliseconds. */
export function within(ms, promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Timeout(`no answer within ${ms} ms`)), ms);
    const settle = (settled) => (value) => {
      clearTimeout(timer);
      settled(value);
    };
    promise.then(settle(resolve), settle(reject));
  });
}

export class Timeout extends Error {}
