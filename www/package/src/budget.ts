// Several limits for one key: all grant, or nothing is taken.
import { Bucket, type Decision, type Limit, type Snapshot, snapshotMismatched, type Verb } from "./bucket.js";
import { checkWhole } from "./errors.js";

/** How many tokens to ask for: one number for all limits, or one for each by its name. */
export type Cost = number | Readonly<Record<string, number>>;

/**
 * A bucket for each limit of a policy, for one key: all of them grant, or nothing is taken. Time is an argument.
 *
 * ```js
 * const budget = new Budget(0, [{ rate: 10, periodMs: 1000 }, { rate: 15, periodMs: 60_000 }]);
 * budget.decide(0, 10).allowed; // true
 * budget.decide(1000, 10); // { allowed: false, retryAt: 20000 }: the first limit would grant, the second has 5 left
 * ```
 */
export class Budget {
  readonly limits: readonly Limit[];
  readonly #buckets: readonly Bucket[];

  constructor(now: number, limits: Limit | readonly Limit[]) {
    this.limits = [limits].flat();
    checkWhole("limits", this.limits.length, 1);
    this.#buckets = this.limits.map((limit) => new Bucket(now, limit));
  }

  /**
   * Asks all limits at once, as {@link Bucket.decide} asks one. The answer has the longest wait and the latest start of
   * them all.
   */
  decide(now: number, cost: Cost = 1, verb: Verb = "consume", maxWaitMs = Infinity, apply = true): Decision {
    const costs = this.limits.map(({ name }) =>
      checkWhole("cost", typeof cost === "number" ? cost : Object(cost)[name!]),
    );
    // At least 1, so that an empty bucket refuses.
    const most =
      verb === "consumeUpTo"
        ? Math.max(1, Math.min(...this.#buckets.map((bucket, i) => (costs[i] ? bucket.remaining(now) : Infinity))))
        : Infinity;
    const ask = (apply: boolean) =>
      this.#buckets
        .map((bucket, i) => bucket.decide(now, Math.min(costs[i]!, most), verb, maxWaitMs, apply))
        .reduce(combine);
    if (!apply || costs.length === 1) return ask(apply);
    const decision = ask(false);
    if (decision.allowed) return ask(true);
    // A refusal changes nothing, except that a bucket whose clock stepped back too far continues from the new time.
    for (const bucket of this.#buckets) bucket.consume(now, 0);
    return decision;
  }

  /** How many whole tokens every limit has. */
  remaining(now: number): number {
    return Math.min(...this.#buckets.map((bucket) => bucket.remaining(now)));
  }

  /**
   * The first moment, `now` or later, at which all limits are full if nothing is taken; `Infinity` if they never are.
   */
  fullAt(now: number): number {
    return Math.max(...this.#buckets.map((bucket) => bucket.fullAt(now)));
  }

  /** The states of all limits at `now`, to store. */
  save(now: number): Snapshot[] {
    return this.#buckets.map((bucket) => bucket.save(now));
  }

  /** Continues from what {@link save} returned for the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    if (snapshots.length !== this.limits.length) throw snapshotMismatched();
    for (const apply of [false, true]) {
      for (const [i, bucket] of this.#buckets.entries()) bucket.restore(snapshots[i]!, apply);
    }
  }
}

/** The answer of two limits together. */
function combine(a: Decision, b: Decision): Decision {
  if (a.allowed && b.allowed) {
    return { allowed: true, tokens: Math.max(a.tokens, b.tokens), readyAt: Math.max(a.readyAt, b.readyAt) };
  }
  return !b.allowed && (a.allowed || b.retryAt > a.retryAt || b.maxCost! < a.maxCost!) ? b : a;
}
