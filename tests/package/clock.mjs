// A clock that stands still until a test moves it.
import { setImmediate } from "node:timers/promises";

/** 2023-11-14 22:13:20 UTC. */
export const START = 1_700_000_000_000;

/**
 * Wakes callers in the order of their moments, and equal ones in the order of their calls; `lateMs` later than asked.
 */
export class FakeClock {
  #now;
  #lateMs;
  #timers = new Set();

  constructor(now = START, lateMs = 0) {
    this.#now = now;
    this.#lateMs = lateMs;
  }

  now() {
    return this.#now;
  }

  at(moment, wake) {
    const timer = { moment, wake, firesAt: moment + this.#lateMs };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** The moments of the pending timers, in order. */
  get timers() {
    return [...this.#timers].map(({ moment }) => moment).sort((a, b) => a - b);
  }

  /** Advances to `moment` and fires the timers that are due. Each finishes its work before the next. */
  async to(moment) {
    await setImmediate();
    for (let next = this.#next(); next && next.firesAt <= moment; next = this.#next()) {
      this.#timers.delete(next);
      this.#now = Math.max(this.#now, next.firesAt);
      next.wake();
      await setImmediate();
    }
    this.#now = Math.max(this.#now, moment);
  }

  async advance(ms) {
    await this.to(this.#now + ms);
  }

  /** Advances from timer to timer until there are none. */
  async toTheEnd() {
    await setImmediate();
    for (let next = this.#next(); next; next = this.#next()) await this.to(Math.max(this.#now, next.firesAt));
  }

  /** Jumps, forward or back, and fires no timer. */
  set(moment) {
    this.#now = moment;
  }

  /** The fate of a promise: `{ at, value }` or `{ at, error }` once it is settled, `{}` before. */
  follow(promise) {
    const fate = {};
    promise.then(
      (value) => Object.assign(fate, { at: this.#now, value }),
      (error) => Object.assign(fate, { at: this.#now, error }),
    );
    return fate;
  }

  #next() {
    let first;
    for (const timer of this.#timers) if (!first || timer.firesAt < first.firesAt) first = timer;
    return first;
  }
}
