// A clock for tests, and an isolate that forgets.
import type { Clock } from "./clock.js";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import * as recovery from "./worker/recovery.mjs";

/**
 * A clock that stands still until a test moves it. Pass it wherever a `clock` is accepted.
 *
 * ```js
 * const clock = new FakeClock();
 * const limiter = new Limiter({ rate: 1, periodMs: 1000 }, { clock });
 * limiter.tryConsume();
 * const admitted = limiter.acquire();
 * await clock.advance(1000);
 * await admitted;
 * ```
 */
export class FakeClock implements Clock {
  #now: number;
  readonly #lateMs: number;
  readonly #timers = new Set<Timer>();

  /** Starts at `now`: by default 2023-11-14 22:13:20 UTC. Wakes callers `lateMs` later than asked, as busy pages do. */
  constructor(now = 1_700_000_000_000, lateMs = 0) {
    this.#now = now;
    this.#lateMs = lateMs;
  }

  now(): number {
    return this.#now;
  }

  at(moment: number, wake: () => void): () => void {
    const timer = { moment, wake, firesAt: moment + this.#lateMs };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** The moments of the pending timers, in order. */
  get timers(): number[] {
    return [...this.#timers].map(({ moment }) => moment).sort((a, b) => a - b);
  }

  /**
   * Advances to `moment` and fires the timers that are due, in the order of their moments, and equal ones in the order in
   * which they were set. Each finishes its work before the next.
   */
  async to(moment: number): Promise<void> {
    await rest();
    for (let next = this.#next(); next && next.firesAt <= moment; next = this.#next()) {
      this.#timers.delete(next);
      this.#now = Math.max(this.#now, next.firesAt);
      next.wake();
      await rest();
    }
    this.#now = Math.max(this.#now, moment);
  }

  /** Advances by `ms`. */
  async advance(ms: number): Promise<void> {
    await this.to(this.#now + ms);
  }

  /** Advances from timer to timer until there are none. */
  async toTheEnd(): Promise<void> {
    await rest();
    for (let next = this.#next(); next; next = this.#next()) await this.to(Math.max(this.#now, next.firesAt));
  }

  /** Jumps, forward or back, and fires no timer. */
  set(moment: number): void {
    this.#now = moment;
  }

  #next(): Timer | undefined {
    let first: Timer | undefined;
    for (const timer of this.#timers) if (!first || timer.firesAt < first.firesAt) first = timer;
    return first;
  }
}

/**
 * Makes this isolate forget what `tollgate/worker` remembers between requests: refusals, leases, and what the registry has answered. It
 * keeps its counters, its listeners of live decisions, and the last known levels of shards. What objects store is not affected: Vitest's
 * Workers pool deletes that with `reset`.
 *
 * ```js
 * import { reset } from "cloudflare:test";
 * import { afterEach } from "vitest";
 * import { forget } from "tollgate/testing";
 *
 * afterEach(async () => {
 *   await reset();
 *   forget();
 * });
 * ```
 */
export const forget: () => void = recovery.forget;

interface Timer {
  readonly moment: number;
  readonly wake: () => void;
  readonly firesAt: number;
}

/** Lets all promises settle. By the real function, even if a test replaces the platform's timers later. */
const later = (globalThis as { setImmediate?: (wake: () => void) => void }).setImmediate ?? setTimeout;
const rest = () => new Promise<void>((resolve) => later(resolve));
