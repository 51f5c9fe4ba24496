// Who waits, and in what order.
import type { Decision, Grant, Refusal } from "./bucket.js";
import type { Cost } from "./budget.js";
import { systemClock, type Clock } from "./clock.js";
import { placeOf, TollgateError, whole } from "./errors.js";
import { Events } from "./events.js";

/** How a limiter behaves, if not as usual. */
export interface LimiterOptions {
  /** The time to go by. */
  readonly clock?: Clock;
  /** How many `acquire` calls may wait at once. 1000, if left out. */
  readonly maxQueue?: number;
  /** Who has to go when one more would wait: the new one (`reject`, the default), or who has waited longest of the lowest priority. */
  readonly overflow?: "reject" | "drop_oldest";
}

/** What `acquire` is asked for. */
export interface AcquireOptions {
  /** How many tokens. 1, if left out. */
  readonly cost?: Cost;
  /** Ends the wait: nothing is taken. */
  readonly signal?: AbortSignal | null | undefined;
  /** The longest wait in milliseconds. If it would take longer, that is said at once. */
  readonly maxWaitMs?: number;
  /** Higher ones are admitted first: a whole number. 0, if left out. */
  readonly priority?: number;
}

/** What `throttle` is asked for. */
export interface ThrottleOptions<Args extends unknown[]> extends Omit<AcquireOptions, "cost"> {
  /** How many tokens a call costs. 1, if left out. */
  readonly cost?: Cost | ((...args: Args) => Cost);
}

/** What happened to a limiter. */
export type LimiterEvent =
  /** Tokens were taken. */
  | { readonly type: "allow"; readonly cost: Cost; readonly decision: Grant }
  /** Somebody was refused at once. */
  | { readonly type: "refuse"; readonly cost: Cost; readonly decision: Refusal }
  /** Somebody waits from now on, `waiting` in all. */
  | { readonly type: "queue"; readonly cost: Cost; readonly waiting: number }
  /** Somebody waits no longer, and was given nothing. */
  | { readonly type: "drop"; readonly cost: Cost; readonly reason: unknown }
  /** Anything else that changes the answers: tokens given back, a pause. */
  | { readonly type: "change" };

/** One `acquire` call in line. */
export interface Waiting {
  readonly cost: Cost;
  readonly signal: AbortSignal | null | undefined;
  readonly priority: number;
  /** After this moment it need not be admitted any more. */
  readonly deadline: number;
  /** Lets it go, with what was decided. */
  admit(decision: Decision): unknown;
  /** Lets it go with nothing. */
  drop(reason: unknown): void;
}

/** A limiter's line, by priority and then as they came. */
export abstract class Line extends Events<LimiterEvent> {
  readonly clock: Clock;
  protected readonly line: Waiting[] = [];
  readonly #maxQueue: number;
  readonly #dropsOldest: boolean;

  constructor({ clock = systemClock, maxQueue = 1000, overflow = "reject" }: LimiterOptions = {}) {
    super();
    this.clock = clock;
    this.#maxQueue = whole("maxQueue", maxQueue);
    this.#dropsOldest = placeOf("overflow", overflow, ["reject", "drop_oldest"]) > 0;
  }

  /** How many `acquire` calls wait. */
  get waiting(): number {
    return this.line.length;
  }

  /**
   * Waits in line for `cost` tokens and takes them. Within a priority it is first come, first served, however much
   * each asks, so that a large request is not starved by small ones.
   *
   * Rejects with the signal's reason, or with a {@link TollgateError}: `cost_never_granted`, `wait_too_long` or `queue_full`.
   */
  abstract acquire(options?: AcquireOptions): Promise<Decision>;

  /** Gives `cost` tokens back, up to the capacity. */
  abstract refund(cost?: Cost): unknown;

  /**
   * Makes a function that waits in line before each call of `fn`. `cost` may depend on the arguments.
   *
   * ```js
   * const ask = limiter.throttle(fetch, { cost: (url, init) => init?.method === "POST" ? 5 : 1 });
   * ```
   */
  throttle<Args extends unknown[], Result>(
    fn: (...args: Args) => Result,
    { cost = 1, ...options }: ThrottleOptions<Args> = {},
  ): (...args: Args) => Promise<Awaited<Result>> {
    const limiter = this;
    return async function (this: unknown, ...args): Promise<Awaited<Result>> {
      const asked = typeof cost === "function" ? cost(...args) : cost;
      await limiter.acquire({ ...options, cost: asked });
      if (options.signal?.aborted) {
        await limiter.refund(asked); // it has not begun
        throw options.signal.reason as unknown;
      }
      return await fn.apply(this, args);
    };
  }

  /** Admits those for whom there is enough. Called whenever somebody joins or gives up. */
  protected abstract serve(): unknown;

  /** Joins; resolves when it is admitted. */
  protected join({ cost = 1, signal, maxWaitMs = Infinity, priority = 0 }: AcquireOptions): Promise<Decision> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const { line } = this;
      const leave = () => {
        const place = line.indexOf(waiting);
        if (place < 0) return false; // whoever was told of something was quicker
        line.splice(place, 1);
        signal?.removeEventListener("abort", abort);
        return true;
      };
      const abort = () => {
        // All who have this signal, or one of them would be admitted in the place of the other.
        for (const { signal, drop } of [...line]) if (signal?.aborted) drop(signal.reason);
        void this.serve();
      };
      const waiting: Waiting = {
        cost,
        signal,
        priority: whole("priority", priority, Number.MIN_SAFE_INTEGER),
        deadline: this.clock.now() + whole("maxWaitMs", maxWaitMs, 0, Infinity),
        admit: (decision) => leave() && resolve(decision),
        drop: (reason) => {
          if (!leave()) return;
          reject(reason);
          this.emit({ type: "drop", cost, reason });
        },
      };
      signal?.addEventListener("abort", abort);
      const behind = line.findIndex((other) => other.priority < priority);
      line.splice(behind < 0 ? line.length : behind, 0, waiting);
      const makeRoom = (most: number) => {
        if (line.length <= most || !line.includes(waiting)) return;
        const lowest = line.at(-1)!.priority;
        const out = this.#dropsOldest ? line.find((other) => other.priority === lowest)! : waiting;
        out.drop(new TollgateError("queue_full", `${this.#maxQueue} wait already`));
      };
      if (this.#dropsOldest) makeRoom(Math.max(1, this.#maxQueue)); // whoever is alone may yet be admitted at once
      void this.serve();
      makeRoom(this.#maxQueue);
      if (line.includes(waiting)) this.emit({ type: "queue", cost, waiting: line.length });
    });
  }
}

/** Throws if it is never granted. */
export function possible(decision: Decision): void {
  const { maxCost } = decision as Refusal;
  if (maxCost !== undefined) throw never(maxCost);
}

/** What is thrown where no more than `maxCost` is ever granted. */
export const never = (maxCost: number) =>
  new TollgateError("cost_never_granted", `never granted: at most ${maxCost}`, { maxCost });

/** What is thrown where it would be granted only after the longest wait. */
export const tooLong = (retryAt: number) =>
  new TollgateError("wait_too_long", `granted only at ${retryAt}`, { retryAt });
