/// <reference lib="esnext.disposable" preserve="true" />
// The queue of a limiter: which calls wait, and in what order.
import type { DecideOptions, Decision, Grant, Refusal } from "./bucket.js";
import type { Budget, Cost } from "./budget.js";
import { type Clock, systemClock } from "./clock.js";
import { checkIndex, checkOptions, checkWhole, TollgateError } from "./errors.js";
import { Emitter } from "./events.js";
import { type Waiter, Waiters } from "./waiters.js";

/** Options of a limiter. */
export interface LimiterOptions {
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
  /** How many `acquire` calls may wait at once. Default: `Infinity`. */
  readonly maxQueue?: number;
  /**
   * What to drop when the queue is full: the new call (`reject`, the default), or the oldest of the lowest priority
   * (`drop_oldest`).
   */
  readonly overflow?: "reject" | "drop_oldest";
}

/** Options of a `Limiter`, which can also limit how many calls run at once. */
export interface ConcurrencyOptions extends LimiterOptions {
  /**
   * How many admitted calls may run at once; see {@link Queue.release}. A `maxWaitMs` that proves too short is then
   * noticed when the time is up, because it depends on how long others run. Default: `Infinity`.
   */
  readonly maxConcurrent?: number;
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
  /** How many tokens a call costs, or a function that returns it. Default: 1. */
  readonly cost?: Cost<Name> | ((...args: Args) => Cost<Name> | Promise<Cost<Name>>);
  /**
   * Returns a key. A call with the key of a waiting or running call joins it: `fn` is called once, nothing more is
   * taken, and all of them get the same result or error. By default no call joins another.
   */
  readonly join?: (...args: Args) => unknown;
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

/** A limiter with a queue, ordered by priority and then by arrival. */
export abstract class Queue<Name extends string, Answer extends Decision | Promise<Decision>> extends Emitter<
  LimiterEvent<Name>
> {
  readonly clock: Clock;
  /** How many admitted calls may run at once. */
  readonly maxConcurrent: number;
  protected abstract readonly budget: Budget<Name> | Budget<string>;
  protected readonly queue = new Waiters<Name>();
  /** The error for all calls, once the limiter has been closed. */
  protected closed: TollgateError | undefined;
  /** Whether each deadline has its own timer, because how long others run cannot be forecast. */
  protected isTimed: boolean;
  /** How many changes the forecast does not include yet; `Infinity` if there is no forecast. */
  protected stale = Infinity;
  readonly #maxQueue: number;
  readonly #dropsOldest: boolean;
  /** The grants of running calls, if their number is limited. */
  readonly #held = new Set<Grant | undefined>();
  /** How many throttled calls are waiting or running. */
  #throttled = 0;
  readonly #idle: (() => void)[] = [];
  /** When the timer is due, and what it does. */
  #wakesAt = Infinity;
  #wake: () => void = () => {};
  #cancelTimer = () => {};
  /** Each signal has one listener, because adding and removing one of n takes O(n). */
  readonly #bySignal = new Map<AbortSignal | null | undefined, Set<Waiter<Name>>>();

  constructor({
    clock = systemClock,
    maxQueue = Infinity,
    overflow = "reject",
    maxConcurrent = Infinity,
  }: ConcurrencyOptions = {}) {
    super();
    this.clock = clock;
    this.#maxQueue = checkWhole("maxQueue", maxQueue, 0, Infinity);
    this.#dropsOldest = checkIndex("overflow", overflow, ["reject", "drop_oldest"]) > 0;
    this.maxConcurrent = checkWhole("maxConcurrent", maxConcurrent, 1, Infinity);
    this.isTimed = maxConcurrent < Infinity;
  }

  /** How many `acquire` calls wait. */
  get waiting(): number {
    return this.queue.size;
  }

  /**
   * Waits in the queue for `cost` tokens and takes them. Within a priority it is first come, first served, whatever the
   * cost, so small requests cannot starve a large one. If `maxConcurrent` is set, call {@link release} when the work
   * is done.
   *
   * Rejects with the signal's reason, or with a {@link TollgateError}: `cost_never_granted`, `wait_too_long`,
   * `queue_full`, `cleared` or `closed`.
   */
  acquire(options?: AcquireOptions<Name>): Promise<Grant> {
    return new Promise((resolve, reject) => {
      const { cost: asked = 1, signal, maxWaitMs = Infinity, priority = 0 } = checkOptions(options);
      // A copy: the caller may use its object again.
      const cost = (typeof asked === "object" ? { ...asked } : asked) as Cost<Name>;
      const never = reasonOf(this.most(cost));
      if (never) throw never;
      signal?.throwIfAborted();
      if (this.closed) throw this.closed;
      const { queue } = this;
      const deadline = this.clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity);
      const waiters = this.#bySignal.get(signal) ?? new Set();
      let cancel = () => {};
      const waiter = {
        cost,
        signal,
        priority: checkWhole("priority", priority, Number.MIN_SAFE_INTEGER),
        deadline,
        end: (reason, grant) => {
          if (!queue.delete(waiter)) return false; // a listener has already done it
          cancel();
          waiters.delete(waiter);
          if (waiters.size === 0) {
            this.#bySignal.delete(signal);
            signal?.removeEventListener("abort", this.#abort);
          }
          if (grant) {
            if (this.isTimed) this.#held.add(grant);
            resolve(grant);
            this.emit({ type: "allow", cost, decision: grant });
          } else {
            if (waiter.at !== undefined) this.stale++;
            reject(reason);
            this.emit({ type: "drop", cost, reason });
          }
          return true;
        },
      } as Waiter<Name>;
      queue.add(waiter);
      this.#bySignal.set(signal, waiters.add(waiter));
      signal?.addEventListener("abort", this.#abort);
      if (this.isTimed && deadline < Infinity) {
        cancel = this.clock.at(deadline + 1, () => {
          waiter.end(waitTooLong(deadline + 1));
          void this.serve();
        });
      }
      this.join(waiter);
    });
  }

  /** Does what the verb says, if that is granted, and returns the whole answer. */
  abstract decide(options?: DecideOptions<Name>): Answer;

  /**
   * Takes `cost` tokens in advance, to be used at `readyAt`. Refused if that is more than `maxWaitMs` away, if it would
   * owe more than `maxDebt`, and while calls wait in the queue. To cancel it, {@link refund}.
   */
  reserve(options?: Omit<DecideOptions<Name>, "verb">): Answer {
    return this.decide({ ...checkOptions(options), verb: "reserve" });
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost: Cost<Name> = 1): Answer {
    return this.decide({ cost, verb: "charge" });
  }

  /** Gives `cost` tokens back, up to the capacity. */
  refund(cost: Cost<Name> = 1): Answer {
    return this.decide({ cost, verb: "refund" });
  }

  /** Fills all limits and ends a pause. */
  reset(): Answer {
    return this.decide({ cost: 0, verb: "reset" });
  }

  /** How many whole tokens are left, as far as known here. */
  remaining(): number {
    return this.budget.remaining(this.now());
  }

  /** The next moment at which there is one more; `Infinity` if none comes. */
  nextTokenAt(): number {
    return this.budget.nextTokenAt(this.now());
  }

  /** The first moment at which all limits are full if nothing is taken; `Infinity` if they never are. */
  fullAt(): number {
    return this.budget.fullAt(this.now());
  }

  /**
   * Reports that work admitted by {@link acquire} is done, so that with `maxConcurrent` another call may begin. Throttled
   * functions and `limitFetch` do this by themselves.
   */
  release(grant: Grant | undefined): void {
    if (this.#held.delete(grant)) void this.serve();
    else this.now();
    this.#checkIdle();
  }

  /**
   * Wraps `fn` in a function that waits in the queue before each call. `cost` may depend on the arguments.
   *
   * ```js
   * const ask = limiter.throttle(fetch, { cost: (url, init) => init?.method === "POST" ? 5 : 1 });
   * ```
   */
  throttle<Args extends unknown[], Result>(
    fn: (...args: Args) => Result,
    { cost = 1, join = () => ({}), ...options }: ThrottleOptions<Args, Name> = {},
  ): (...args: Args) => Promise<Awaited<Result>> {
    const limiter = this;
    const inFlight = new Map<unknown, Promise<Awaited<Result>>>();
    return async function (this: unknown, ...args): Promise<Awaited<Result>> {
      const key = join(...args);
      const called = inFlight.get(key) ?? call.apply(this, args).finally(() => inFlight.delete(key));
      inFlight.set(key, called);
      return called;
    };
    async function call(this: unknown, ...args: Args): Promise<Awaited<Result>> {
      let grant: Grant | undefined;
      limiter.#throttled++;
      try {
        const taken = typeof cost === "function" ? await cost(...args) : cost;
        grant = await limiter.acquire({ ...options, cost: taken });
        if (options.signal?.aborted) {
          await limiter.refund(taken); // `fn` has not been called
          throw options.signal.reason as unknown;
        }
        return await fn.apply(this, args);
      } finally {
        limiter.#throttled--;
        limiter.release(grant);
      }
    }
  }

  /** Resolves when no call is waiting, and no throttled call or one that `maxConcurrent` counts is running. */
  onIdle(): Promise<void> {
    this.now();
    return new Promise((resolve) => {
      this.#idle.push(resolve);
      this.#checkIdle();
    });
  }

  /** Rejects all calls that wait, with the code `cleared`. */
  clear(): void {
    this.#drop(stopped("cleared"));
  }

  /** Rejects all calls that wait, and all later ones, with the code `closed`. No timer is left. */
  close(): void {
    this.closed = stopped("closed");
    this.#drop(this.closed);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  protected override emit(event: LimiterEvent<Name>): void {
    super.emit(event);
    this.#checkIdle();
  }

  /** A waiter has joined the queue. Those that pass at once need no room in it. */
  protected abstract join(newcomer: Waiter<Name>): void;

  /** Admits every waiter for which there are tokens. */
  protected abstract serve(): unknown;

  /** Now. What was due by then is done after the current call: timers stop while a machine sleeps. */
  protected now(): number {
    const now = this.clock.now();
    if (now >= this.#wakesAt) {
      this.#wakesAt = Infinity;
      queueMicrotask(this.#wake);
    }
    return now;
  }

  /** Calls `wake` at `moment`, and nothing else that was to be called. */
  protected wakeAt(moment: number, wake: () => void = () => this.serve()): void {
    this.cancelWake();
    this.#wakesAt = moment;
    this.#wake = wake;
    this.#cancelTimer = this.clock.at(moment, wake);
  }

  protected cancelWake(): void {
    this.#cancelTimer();
    this.#wakesAt = Infinity;
  }

  /** The answer to `cost`, which says whether it could ever be granted. Throws if it is not a cost for these limits. */
  protected abstract most(cost: Cost<Name>): Decision;

  /** The waiter whose turn it is, unless the most calls allowed are running. */
  protected next(): Waiter<Name> | undefined {
    for (;;) {
      const { first } = this.queue;
      // Several signals may be aborted by one; a waiter whose own event is still to come must not be admitted.
      if (!first?.signal?.aborted) return this.#held.size < this.maxConcurrent ? first : undefined;
      first.end(first.signal.reason);
    }
  }

  /**
   * Makes room for a waiter that cannot pass at once, if the queue is full. Returns whether it waits. `later` is how many in the
   * queue came after it and are not decided yet.
   */
  protected makeRoom(waiter: Waiter<Name>, later = () => 0): boolean {
    const { queue } = this;
    if (queue.size > this.#maxQueue && queue.has(waiter) && queue.size - later() > this.#maxQueue) {
      const full = new TollgateError("queue_full", `${this.#maxQueue} calls wait already`);
      (this.#dropsOldest ? queue.oldest! : waiter).end(full);
    }
    return queue.has(waiter);
  }

  /** Drops all of these before it serves: none of them is admitted in place of another. */
  #drop(reason: unknown, waiters: Iterable<Waiter<Name>> = [...this.queue]): void {
    for (const { end } of waiters) end(reason);
    void this.serve();
  }

  #checkIdle(): void {
    if (this.waiting + this.#throttled + this.#held.size === 0) for (const resolve of this.#idle.splice(0)) resolve();
  }

  readonly #abort = ({ target }: Event): void => {
    const signal = target as AbortSignal;
    this.#drop(signal.reason, this.#bySignal.get(signal));
  };
}

const stopped = (code: "cleared" | "closed") => new TollgateError(code, `the limiter was ${code}`);

/** Why a call with this deadline is rejected at once, if it is. */
export function reasonOf(decision: Decision, deadline = Infinity): TollgateError | undefined {
  const { retryAt, maxCost } = decision as Refusal;
  if (maxCost !== undefined)
    return new TollgateError("cost_never_granted", `never granted: at most ${maxCost}`, { maxCost });
  return retryAt > deadline ? waitTooLong(retryAt) : undefined;
}

export const waitTooLong = (retryAt: number) =>
  new TollgateError("wait_too_long", `granted only at ${retryAt}`, { retryAt });
