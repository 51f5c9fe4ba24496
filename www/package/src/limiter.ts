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
import { type ConcurrencyOptions, type LimiterEvent, Queue, reasonOf, waitTooLong } from "./queue.js";
import type { Waiter } from "./waiters.js";

/**
 * Limits for one key, by this page's clock. Calls that cannot be admitted now may wait in a queue.
 *
 * ```js
 * const limiter = new Limiter([{ rate: 10, periodMs: 1000 }, { rate: 1000, periodMs: 3_600_000 }]);
 * if (limiter.tryConsume()) send();
 * await limiter.acquire({ maxWaitMs: 5000 }); // waits in the queue; rejects at once if that would take longer
 * const search = limiter.throttle(fetchResults);
 * ```
 */
export class Limiter<Name extends string = never> extends Queue<Name, Decision> {
  protected readonly budget: Budget<Name>;
  #isAnchored = false;
  #pausedUntil = -Infinity;
  /** The budget as it will be after all waiters, and when the last of them will be admitted. */
  #forecast: Budget<Name> | undefined;
  #lastAt = 0;

  constructor(limits: Limit<Name> | readonly Limit<Name>[], options?: ConcurrencyOptions) {
    super(options);
    this.budget = new Budget(0, limits);
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
    const { cost = 1, verb } = options;
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
      this.stale = Infinity;
      return this.budget[method](now, options);
    }
    // If the timer of the first waiter is late, so are the others.
    if ((this.stale || (this.queue.first?.at ?? now) < now) && this.#foresee().length > 0) this.stale = Infinity;
    const moment = Math.max(this.#lastAt, now);
    return postpone(now, this.#forecast!.peek(moment, options), moment, this.budget.remaining(now));
  }

  /** Anything that may delay a waiter or admit it sooner. */
  #changed(): void {
    this.stale = Infinity;
    this.emit({ type: "change" });
    this.serve();
  }

  protected join(newcomer: Waiter<Name>): void {
    const { queue } = this;
    const { first, last } = queue;
    if (newcomer !== last) {
      // It may delay others. Calls often join in bulk: then all are checked once, before anything else happens.
      this.stale++;
      queueMicrotask(() => this.#review(Infinity));
    }
    if (newcomer === first) {
      if (newcomer === last) this.stale = Infinity;
      this.serve();
    }
    if (!this.makeRoom(newcomer)) return; // only the first could pass at once
    if (newcomer === last && newcomer !== first && this.stale < Infinity) {
      const retryAt = this.#append(newcomer, this.now());
      if (retryAt && this.stale) this.stale = Infinity;
      else if (retryAt) newcomer.end(waitTooLong(retryAt));
    }
    if (queue.first === first && first!.at! > this.now()) this.#review();
    else this.serve(); // the first has made room, or its timer is late
    if (queue.has(newcomer)) this.emit({ type: "queue", cost: newcomer.cost, waiting: this.waiting });
  }

  /** Admits the first waiter as long as there are tokens for it, then sets a timer for the next. */
  protected serve(): void {
    this.cancelWake();
    for (let first = this.next(); first; first = this.next()) {
      const { cost, at, deadline, end } = first;
      const now = this.now();
      const decision = this.#pausedUntil > now ? later(this.#pausedUntil) : this.budget.decide(now, { cost });
      if (decision.allowed) {
        if (!(at! >= now)) this.stale++; // there may be less than forecast, if a bucket was full meanwhile
        end(undefined, decision);
      } else {
        const reason = reasonOf(decision, deadline); // an impossible cost was possible when it joined
        if (!reason) {
          this.wakeAt(decision.retryAt); // instead of one that a listener called above may have set
          break;
        }
        end(reason);
      }
    }
    this.#review();
  }

  /**
   * Drops the waiters that would miss their deadlines. If hundreds wait, some changes are ignored for a while, or
   * each would cost as much as all.
   */
  #review(weight = 16): void {
    if (this.waiting > 0 && this.stale > 0 && this.stale * weight > this.waiting - 100)
      for (const [{ end }, retryAt] of this.#foresee()) end(waitTooLong(retryAt));
  }

  /**
   * Forecasts when each waiter will be admitted, as if nothing else were taken. Returns those that will be late, which
   * take nothing, and when they would be admitted.
   */
  #foresee(): [waiter: Waiter<Name>, retryAt: number][] {
    const now = this.now();
    this.budget.tryConsume(now, 0 as Cost<Name>); // follows a clock that was set back, which a forecast does not
    this.#forecast ??= new Budget(now, this.limits);
    this.#forecast.restore(this.budget.save(now));
    this.#lastAt = Math.max(now, this.#pausedUntil);
    this.stale = 0;
    const late: [Waiter<Name>, number][] = [];
    for (const waiter of this.queue) {
      const retryAt = this.#append(waiter, now);
      if (retryAt) late.push([waiter, retryAt]);
    }
    return late;
  }

  /** Forecasts when the last waiter will be admitted. If that is too late, it takes nothing, and the moment is returned. */
  #append(waiter: Waiter<Name>, now: number): number | undefined {
    const { cost, deadline } = waiter;
    const decision = this.#forecast!.peek(this.#lastAt, { cost });
    const at = decision.allowed ? this.#lastAt : decision.retryAt;
    waiter.at = undefined;
    // If a timer fires late, a waiter whose deadline has just passed is still admitted.
    if (at > Math.max(deadline, now)) return at;
    if (at <= LAST_MOMENT) {
      this.#lastAt = waiter.at = at;
      this.#forecast!.tryConsume(at, cost);
    }
    return undefined;
  }

  /** Now. The budget starts when it is first used: making a limiter reads no clock. */
  protected override now(): number {
    const now = super.now();
    if (!this.#isAnchored) {
      this.#isAnchored = true;
      this.budget.begin(now);
    }
    return now;
  }
}

/** Whether this verb is carried out even while calls wait. */
export const isChange = (verb: Verb = "consume"): boolean => ["charge", "refund", "reset"].includes(verb);

/** The members of a refusal that a queue needs. */
export const later = (retryAt: number) => ({ allowed: false, retryAt }) as Refusal;

/** The answer to a call at `now` for a `decision` made at a later moment. */
export function postpone(now: number, decision: Decision, moment: number, remaining: number): Refusal {
  const retryAt = decision.allowed ? Math.max(moment, now + 1) : decision.retryAt;
  return { ...(!decision.allowed && decision), allowed: false, retryAt, retryAfterMs: retryAt - now, remaining };
}
