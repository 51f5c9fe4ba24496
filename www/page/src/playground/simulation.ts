// A policy that is asked: the decisions of the package, in virtual time. What was decided is kept with the state after it, so any moment
// of the past can be looked at, and played again from there.
import { Bucket, Budget, type Decision, type Snapshot } from "tollgate";
import type { Policy } from "./policy.ts";
import { type Amount, type Ask, amountOf } from "./trace.ts";

/** A decision as it was made. Moments are milliseconds since the trace began. */
export interface Event {
  readonly at: number;
  readonly verb: Ask["verb"];
  /** As it was asked: what is settled costs the difference to what was reserved. */
  readonly cost: Amount;
  readonly decision: Decision;
  /** The state of each limit afterwards. */
  readonly states: readonly Snapshot[];
  /** What each limit has given in total, refunds taken off. */
  readonly admitted: readonly number[];
  readonly granted: number;
  readonly refused: number;
}

/** Tokens taken in advance, until they are settled, cancelled or forgotten. */
export interface Reservation {
  readonly at: number;
  readonly readyAt: number;
  readonly expiresAt: number;
  readonly cost: Amount;
  /** When and how it ended. */
  readonly end?: { readonly at: number; readonly how: "settled" | "cancelled" | "expired" };
}

export class Simulation {
  readonly policy: Policy;
  readonly events: Event[] = [];
  reservations: Reservation[] = [];
  readonly #budget: Budget<string>;
  readonly #viewed: readonly Bucket[];
  readonly #first: readonly Snapshot[];

  constructor(policy: Policy) {
    this.policy = policy;
    this.#budget = new Budget<string>(START, policy.limits);
    this.#viewed = policy.limits.map((limit) => new Bucket(START, limit));
    this.#first = this.#budget.save(START);
  }

  /** Answers what is asked, not before anything that was asked already. */
  ask({ at, verb, cost: asked }: Ask): Event {
    this.expire(at);
    const cost = this.#fitted(asked);
    if (verb === "settle" || verb === "cancel") return this.#close(at, verb, cost);
    const event = this.#decide(at, verb, verb, cost);
    if (verb === "reserve" && event.decision.allowed) {
      const readyAt = event.decision.readyAt - START;
      this.reservations.push({ at, readyAt, expiresAt: readyAt + this.policy.reservationTtlMs, cost });
    }
    return event;
  }

  /** Ends the reservations that were not settled in time. */
  expire(now: number) {
    for (const open of this.reservations.filter(({ end, expiresAt }) => !end && expiresAt <= now)) {
      this.#end(open, open.expiresAt, "expired");
      // Nothing can come between: it is called before each decision.
      if (this.policy.refundsUnsettled)
        this.#decide(Math.max(open.expiresAt, this.#last), "cancel", "refund", open.cost);
    }
  }

  /** Forgets all that was decided later than this moment. */
  rewind(to: number) {
    const kept = this.count(to);
    this.events.length = kept;
    this.#budget.restore([...(this.events.at(-1)?.states ?? this.#first)]);
    this.reservations = this.reservations
      .filter(({ at }) => at <= to)
      .map(({ end, ...open }) => (end && end.at <= to ? { ...open, end } : open));
  }

  /** Whether a reservation is open at this moment. */
  open(at: number): boolean {
    return this.reservations.some(({ at: made, end }) => made <= at && !(end && end.at <= at));
  }

  /** How many decisions were made until this moment. */
  count(at: number): number {
    let [low, high] = [0, this.events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.events[middle]!.at <= at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The level of a limit at a moment, after all that was decided until then; below zero in debt. */
  level(limit: number, at: number): number {
    return this.levelAfter(limit, this.count(at), at);
  }

  /** The same, after the first `count` decisions. A token bucket has fractions of a token: its line is as even as its refill. */
  levelAfter(limit: number, count: number, at: number): number {
    const bucket = this.#viewed[limit]!;
    const { kind = "token_bucket", rate, periodMs } = this.policy.limits[limit]!;
    bucket.restore((this.events[count - 1]?.states ?? this.#first)[limit]!);
    const now = START + Math.floor(at);
    const { tokens } = bucket.save(now);
    const remaining = bucket.remaining(now);
    const more = bucket.peek(now, { cost: remaining + 1 });
    const next = more.allowed ? now : more.retryAt;
    if (kind === "fixed_window" || !Number.isFinite(next)) return tokens;
    const missing = ((next - now) * rate) / periodMs;
    return Math.min(tokens + 1, Math.max(tokens, remaining + 1 - missing));
  }

  /** When all limits are full, if nothing more is asked after this moment. */
  fullAfterMs(at: number): number {
    const count = this.count(at);
    const now = START + Math.floor(at);
    const full = this.#viewed.map((bucket, i) => {
      bucket.restore((this.events[count - 1]?.states ?? this.#first)[i]!);
      return bucket.fullAt(now);
    });
    return Math.max(...full) - now;
  }

  /**
   * The most that a limit can have admitted since the trace began: what it began with, the debt it may give, and all refills. Of a
   * fixed window, as many refills as windows have opened.
   */
  bound(limit: number, at: number): number {
    const {
      kind,
      rate,
      periodMs,
      capacity = rate,
      initial = capacity,
      maxDebt = 0,
      offsetMs = 0,
    } = this.policy.limits[limit]!;
    const opened = (moment: number) => Math.floor((moment - offsetMs) / periodMs);
    const periods = kind === "fixed_window" ? opened(START + at) - opened(START) : at / periodMs;
    return initial + maxDebt + rate * periods;
  }

  /** How a limit stands right after a decision, and what it alone has refused. */
  standing(limit: number, { at, verb, cost, states, decision }: Event) {
    const bucket = this.#viewed[limit]!;
    const now = START + at;
    bucket.restore(states[limit]!);
    const remaining = bucket.remaining(now);
    const standing = { remaining, owed: bucket.owed(now), fullAt: bucket.fullAt(now) };
    const asked = {
      verb: verb === "settle" || verb === "cancel" ? "refund" : verb,
      cost: amountOf(cost, this.policy.limits[limit]!.name),
    } as const;
    const alone = decision.allowed ? decision : bucket.peek(now, asked);
    const paid = bucket.peek(now, { cost: 0 });
    // The next token for a caller who takes all that there are.
    bucket.tryConsume(now, remaining);
    const next = bucket.peek(now);
    return {
      ...standing,
      refusal: alone.allowed ? undefined : alone,
      /** When its debt is paid. */
      paidAt: paid.allowed ? now : paid.retryAt,
      tokenAt: next.allowed ? now : next.retryAt,
    };
  }

  /** A cost for the limits of this policy: it may have been meant for another, or for this one as it was before an edit. */
  #fitted(cost: Amount): Amount {
    if (typeof cost === "number") return cost;
    const { limits } = this.policy;
    if (limits[0]!.name === undefined) return Object.values(cost)[0] ?? 0;
    return Object.fromEntries(limits.map(({ name }) => [name!, cost[name!] ?? 0]));
  }

  get #last(): number {
    return this.events.at(-1)?.at ?? 0;
  }

  /** Closes the oldest open reservation, at its real cost or at none. */
  #close(at: number, verb: "settle" | "cancel", cost: Amount): Event {
    const open = this.reservations.find(({ end }) => !end);
    if (!open) return this.#decide(at, verb, "refund", 0, cost);
    this.#end(open, at, verb === "settle" ? "settled" : "cancelled");
    const real = verb === "settle" ? cost : 0;
    const more = this.policy.limits.map(({ name }) => amountOf(real, name) - amountOf(open.cost, name));
    const named = (amounts: readonly number[]): Amount =>
      this.policy.limits[0]!.name === undefined
        ? amounts[0]!
        : Object.fromEntries(this.policy.limits.map(({ name }, i) => [name!, amounts[i]!]));
    if (more.some((tokens) => tokens > 0))
      this.#decide(at, verb, "charge", named(more.map((tokens) => Math.max(0, tokens))), cost);
    return this.#decide(at, verb, "refund", named(more.map((tokens) => Math.max(0, -tokens))), cost);
  }

  #end(open: Reservation, at: number, how: NonNullable<Reservation["end"]>["how"]) {
    this.reservations[this.reservations.indexOf(open)] = { ...open, end: { at, how } };
  }

  #decide(
    at: number,
    verb: Ask["verb"],
    asked: "charge" | Exclude<Ask["verb"], "settle" | "cancel">,
    tokens: Amount,
    cost = tokens,
  ): Event {
    const now = START + at;
    const before = this.#budget.save(now);
    const decision = this.#budget.decide(now, { verb: asked, cost: tokens });
    const states = this.#budget.save(now);
    const last = this.events.at(-1);
    const admitted = states.map(({ tokens }, i) => (last?.admitted[i] ?? 0) + before[i]!.tokens - tokens);
    const event: Event = {
      at,
      verb,
      cost,
      decision,
      states,
      admitted,
      granted: (last?.granted ?? 0) + Number(decision.allowed),
      refused: (last?.refused ?? 0) + Number(!decision.allowed),
    };
    this.events.push(event);
    return event;
  }
}

/** When traces begin: a Monday at midnight UTC, so that the windows of a day or a week open where one expects it. */
export const START = Date.UTC(2026, 0, 5);
