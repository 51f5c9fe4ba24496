// A policy for one key, with a clock and a queue.
import { type Decision, LAST_MOMENT, type Limit, type Snapshot, type Verb } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { checkWhole } from "./errors.js";
import {
  type AcquireOptions,
  type LimiterEvent,
  type LimiterOptions,
  neverGranted,
  Queue,
  throwIfNever,
  type Waiter,
  waitTooLong,
} from "./queue.js";

/**
 * Limits for one key, by the clock of this page. Calls that cannot be admitted now may wait in a queue.
 *
 * ```js
 * const limiter = new Limiter([{ rate: 10, periodMs: 1000 }, { rate: 1000, periodMs: 3_600_000 }]);
 * if (limiter.consume().allowed) send();
 * await limiter.acquire({ maxWaitMs: 5000 }); // waits in the queue; rejects at once if that would take longer
 * const search = limiter.throttle(fetchResults);
 * ```
 */
export class Limiter extends Queue {
  readonly #budget: Budget;
  #pausedUntil = -Infinity;
  #cancelTimer = () => {};

  constructor(limits: Limit | readonly Limit[], options?: LimiterOptions) {
    super(options);
    this.#budget = new Budget(this.clock.now(), limits);
  }

  /** The limits as they were given. */
  get limits(): readonly Limit[] {
    return this.#budget.limits;
  }

  /** Takes `cost` tokens now, or none. Refused while calls wait in the queue, so that they are not starved. */
  consume(cost: Cost = 1): Decision {
    return this.#ask(cost, "consume");
  }

  /** Returns the answer that {@link consume} would give, and takes nothing. */
  peek(cost: Cost = 1): Decision {
    return this.#decide(cost, "consume", 0, false);
  }

  /**
   * Takes `cost` tokens in advance, to be used at `readyAt`. Refused if that is more than `maxWaitMs` away, if it would
   * owe more than `maxDebt`, and while calls wait in the queue. To cancel it, {@link refund}.
   */
  reserve(cost: Cost = 1, maxWaitMs = Infinity): Decision {
    return this.#ask(cost, "reserve", maxWaitMs);
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost: Cost = 1): void {
    this.#change(cost, "charge");
  }

  refund(cost: Cost = 1): void {
    this.#change(cost, "refund");
  }

  /** Fills all limits. */
  reset(): void {
    this.#change(0, "reset");
  }

  /** How many whole tokens there are. */
  remaining(): number {
    return this.#budget.remaining(this.clock.now());
  }

  /** The first moment at which all limits are full if nothing is taken; `Infinity` if they never are. */
  fullAt(): number {
    return this.#budget.fullAt(this.clock.now());
  }

  async acquire(options: AcquireOptions = {}): Promise<Decision> {
    throwIfNever(this.#budget.decide(this.clock.now(), options.cost, "consume", 0, false));
    return this.join(options);
  }

  /** Admits nothing before `moment`, for example because a server said so. A later pause is never shortened. */
  pause(moment: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, checkWhole("moment", moment, -LAST_MOMENT, LAST_MOMENT));
    this.emit({ type: "change" });
    this.serve();
  }

  /** The states of all limits, to store. */
  save(): Snapshot[] {
    return this.#budget.save(this.clock.now());
  }

  /** Continues from what {@link save} returned for the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    this.#budget.restore(snapshots);
    this.emit({ type: "change" });
    this.serve();
  }

  #ask(cost: Cost, verb: Verb, maxWaitMs?: number): Decision {
    const decision = this.#decide(cost, verb, maxWaitMs, true);
    this.emit({ type: decision.allowed ? "allow" : "refuse", cost, decision } as LimiterEvent);
    return decision;
  }

  #change(cost: Cost, verb: Verb): void {
    this.#budget.decide(this.clock.now(), cost, verb);
    this.emit({ type: "change" });
    this.serve();
  }

  /** The answer to a call that does not queue. The queue and a pause come first. */
  #decide(cost: Cost, verb: Verb, maxWaitMs: number | undefined, apply: boolean): Decision {
    const now = this.clock.now();
    if (this.waiting === 0 && this.#pausedUntil <= now) return this.#budget.decide(now, cost, verb, maxWaitMs, apply);
    return this.#simulate((moment) => {
      const decision = this.#budget.decide(moment, cost, verb, maxWaitMs);
      return decision.allowed ? { allowed: false, retryAt: Math.max(moment, now + 1) } : decision;
    });
  }

  /**
   * Plays the queue ahead, as if nothing else were taken, calls `end` at the moment when it is empty, and puts the
   * budget back. Waiters that miss their deadline take nothing; they are added to `late`.
   */
  #simulate<Result>(end: (moment: number) => Result, late: [Waiter, retryAt: number][] = []): Result {
    const now = this.clock.now();
    const state = this.#budget.save(now);
    let moment = Math.max(now, this.#pausedUntil);
    try {
      for (const waiter of this.queue) {
        const { cost, deadline } = waiter;
        const decision = this.#budget.decide(moment, cost, "consume", 0, false);
        const admittedAt = decision.allowed ? moment : decision.retryAt;
        // If a timer fires late, a waiter whose deadline has just passed is still admitted.
        if (admittedAt > Math.min(Math.max(deadline, now), LAST_MOMENT)) late.push([waiter, admittedAt]);
        else {
          moment = admittedAt;
          this.#budget.decide(moment, cost);
        }
      }
      return end(moment);
    } finally {
      this.#budget.restore(state);
    }
  }

  /** Admits the first waiter as long as there are tokens for it, then sets a timer for the next. */
  protected serve(): void {
    if (this.queue.some(({ deadline }) => deadline < Infinity)) {
      const late: [Waiter, number][] = [];
      this.#simulate(() => {}, late);
      for (const [{ deadline, drop }, retryAt] of late) if (retryAt > deadline) drop(waitTooLong(retryAt));
    }
    this.#cancelTimer();
    for (let first = this.queue[0]; first; first = this.queue[0]) {
      const now = this.clock.now();
      const { cost } = first;
      const decision: Decision =
        this.#pausedUntil > now ? { allowed: false, retryAt: this.#pausedUntil } : this.#budget.decide(now, cost);
      if (decision.allowed) {
        first.admit(decision);
        this.emit({ type: "allow", cost, decision });
      } else if (decision.maxCost !== undefined) {
        first.drop(neverGranted(decision.maxCost)); // it could have been granted when it joined
      } else {
        this.#cancelTimer(); // a listener called above may have made us serve, and so set one
        this.#cancelTimer = this.clock.at(decision.retryAt, () => this.serve());
        return;
      }
    }
  }
}
