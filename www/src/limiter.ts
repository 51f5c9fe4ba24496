// A policy for one key, with a clock and a queue.
import type { Decision, Limit, Refusal, Snapshot, Verb } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { systemClock, type Clock } from "./clock.js";
import { Events } from "./events.js";
import { TollgateError } from "./errors.js";
import { Queue, type AcquireOptions, type QueueEvent, type QueueOptions, type Waiting } from "./queue.js";

/** How a {@link Limiter} behaves, if not as usual. */
export interface LimiterOptions extends QueueOptions {
  /** The time to go by. */
  readonly clock?: Clock;
}

/** What {@link Limiter.throttle} is asked for. */
export interface ThrottleOptions<Args extends unknown[]> extends Omit<AcquireOptions, "cost"> {
  /** How many tokens a call costs. 1, if left out. */
  readonly cost?: Cost | ((...args: Args) => Cost);
}

/** What happened to a {@link Limiter}. */
export type LimiterEvent =
  /** Tokens were taken. */
  | { readonly type: "allow"; readonly cost: Cost; readonly decision: Decision }
  /** Somebody was refused, at once. */
  | { readonly type: "refuse"; readonly cost: Cost; readonly decision: Refusal }
  | QueueEvent
  /** Anything else that changes what {@link Limiter.peek} says: tokens given back, a pause. */
  | { readonly type: "change" };

/**
 * Limits for one key, by the clock of this page. Whoever cannot be admitted may wait in line.
 *
 * ```js
 * const limiter = new Limiter([{ rate: 10, periodMs: 1000 }, { rate: 1000, periodMs: 3_600_000 }]);
 * if (limiter.consume().allowed) send();
 * await limiter.acquire({ maxWaitMs: 5000 }); // in line; throws at once if that would take longer
 * const search = limiter.throttle(fetchResults);
 * ```
 */
export class Limiter extends Events<LimiterEvent> {
  readonly clock: Clock;
  readonly #budget: Budget;
  readonly #queue: Queue;
  #pausedUntil = -Infinity;
  #cancelTimer = () => {};

  constructor(limits: Limit | readonly Limit[], { clock = systemClock, ...queue }: LimiterOptions = {}) {
    super();
    this.clock = clock;
    this.#budget = new Budget(clock.now(), limits);
    this.#queue = new Queue(queue, () => this.#pump(), (event) => this.emit(event));
  }

  /** The limits, as they were given. */
  get limits(): readonly Limit[] {
    return this.#budget.limits;
  }

  /** How many `acquire` calls wait. */
  get waiting(): number {
    return this.#queue.all.length;
  }

  /** Takes `cost` tokens now, or none. While others wait in line it is refused, or they would wait for ever. */
  consume(cost: Cost = 1): Decision {
    return this.#ask(cost, "consume");
  }

  /** The answer that {@link consume} would give, with nothing taken. */
  peek(cost: Cost = 1): Decision {
    return this.#inLine(cost) ?? this.#budget.decide(this.clock.now(), cost, "consume", 0, false);
  }

  /** Takes `cost` tokens in advance, to be used at `readyAt`. Refused if that is more than `maxWaitMs` away, or owes more than `maxDebt`. To cancel it, {@link refund}. */
  reserve(cost: Cost = 1, maxWaitMs = Infinity): Decision {
    return this.#ask(cost, "reserve", maxWaitMs);
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost: Cost = 1): void {
    this.#change(cost, "charge");
  }

  /** Gives `cost` tokens back, up to the capacity. */
  refund(cost: Cost = 1): void {
    this.#change(cost, "refund");
  }

  /** Makes all limits full. */
  reset(): void {
    this.#change(0, "reset");
  }

  /** How many whole tokens there are. */
  remaining(): number {
    return this.#budget.remaining(this.clock.now());
  }

  /** The first moment at which all limits are full if nobody asks; `Infinity` if they never will be. */
  fullAt(): number {
    return this.#budget.fullAt(this.clock.now());
  }

  /**
   * Waits in line for `cost` tokens and takes them. Within a priority it is first come, first served, however much
   * each asks, so that a large request is not starved by small ones.
   *
   * Rejects with the signal's reason, or with a {@link TollgateError}: `cost_never_granted`, `wait_too_long` or `queue_full`.
   */
  async acquire(options: AcquireOptions = {}): Promise<Decision> {
    const { cost = 1 } = options;
    const now = this.clock.now();
    possible(this.#budget.decide(now, cost, "consume", 0, false));
    return this.#queue.join(now, options);
  }

  /**
   * Makes a function that waits in line before each call of `fn`. `cost` may depend on the arguments.
   *
   * ```js
   * const ask = limiter.throttle(fetch, { cost: (url, init) => init?.method === "POST" ? 5 : 1 });
   * ```
   */
  throttle<Args extends unknown[], Result>(fn: (...args: Args) => Result, options?: ThrottleOptions<Args>): (...args: Args) => Promise<Awaited<Result>> {
    return throttled(this, fn, options);
  }

  /** Admits nobody before `moment`, because somebody who knows said so. Never earlier than it was told before. */
  pause(moment: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, moment);
    this.emit({ type: "change" });
    this.#pump();
  }

  /** The states of all limits, to be kept. */
  save(): Snapshot[] {
    return this.#budget.save(this.clock.now());
  }

  /** Takes over what {@link save} gave of the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    this.#budget.restore(snapshots);
    this.emit({ type: "change" });
    this.#pump();
  }

  #ask(cost: Cost, verb: Verb, maxWaitMs?: number): Decision {
    const decision = this.#inLine(cost) ?? this.#budget.decide(this.clock.now(), cost, verb, maxWaitMs);
    this.emit(decision.allowed ? { type: "allow", cost, decision } : { type: "refuse", cost, decision });
    return decision;
  }

  #change(cost: Cost, verb: Verb): void {
    this.#budget.decide(this.clock.now(), cost, verb);
    this.emit({ type: "change" });
    this.#pump();
  }

  /** The refusal of whoever would have to wait for others, or for a pause. */
  #inLine(cost: Cost): Refusal | undefined {
    if (this.waiting === 0 && this.#pausedUntil <= this.clock.now()) return undefined;
    const last = this.#forecast([...this.#queue.all, { cost, deadline: Infinity }]).at(-1)!;
    return last.allowed ? { allowed: false, retryAt: last.readyAt } : last;
  }

  /** What everybody in line will be told, and when, if nobody else asks. Whoever cannot be admitted in time takes nothing. */
  #forecast(line: readonly Pick<Waiting, "cost" | "deadline">[]): Decision[] {
    const now = this.clock.now();
    const state = this.#budget.save(now);
    let moment = Math.max(now, this.#pausedUntil);
    const decisions = line.map(({ cost, deadline }) => {
      const decision = this.#budget.decide(moment, cost, "consume", 0, false);
      const admittedAt = decision.allowed ? moment : decision.retryAt;
      // A timer may be late, which is nobody's fault.
      if (admittedAt === Infinity || admittedAt > Math.max(deadline, now)) return { ...decision, allowed: false as const, retryAt: admittedAt };
      return this.#budget.decide((moment = admittedAt), cost);
    });
    this.#budget.restore(state);
    return decisions;
  }

  /** Admits whoever is first in line as long as there is enough, and then sleeps until there is. */
  #pump(): void {
    this.#cancelTimer();
    const line = [...this.#queue.all];
    if (line.some(({ deadline }) => deadline < Infinity)) {
      this.#forecast(line).forEach((decision, i) => {
        const { deadline, drop } = line[i]!;
        if (!decision.allowed && decision.retryAt > deadline) drop(tooLong(decision.retryAt));
      });
    }
    for (let first; (first = this.#queue.all[0]); ) {
      const now = this.clock.now();
      const decision: Decision = this.#pausedUntil > now ? { allowed: false, retryAt: this.#pausedUntil } : this.#budget.decide(now, first.cost);
      if (!decision.allowed) {
        if (decision.retryAt < Infinity) this.#cancelTimer = this.clock.at(decision.retryAt, () => this.#pump());
        return;
      }
      first.admit(decision);
      this.emit({ type: "allow", cost: first.cost, decision });
    }
  }

}

/** {@link Limiter.throttle}, for any limiter. */
export function throttled<Args extends unknown[], Result>(
  limiter: { acquire(options: AcquireOptions): Promise<unknown>; refund(cost: Cost): unknown },
  fn: (...args: Args) => Result,
  { cost = 1, ...options }: ThrottleOptions<Args> = {},
): (...args: Args) => Promise<Awaited<Result>> {
  return async (...args): Promise<Awaited<Result>> => {
    const asked = typeof cost === "function" ? cost(...args) : cost;
    await limiter.acquire({ ...options, cost: asked });
    if (options.signal?.aborted) {
      await limiter.refund(asked); // it has not begun
      throw options.signal.reason as unknown;
    }
    return await fn(...args);
  };
}

/** Throws if it is never granted. */
export function possible(decision: Decision): void {
  const { maxCost } = decision as Refusal;
  if (maxCost !== undefined) throw new TollgateError("cost_never_granted", `this cost is never granted: at most ${maxCost}`, { maxCost });
}

/** What is thrown where it would be granted only after the longest wait. */
export const tooLong = (retryAt: number) => new TollgateError("wait_too_long", `it would be granted only at ${retryAt}`, { retryAt });
