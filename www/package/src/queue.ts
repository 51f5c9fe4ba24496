// The queue of a limiter: which calls wait, and in what order.
import type { Decision, Grant, Refusal } from "./bucket.js";
import type { Cost } from "./budget.js";
import { type Clock, systemClock } from "./clock.js";
import { checkIndex, checkWhole, TollgateError } from "./errors.js";
import { Emitter } from "./events.js";

/** Options of a limiter. */
export interface LimiterOptions {
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
  /** How many `acquire` calls may wait at once. Default: 1000. */
  readonly maxQueue?: number;
  /**
   * What to drop when the queue is full: the new call (`reject`, the default), or the oldest of the lowest priority
   * (`drop_oldest`).
   */
  readonly overflow?: "reject" | "drop_oldest";
}

/** Options of `acquire`. */
export interface AcquireOptions<Name extends string = never> {
  /** How many tokens to take. Default: 1. */
  readonly cost?: Cost<Name>;
  /** Aborts the wait; nothing is taken. */
  readonly signal?: AbortSignal | null | undefined;
  /** The longest wait in milliseconds. If it would take longer, the call is rejected at once. */
  readonly maxWaitMs?: number;
  /** A whole number; higher ones are admitted first. Default: 0. */
  readonly priority?: number;
}

/** Options of `throttle`. */
export interface ThrottleOptions<Args extends unknown[], Name extends string = never>
  extends Omit<AcquireOptions, "cost"> {
  /** How many tokens a call costs. Default: 1. */
  readonly cost?: Cost<Name> | ((...args: Args) => Cost<Name>);
}

/** What happened to a limiter. */
export type LimiterEvent<Name extends string = never> =
  /** Tokens were taken. */
  | { readonly type: "allow"; readonly cost: Cost<Name>; readonly decision: Grant }
  /** A call was refused at once. */
  | { readonly type: "refuse"; readonly cost: Cost<Name>; readonly decision: Refusal }
  /** A call began to wait; `waiting` calls do now. */
  | { readonly type: "queue"; readonly cost: Cost<Name>; readonly waiting: number }
  /** A call stopped waiting and took nothing. */
  | { readonly type: "drop"; readonly cost: Cost<Name>; readonly reason: unknown }
  /** Anything else that changes the answers: a refund, a pause. */
  | { readonly type: "change" };

/** One `acquire` call in the queue. */
export interface Waiter<Name extends string = never> {
  readonly cost: Cost<Name>;
  readonly signal: AbortSignal | null | undefined;
  readonly priority: number;
  /** The last moment at which it may be admitted. */
  readonly deadline: number;
  /** Removes it from the queue and resolves the call. */
  admit(grant: Grant): unknown;
  /** Removes it from the queue and rejects the call. */
  drop(reason: unknown): void;
}

/** A limiter with a queue, ordered by priority and then by arrival. */
export abstract class Queue<Name extends string = never> extends Emitter<LimiterEvent<Name>> {
  readonly clock: Clock;
  protected readonly queue: Waiter<Name>[] = [];
  readonly #maxQueue: number;
  readonly #dropsOldest: boolean;

  constructor({ clock = systemClock, maxQueue = 1000, overflow = "reject" }: LimiterOptions = {}) {
    super();
    this.clock = clock;
    this.#maxQueue = checkWhole("maxQueue", maxQueue);
    this.#dropsOldest = checkIndex("overflow", overflow, ["reject", "drop_oldest"]) > 0;
  }

  /** How many `acquire` calls wait. */
  get waiting(): number {
    return this.queue.length;
  }

  /**
   * Waits in the queue for `cost` tokens and takes them. Within a priority it is first come, first served, whatever the
   * cost, so small requests cannot starve a large one.
   *
   * Rejects with the signal's reason, or with a {@link TollgateError}: `cost_never_granted`, `wait_too_long` or
   * `queue_full`.
   */
  abstract acquire(options?: AcquireOptions<Name>): Promise<Grant>;

  /** Gives `cost` tokens back, up to the capacity. */
  abstract refund(cost?: Cost<Name>): unknown;

  /**
   * Wraps `fn` in a function that waits in the queue before each call. `cost` may depend on the arguments.
   *
   * ```js
   * const ask = limiter.throttle(fetch, { cost: (url, init) => init?.method === "POST" ? 5 : 1 });
   * ```
   */
  throttle<Args extends unknown[], Result>(
    fn: (...args: Args) => Result,
    { cost = 1, ...options }: ThrottleOptions<Args, Name> = {},
  ): (...args: Args) => Promise<Awaited<Result>> {
    const limiter = this;
    return async function (this: unknown, ...args): Promise<Awaited<Result>> {
      const taken = typeof cost === "function" ? cost(...args) : cost;
      await limiter.acquire({ ...options, cost: taken });
      if (options.signal?.aborted) {
        await limiter.refund(taken); // `fn` has not been called
        throw options.signal.reason as unknown;
      }
      return await fn.apply(this, args);
    };
  }

  /** Admits every waiter for which there are tokens. Called whenever one joins or leaves. */
  protected abstract serve(): unknown;

  /** Joins the queue; resolves when admitted. */
  protected join({ cost = 1, signal, maxWaitMs = Infinity, priority = 0 }: AcquireOptions<Name>): Promise<Grant> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const { queue } = this;
      const leave = () => {
        const place = queue.indexOf(waiter);
        if (place < 0) return false; // it has been admitted or dropped already, by a listener
        queue.splice(place, 1);
        signal?.removeEventListener("abort", abort);
        return true;
      };
      const abort = () => {
        // Drop every waiter with this signal first, or one of them would be admitted in place of another.
        for (const { signal, drop } of [...queue]) if (signal?.aborted) drop(signal.reason);
        void this.serve();
      };
      const waiter: Waiter<Name> = {
        cost,
        signal,
        priority: checkWhole("priority", priority, Number.MIN_SAFE_INTEGER),
        deadline: this.clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity),
        admit: (grant) => leave() && resolve(grant),
        drop: (reason) => {
          if (!leave()) return;
          reject(reason);
          this.emit({ type: "drop", cost, reason });
        },
      };
      signal?.addEventListener("abort", abort);
      const behind = queue.findIndex((other) => other.priority < priority);
      queue.splice(behind < 0 ? queue.length : behind, 0, waiter);
      const makeRoom = (most: number) => {
        if (queue.length <= most || !queue.includes(waiter)) return;
        const lowest = queue.at(-1)!.priority;
        const dropped = this.#dropsOldest ? queue.find((other) => other.priority === lowest)! : waiter;
        dropped.drop(new TollgateError("queue_full", `${this.#maxQueue} calls wait already`));
      };
      if (this.#dropsOldest) makeRoom(Math.max(1, this.#maxQueue)); // a lone waiter may be admitted below at once
      void this.serve();
      makeRoom(this.#maxQueue);
      if (queue.includes(waiter)) this.emit({ type: "queue", cost, waiting: queue.length });
    });
  }
}

/** Throws if the answer is never. */
export function throwIfNever(decision: Decision): void {
  const { maxCost } = decision as Refusal;
  if (maxCost !== undefined) throw neverGranted(maxCost);
}

export const neverGranted = (maxCost: number) =>
  new TollgateError("cost_never_granted", `never granted: at most ${maxCost}`, { maxCost });

export const waitTooLong = (retryAt: number) =>
  new TollgateError("wait_too_long", `granted only at ${retryAt}`, { retryAt });
