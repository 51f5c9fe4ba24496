// Waiting, but not for ever.
import { waitUntil } from "cloudflare:workers";

/** Settles like `promise`, or rejects with a {@link Timeout} after `ms` milliseconds. */
export function within(ms, promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Timeout(ms)), ms);
    const settle = (settled) => (value) => {
      clearTimeout(timer);
      settled(value);
    };
    promise.then(settle(resolve), settle(reject));
  });
}

/**
 * The same for what most requests wait for. A timer costs as much as half of what Rust does for a request, so requests that wait at the
 * same time share one, of a {@link Watch}; one that waits alone has its own, which ends with it.
 */
export function withinShared(ms, promise) {
  const now = Date.now();
  const at = now + ms;
  if (!watch?.takes(at, now)) {
    if (!(aloneUntil > now)) {
      aloneUntil = at;
      const ended = () => {
        if (aloneUntil === at) aloneUntil = 0;
      };
      promise.then(ended, ended);
      return within(ms, promise);
    }
    if (watch?.isOpen(now)) return within(ms, promise); // a shorter wait than the others
    watch = new Watch(at, now);
  }
  return watch.within(ms, at, promise);
}

/** Until when a request waits alone, at most: one whose client has gone is not heard of again. */
let aloneUntil = 0;
let watch;

/**
 * One timer at a time for many requests. It belongs to the one that has begun the watch, which goes on behind its answer; the runtime
 * hands what is rejected here over to the request that waits for it.
 */
class Watch {
  #waiting = new Set();
  #wakesAt;
  #closesAt;

  constructor(at, now) {
    this.#wakesAt = at;
    this.#closesAt = now + OPEN_MS;
    waitUntil(this.#run());
  }

  isOpen(now) {
    return this.#wakesAt < Infinity && now < this.#closesAt;
  }

  takes(at, now) {
    return at >= this.#wakesAt && now < this.#closesAt;
  }

  within(ms, at, promise) {
    return new Promise((resolve, reject) => {
      const one = { at, isLate: () => reject(new Timeout(ms)) };
      const settle = (settled) => (value) => {
        this.#waiting.delete(one);
        settled(value);
      };
      promise.then(settle(resolve), settle(reject));
      this.#waiting.add(one);
    });
  }

  async #run() {
    while (this.#wakesAt < Infinity) {
      await new Promise((done) => setTimeout(done, this.#wakesAt - Date.now()));
      const now = Date.now();
      this.#wakesAt = Infinity;
      for (const one of this.#waiting) {
        if (one.at > now) this.#wakesAt = Math.min(this.#wakesAt, one.at);
        else {
          this.#waiting.delete(one);
          one.isLate();
        }
      }
    }
  }
}

/** The runtime ends what goes on for more than 30 seconds behind an answer. */
const OPEN_MS = 10_000;

export class Timeout extends Error {
  constructor(ms) {
    super(`no answer within ${ms} ms`);
  }
}
