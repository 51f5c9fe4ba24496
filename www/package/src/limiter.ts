// A policy for one key, with a clock and a queue.
import {
  type DecideOptions,
  type Decision,
  LAST_MOMENT,
  type Limit,
  type Refusal,
  type Snapshot,
  type Verb,
} from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { checkWhole } from "./errors.js";
import { type ConcurrencyOptions, type LimiterEvent, neverGranted, Queue, waitTooLong } from "./queue.js";
import type { Waiter } from "./waiters.js";

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
export class Limiter<Name extends string = never> extends Queue<Name, Decision> {
  protected budget: Budget<Name>;
  #isAnchored: boolean;
  #pausedUntil = -Infinity;
  #cancelTimer = () => {};
  /** Whom the timer is for, and when it fires. */
  #awaited: Waiter<Name> | undefined;
  #wakeAt = 0;
  /** The budget as it will be after all waiters, and when the last of them will be admitted. */
  #forecast: Budget<Name> | undefined;
  #lastAt = 0;
  /** How many were admitted late since then, with less left than was foreseen. */
  #lateCount = 0;
  /** Waiters that would miss their deadlines, to be dropped. */
  #late: [waiter: Waiter<Name>, retryAt: number][] = [];
  /** Whether deadlines are looked at after this turn. */
  #isDeferred = false;

  constructor(limits: Limit<Name> | readonly Limit<Name>[], options?: ConcurrencyOptions) {
    super(options);
    const now = this.clock.now();
    this.#isAnchored = now !== 0;
    this.budget = new Budget(now, limits);
  }

  /** A copy of the limits. */
  get limits(): readonly Limit<Name>[] {
    return this.budget.limits;
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
      const decision = this.budget.decide(this.now(), options);
      if (verb === "reset") this.#pausedUntil = -Infinity;
      this.#changed();
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

  /** Admits nothing before `moment`, for example because a server said so. A later pause is never shortened. */
  pause(moment: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, checkWhole("moment", moment, -LAST_MOMENT, LAST_MOMENT));
    this.#changed();
  }

  /** Ends a pause. */
  resume(): void {
    this.#pausedUntil = -Infinity;
    this.#changed();
  }

  /** The states of all limits, to store. */
  save(): Snapshot[] {
    return this.budget.save(this.now());
  }

  /** Continues from what {@link save} returned for the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    this.#isAnchored = true;
    this.budget.restore(snapshots);
    this.#changed();
  }

  protected most(cost: Cost<Name>): Decision {
    return this.budget.peek(this.now(), { cost });
  }

  /** The answer to a call that does not queue. The queue and a pause come first. */
  #decide(options: DecideOptions<Name>, method: "decide" | "peek"): Decision {
    const now = this.now();
    if (this.waiting === 0 && this.#pausedUntil <= now) {
      this.isForeseen = false;
      return this.budget[method](now, options);
    }
    // If the timer of the first waiter is late, so are the others.
    if (!this.isForeseen || !this.isExact || (this.queue.first?.at ?? now) < now) this.#foresee();
    const moment = Math.max(this.#lastAt, now);
    return postpone(now, this.#forecast!.peek(moment, options), moment, this.budget.remaining(now));
  }

  /** Anything that may delay a waiter or admit it sooner. */
  #changed(): void {
    this.isForeseen = false;
    this.emit({ type: "change" });
    this.serve();
  }

  /**
   * Admits the first waiter as long as there are tokens for it, then sets a timer for the next. Those that would miss
   * their deadlines are dropped first.
   */
  protected serve(newcomer?: Waiter<Name>): undefined {
    if (newcomer && newcomer !== this.queue.first) this.makeRoom(newcomer); // only the first could pass at once
    if (newcomer && (!this.queue.has(newcomer) || this.#expect(newcomer))) return;
    do {
      if (this.impatient > 0 && !this.#isDeferred) {
        if (!this.isForeseen) this.#foresee();
        for (const [{ drop }, retryAt] of this.#late.splice(0)) drop(waitTooLong(retryAt));
      }
      this.#cancelTimer();
      this.#awaited = undefined;
      for (let first = this.next(); first; first = this.next()) {
        const now = this.now();
        const decision = this.#pausedUntil > now ? later(this.#pausedUntil) : this.#take(first, now);
        if (decision.allowed) this.admit(first, decision);
        else if (decision.maxCost !== undefined)
          first.drop(neverGranted(decision.maxCost)); // possible when it joined
        else {
          this.#cancelTimer(); // a listener called above may have made us serve, and so set one
          this.#awaited = first;
          this.#wakeAt = decision.retryAt;
          this.#cancelTimer = this.clock.at(this.#wakeAt, () => this.serve());
          break;
        }
      }
    } while (this.impatient > 0 && !this.isForeseen && !this.#isDeferred);
    if (this.waiting > 0) return;
    this.isForeseen = false;
    this.#awaited = undefined;
  }

  /** Adds a newcomer to the forecast, if that is all it changes. Returns whether there is nothing else to do. */
  #expect(newcomer: Waiter<Name>): boolean {
    const now = this.now();
    if (newcomer === this.queue.last) {
      if (this.isForeseen && !this.#append(newcomer, now)) this.isForeseen = this.isExact;
    } else {
      this.isForeseen = false;
      // It may delay all others. Many often join in one go: then all are looked at once, before anything else happens.
      if (this.impatient > 0 && !this.#isDeferred) {
        this.#isDeferred = true;
        queueMicrotask(() => {
          this.#isDeferred = false;
          this.serve();
        });
      }
    }
    const isForeseen = this.isForeseen ? this.#late.length === 0 : this.impatient === 0 || this.#isDeferred;
    return isForeseen && this.#awaited === this.queue.first && now < this.#wakeAt;
  }

  /** Foresees when each waiter will be admitted, as if nothing else were taken. Those that will be late take nothing. */
  #foresee(): void {
    const now = this.now();
    this.budget.tryConsume(now, 0 as Cost<Name>); // follows a clock that was set back, which a forecast does not
    this.#forecast ??= new Budget(now, this.limits);
    this.#forecast.restore(this.budget.save(now));
    this.#lastAt = Math.max(now, this.#pausedUntil);
    this.#late = [];
    this.#lateCount = 0;
    for (const waiter of this.queue) this.#append(waiter, now);
    this.isForeseen = this.isExact = true;
  }

  /** Foresees when the last waiter will be admitted. If that is too late, it takes nothing, and the result is false. */
  #append(waiter: Waiter<Name>, now: number): boolean {
    const { cost, deadline } = waiter;
    const decision = this.#forecast!.peek(this.#lastAt, { cost });
    const at = decision.allowed ? this.#lastAt : decision.retryAt;
    // If a timer fires late, a waiter whose deadline has just passed is still admitted.
    if (at <= Math.min(Math.max(deadline, now), LAST_MOMENT)) {
      this.#lastAt = waiter.at = at;
      return this.#forecast!.tryConsume(at, cost);
    }
    waiter.at = undefined;
    if (at > deadline) this.#late.push([waiter, at]);
    return false;
  }

  /** Asks for the first waiter, and finds out whether the forecast for the others still holds. */
  #take({ cost, at }: Waiter<Name>, now: number): Decision {
    const before = this.isForeseen && !(at! >= now) && this.budget.save(now);
    const decision = this.budget.decide(now, { cost });
    // If it is admitted in time, so are the others. If it is late, there is less than expected where a bucket was full
    // and took no more. Where thousands wait, that is put up with for a while, or each would cost as much as all.
    if (
      before &&
      decision.allowed &&
      (at === undefined || this.limits.some(({ rate, capacity = rate }, i) => before[i]!.tokens >= capacity))
    ) {
      this.isExact = false;
      this.isForeseen = 16 * ++this.#lateCount < this.waiting - 1000;
    }
    return decision;
  }

  /**
   * Now. A limiter that was made while the clock stood at 0, as it does at the top level of a Worker, starts when it is
   * first used.
   */
  protected override now(): number {
    const now = this.clock.now();
    if (!this.#isAnchored) {
      this.#isAnchored = true;
      this.budget = new Budget(now, this.limits);
    }
    return now;
  }
}

/** Whether this verb is carried out even while calls wait. */
export const isChange = (verb: Verb = "consume"): boolean => ["charge", "refund", "reset"].includes(verb);

/** As much of a refusal as a queue needs. */
export const later = (retryAt: number) => ({ allowed: false, retryAt }) as Refusal;

/** The answer to a call at `now`, if it is `decision` at a later moment. */
export function postpone(now: number, decision: Decision, moment: number, remaining: number): Refusal {
  const retryAt = decision.allowed ? Math.max(moment, now + 1) : decision.retryAt;
  return { ...(decision.allowed ? later(0) : decision), retryAt, retryAfterMs: retryAt - now, remaining };
}
