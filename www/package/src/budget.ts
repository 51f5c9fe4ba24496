// Several limits for one key: all grant, or nothing is taken.
import {
  Bucket,
  type DecideOptions,
  type Decision,
  type Limit,
  type Refusal,
  type Snapshot,
  snapshotMismatched,
} from "./bucket.js";
import { checkOptions, checkWhole } from "./errors.js";

/**
 * How many tokens to ask for: one number for all limits, or, if they have names, one for each. A limit with a cost of
 * 0 beside one with a cost has no part in the decision; if all are 0, every limit refuses while it owes.
 */
export type Cost<Name extends string = never> =
  | number
  | ([Name] extends [never] ? never : Readonly<Record<Name, number>>);

/**
 * A bucket for each limit of a policy, for one key: all of them grant, or nothing is taken. Time is an argument.
 *
 * ```js
 * const budget = new Budget(0, [{ rate: 10, periodMs: 1000 }, { rate: 15, periodMs: 60_000 }]);
 * budget.tryConsume(0, 10); // true
 * budget.peek(1000, { cost: 10 }).retryAt; // 20000: the first limit would grant, the second has 5 left
 * ```
 */
export class Budget<Name extends string = never> {
  /** A copy of the limits. */
  readonly limits: readonly Limit<Name>[];
  /** @internal */
  readonly buckets: readonly Bucket[];

  constructor(now: number, limits: Limit<Name> | readonly Limit<Name>[]) {
    this.limits = [limits].flat().map((limit) => Object.freeze({ ...limit }));
    checkWhole("limits", this.limits.length, 1);
    this.buckets = this.limits.map((limit) => new Bucket(now, limit));
  }

  /**
   * Begins anew, as one made at `now`.
   *
   * @internal
   */
  begin(now: number): void {
    for (const [i, limit] of this.limits.entries()) this.buckets[i]!.restore(new Bucket(now, limit).save(now));
  }

  /** Takes `cost` tokens now and returns true, or takes none and returns false. */
  tryConsume(now: number, cost: Cost<Name> = 1): boolean {
    return this.decide(now, { cost }).allowed;
  }

  /**
   * Asks all limits at once, as {@link Bucket.decide} asks one. The answer has the longest wait, the latest start and
   * the fewest remaining tokens of them all.
   */
  decide(now: number, options?: DecideOptions<Name>): Decision {
    if (this.limits.length === 1) return this.#ask(now, options, "decide");
    const decision = this.peek(now, options);
    if (decision.allowed) return this.#ask(now, options, "decide");
    // A refusal changes nothing, except that a bucket whose clock stepped back too far continues from the new time.
    for (const bucket of this.buckets) bucket.tryConsume(now, 0);
    return decision;
  }

  /** Returns the answer that {@link decide} would give, and changes nothing. */
  peek(now: number, options?: DecideOptions<Name>): Decision {
    return this.#ask(now, options, "peek");
  }

  #ask(now: number, options: DecideOptions<Name> | undefined, method: "decide" | "peek"): Decision {
    return this.each(now, options, method).reduce(combine);
  }

  /**
   * The answer of each limit, in order.
   *
   * @internal
   */
  each(now: number, options: DecideOptions<Name> | undefined, method: "decide" | "peek"): Decision[] {
    const { cost = 1, verb } = checkOptions(options);
    const costs = this.limits.map(({ name }) =>
      checkWhole("cost", typeof cost === "number" ? cost : Object(cost)[name!]),
    );
    // At least 1, so that an empty bucket refuses.
    const most =
      verb === "consumeUpTo"
        ? Math.max(1, Math.min(...this.buckets.map((bucket, i) => (costs[i] ? bucket.remaining(now) : Infinity))))
        : Infinity;
    return this.buckets.map((bucket, i) => {
      const cost = Math.min(costs[i]!, most);
      // Giving nothing back is granted in any debt.
      const hasNoSay = cost === 0 && verb !== "reset" && costs.some((other) => other > 0);
      return bucket[method](now, { ...options, cost, ...(hasNoSay && { verb: "refund" as const }) });
    });
  }

  /** How many whole tokens every limit has. */
  remaining(now: number): number {
    return Math.min(...this.buckets.map((bucket) => bucket.remaining(now)));
  }

  /** How many tokens are owed to the limit that is deepest in debt, rounded up; 0 if none is. */
  owed(now: number): number {
    return Math.max(...this.buckets.map((bucket) => bucket.owed(now)));
  }

  /** The next moment at which every limit has one more; `Infinity` if none comes. */
  nextTokenAt(now: number): number {
    return (this.peek(now, { cost: this.remaining(now) + 1 }) as Refusal).retryAt;
  }

  /**
   * The first moment, `now` or later, at which all limits are full if nothing is taken; `Infinity` if they never are.
   */
  fullAt(now: number): number {
    return Math.max(...this.buckets.map((bucket) => bucket.fullAt(now)));
  }

  /** The states of all limits at `now`, to store. */
  save(now: number): Snapshot[] {
    return this.buckets.map((bucket) => bucket.save(now));
  }

  /** Continues from what {@link save} returned for the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    if (snapshots.length !== this.limits.length) throw snapshotMismatched();
    for (const apply of [false, true]) {
      for (const [i, bucket] of this.buckets.entries()) bucket.restore(snapshots[i]!, apply);
    }
  }
}

/** The combined answer of two limits. */
function combine(a: Decision, b: Decision): Decision {
  const remaining = Math.min(a.remaining, b.remaining);
  if (a.allowed && b.allowed) {
    return { ...a, tokens: Math.max(a.tokens, b.tokens), readyAt: Math.max(a.readyAt, b.readyAt), remaining };
  }
  return { ...(!b.allowed && (a.allowed || b.retryAt > a.retryAt || b.maxCost! < a.maxCost!) ? b : a), remaining };
}
