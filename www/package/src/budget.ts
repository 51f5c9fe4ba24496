// Several limits for one key, all or none.
import { Bucket, mismatched, type Decision, type Limit, type Snapshot, type Verb } from "./bucket.js";
import { whole } from "./errors.js";

/** How many tokens are asked: the same of each limit, or of each by its name. */
export type Cost = number | Readonly<Record<string, number>>;

/**
 * The buckets of a policy for one key: its limits all grant, or none of them gives anything. Time is an argument.
 *
 * ```js
 * const budget = new Budget(0, [{ rate: 10, periodMs: 1000 }, { rate: 15, periodMs: 60_000 }]);
 * budget.decide(0, 10).allowed; // true
 * budget.decide(1000, 10); // { allowed: false, retryAt: 20000 }: the first limit would, the second has 5 left
 * ```
 */
export class Budget {
  readonly limits: readonly Limit[];
  readonly #buckets: readonly Bucket[];

  constructor(now: number, limits: Limit | readonly Limit[]) {
    this.limits = [limits].flat();
    whole("limits", this.limits.length, 1);
    this.#buckets = this.limits.map((limit) => new Bucket(now, limit));
  }

  /** Asks all limits at one moment, as {@link Bucket.decide} asks one. The answer is the longest wait and the latest start of theirs. */
  decide(now: number, cost: Cost = 1, verb: Verb = "consume", maxWaitMs = Infinity, keep = true): Decision {
    const costs = this.limits.map(({ name }) => whole("cost", typeof cost === "number" ? cost : Object(cost)[name!]));
    // At least one, so that an empty bucket refuses.
    const most =
      verb === "consumeUpTo"
        ? Math.max(1, Math.min(...this.#buckets.map((bucket, i) => (costs[i] ? bucket.remaining(now) : Infinity))))
        : Infinity;
    const ask = (keep: boolean) =>
      this.#buckets
        .map((bucket, i) => bucket.decide(now, Math.min(costs[i]!, most), verb, maxWaitMs, keep))
        .reduce(both);
    if (!keep || costs.length === 1) return ask(keep);
    const decision = ask(false);
    // A refusal moves nothing but a bucket that waits for a clock which was wrong.
    return decision.allowed ? ask(true) : (this.#buckets.forEach((bucket) => bucket.consume(now, 0)), decision);
  }

  /** How many whole tokens every limit has. */
  remaining(now: number): number {
    return Math.min(...this.#buckets.map((bucket) => bucket.remaining(now)));
  }

  /** The first moment, `now` or later, at which all limits are full if nobody asks; `Infinity` if they never will be. */
  fullAt(now: number): number {
    return Math.max(...this.#buckets.map((bucket) => bucket.fullAt(now)));
  }

  /** The states of all limits at `now`, to be kept. */
  save(now: number): Snapshot[] {
    return this.#buckets.map((bucket) => bucket.save(now));
  }

  /** Takes over what {@link save} gave of the same limits. */
  restore(snapshots: readonly Snapshot[]): void {
    if (snapshots.length !== this.limits.length) throw mismatched();
    for (const keep of [false, true]) this.#buckets.forEach((bucket, i) => bucket.restore(snapshots[i]!, keep));
  }
}

/** What both answers come to. */
function both(a: Decision, b: Decision): Decision {
  if (a.allowed && b.allowed) {
    return { allowed: true, tokens: Math.max(a.tokens, b.tokens), readyAt: Math.max(a.readyAt, b.readyAt) };
  }
  return !b.allowed && (a.allowed || b.retryAt > a.retryAt || b.maxCost! < a.maxCost!) ? b : a;
}
