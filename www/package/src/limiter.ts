// A policy for one key, with a clock and a queue.
import {
  type DecideOptions,
  type Decision,
  type Grant,
  LAST_MOMENT,
  type Limit,
  type Refusal,
  type Snapshot,
  type Verb,
} from "./bucket.js";
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
 * if (limiter.tryConsume()) send();
 * await limiter.acquire({ maxWaitMs: 5000 }); // waits in the queue; rejects at once if that would take longer
 * const search = limiter.throttle(fetchResults);
 * ```
 */
export class Limiter<Name extends string = never> extends Queue<Name> {
  readonly #budget: Budget<Name>;
  #pausedUntil = -Infinity;
  #cancelTimer = () => {};

  constructor(limits: Limit<Name> | readonly Limit<Name>[], options?: LimiterOptions) {
    super(options);
    this.#budget = new Budget(this.clock.now(), limits);
  }

  /** A copy of the limits. */
  get limits(): readonly Limit<Name>[] {
    return this.#budget.limits;
  }

  /**
   * Takes `cost` tokens now and returns true, or takes none and returns false. Refused while calls wait in the queue, so
   * that they are not starved. {@link decide} returns the whole answer.
   */
  tryConsume(cost: Cost<Name> = 1): boolean {
    return this.decide({ cost }).allowed;
  }

  /**
   * Does what the verb says, if that is granted, and returns the whole answer. While calls wait in the queue, only
   * `charge`, `refund` and `reset` are granted.
   */
  decide(options: DecideOptions<Name> = {}): Decision {
    const { cost = 1, verb = "consume" } = options;
    if (isChange(verb)) {
      const decision = this.#budget.decide(this.clock.now(), options);
      this.emit({ type: "change" });
      this.serve();
      return decision;
    }
    const decision = this.#decide(options, "decide");
    this.emit({ type: decision.allowed ? "allow" : "refuse", cost, decision } as LimiterEvent<Name>);
    return decision;
  }

  /** Returns the answer that {@link decide} would give, and takes nothing. */
  peek(cost: Cost<Name> = 1): Decision {
    return this.#decide({ cost }, "peek");
  }

  /**
   * Takes `cost` tokens in advance, to be used at `readyAt`. Refused if that is more than `maxWaitMs` away, if it would
   * owe more than `maxDebt`, and while calls wait in the queue. To cancel it, {@link refund}.
   */
  reserve(options?: Omit<DecideOptions<Name>, "verb">): Decision {
    return this.decide({ ...options, verb: "reserve" });
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost: Cost<Name> = 1): void {
    this.decide({ cost, verb: "charge" });
  }

  refund(cost: Cost<Name> = 1): void {
    this.decide({ cost, verb: "refund" });
  }

  /** Fills all limits. */
  reset(): void {
    this.decide({ cost: 0, verb: "reset" });
  }

  /** How many whole tokens there are. */
  remaining(): number {
    return this.#budget.remaining(this.clock.now());
  }

  /** The next moment at which there is one more; `Infinity` if none comes. */
  nextTokenAt(): number {
    return this.#budget.nextTokenAt(this.clock.now());
  }

  /** The first moment at which all limits are full if nothing is taken; `Infinity` if they never are. */
  fullAt(): number {
    return this.#budget.fullAt(this.clock.now());
  }

  async acquire(options: AcquireOptions<Name> = {}): Promise<Grant> {
    const { cost = 1 } = options;
    throwIfNever(this.#budget.peek(this.clock.now(), { cost }));
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

  /** The answer to a call that does not queue. The queue and a pause come first. */
  #decide(options: DecideOptions<Name>, method: "decide" | "peek"): Decision {
    const now = this.clock.now();
    if (this.waiting === 0 && this.#pausedUntil <= now) return this.#budget[method](now, options);
    const remaining = this.remaining();
    return this.#simulate((moment) => {
      const decision = this.#budget.peek(moment, options);
      return decision.allowed
        ? refuse(now, Math.max(moment, now + 1), remaining)
        : { ...decision, retryAfterMs: decision.retryAt - now, remaining };
    });
  }

  /**
   * Plays the queue ahead, as if nothing else were taken, calls `end` at the moment when it is empty, and puts the
   * budget back. Waiters that miss their deadline take nothing; they are added to `late`.
   */
  #simulate<Result>(end: (moment: number) => Result, late: [Waiter<Name>, retryAt: number][] = []): Result {
    const now = this.clock.now();
    const state = this.#budget.save(now);
    let moment = Math.max(now, this.#pausedUntil);
    try {
      for (const waiter of this.queue) {
        const { cost, deadline } = waiter;
        const decision = this.#budget.peek(moment, { cost });
        const admittedAt = decision.allowed ? moment : decision.retryAt;
        // If a timer fires late, a waiter whose deadline has just passed is still admitted.
        if (admittedAt > Math.min(Math.max(deadline, now), LAST_MOMENT)) late.push([waiter, admittedAt]);
        else {
          moment = admittedAt;
          this.#budget.decide(moment, { cost });
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
      const late: [Waiter<Name>, number][] = [];
      this.#simulate(() => {}, late);
      for (const [{ deadline, drop }, retryAt] of late) if (retryAt > deadline) drop(waitTooLong(retryAt));
    }
    this.#cancelTimer();
    for (let first = this.queue[0]; first; first = this.queue[0]) {
      const now = this.clock.now();
      const { cost } = first;
      const decision: Decision =
        this.#pausedUntil > now ? refuse(now, this.#pausedUntil, 0) : this.#budget.decide(now, { cost });
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

/** Whether this verb is carried out even while calls wait. */
export const isChange = (verb: Verb = "consume"): boolean => ["charge", "refund", "reset"].includes(verb);

export const refuse = (now: number, retryAt: number, remaining: number): Refusal => ({
  allowed: false,
  retryAt,
  retryAfterMs: retryAt - now,
  remaining,
});
