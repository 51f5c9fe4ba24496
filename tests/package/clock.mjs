// The package's clock for tests, with additions for these tests.
import { FakeClock as PublishedClock } from "../../build/package/testing.js";

/** 2023-11-14 22:13:20 UTC. */
export const START = 1_700_000_000_000;

export class FakeClock extends PublishedClock {
  /** The fate of a promise: `{ at, value }` or `{ at, error }` once it is settled, `{}` before. */
  follow(promise) {
    const fate = {};
    promise.then(
      (value) => Object.assign(fate, { at: this.now(), value }),
      (error) => Object.assign(fate, { at: this.now(), error }),
    );
    return fate;
  }
}
