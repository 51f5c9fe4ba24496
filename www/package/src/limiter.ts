// A policy for one key, by the clock of this page.
import { LAST_MOMENT, type Decision, type Limit, type Snapshot, type Verb } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { whole } from "./errors.js";
import {
  Line,
  never,
  possible,
  tooLong,
  type AcquireOptions,
  type LimiterEvent,
  type LimiterOptions,
  type Waiting,
} from "./line.js";

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
export class Limiter extends Line {
  readonly #budget: Budget;
  #pausedUntil = -Infinity;
  #cancelTimer = () => {};

  constructor(limits: Limit | readonly Limit[], options?: LimiterOptions) {
    super(options);
    this.#budget = new Budget(this.clock.now(), limits);
  }

  /** The limits, as they were given. */
  get limits(): readonly Limit[] {
    return this.#budget.limits;
  }

  /** Takes `cost` tokens now, or none. While others wait in line it is refused, or they would wait for ever. */
  consume(cost: Cost = 1): Decision {
    return this.#ask(cost, "consume");
  }

  /** The answer that {@link consume} would give, with nothing taken. */
  peek(cost: Cost = 1): Decision {
    return this.#decide(cost, "consume", 0, false);
  }

  /** Takes `cost` tokens in advance, to be used at `readyAt`. Refused if that is more than `maxWaitMs` away, owes more than `maxDebt`, or while others wait in line. To cancel it, {@link refund}. */
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

  async acquire(options: AcquireOptions = {}): Promise<Decision> {
    possible(this.#budget.decide(this.clock.now(), options.cost, "consume", 0, false));
    return this.join(options);
  }

  /** Admits nobody before `moment`, because somebody who knows said so. Never earlier than it was told before. */
  pause(moment: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, whole("moment", moment, -LAST_MOMENT, LAST_MOMENT));
    this.emit({ type: "change" });
    this.serve();
  }

  /** The states of all limits, to be kept. */
  save(): Snapshot[] {
    return this.#budget.save(this.clock.now());
  }

  /** Takes over what {@link save} gave of the same limits. */
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

  /** The answer to one who is not in line: whoever is, or a pause, comes first. */
  #decide(cost: Cost, verb: Verb, maxWaitMs: number | undefined, keep: boolean): Decision {
    const now = this.clock.now();
    if (this.waiting === 0 && this.#pausedUntil <= now) return this.#budget.decide(now, cost, verb, maxWaitMs, keep);
    return this.#play((moment) => {
      const decision = this.#budget.decide(moment, cost, verb, maxWaitMs);
      return decision.allowed ? { allowed: false, retryAt: Math.max(moment, now + 1) } : decision;
    });
  }

  /** Plays what is to come if nobody else asks, and `end` at its end. Whoever in line is then admitted in time takes; `late` gets the others. */
  #play<Result>(end: (moment: number) => Result, late: [Waiting, retryAt: number][] = []): Result {
    const now = this.clock.now();
    const state = this.#budget.save(now);
    let moment = Math.max(now, this.#pausedUntil);
    try {
      for (const waiting of this.line) {
        const { cost, deadline } = waiting;
        const decision = this.#budget.decide(moment, cost, "consume", 0, false);
        const admittedAt = decision.allowed ? moment : decision.retryAt;
        // A timer may be late, which is nobody's fault.
        if (admittedAt > Math.min(Math.max(deadline, now), LAST_MOMENT)) late.push([waiting, admittedAt]);
        else this.#budget.decide((moment = admittedAt), cost);
      }
      return end(moment);
    } finally {
      this.#budget.restore(state);
    }
  }

  /** Admits whoever is first as long as there is enough, and then sleeps until there is. */
  protected serve(): void {
    if (this.line.some(({ deadline }) => deadline < Infinity)) {
      const late: [Waiting, number][] = [];
      this.#play(() => {}, late);
      for (const [{ deadline, drop }, retryAt] of late) if (retryAt > deadline) drop(tooLong(retryAt));
    }
    this.#cancelTimer();
    for (let first; (first = this.line[0]); ) {
      const now = this.clock.now();
      const { cost } = first;
      const decision: Decision =
        this.#pausedUntil > now ? { allowed: false, retryAt: this.#pausedUntil } : this.#budget.decide(now, cost);
      if (decision.allowed) {
        first.admit(decision);
        this.emit({ type: "allow", cost, decision });
      } else if (decision.maxCost !== undefined) {
        first.drop(never(decision.maxCost)); // it was possible when it came
      } else {
        this.#cancelTimer(); // of whoever was told above, and made us serve
        this.#cancelTimer = this.clock.at(decision.retryAt, () => this.serve());
        return;
      }
    }
  }
}
