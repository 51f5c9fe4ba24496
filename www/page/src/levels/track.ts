// What became of a budget over time: what was decided, with the state after each decision, so that any moment of the past can be looked
// at. The levels between are the package's arithmetic.
import { bisector } from "d3-array";
import { Bucket, type Decision, type Limit, type Snapshot, type Verb } from "tollgate";
import type { Amount } from "./amount.ts";

/** A decision as it was made. Moments are milliseconds since the trace began. */
export interface Event {
  readonly at: number;
  readonly verb: Exclude<Verb, "consumeUpTo"> | "settle" | "cancel" | "expired";
  /** As it was asked: of what is settled, what the work has cost. */
  readonly cost: Amount;
  /** Of what is charged, refunded or closed by a caller: how many tokens of each limit that has moved, or what the work has finally cost. */
  readonly tokens?: readonly number[];
  readonly decision: Decision;
  /** The state of each limit afterwards. */
  readonly states: readonly Snapshot[];
  /** What each limit has given in total, refunds taken off. */
  readonly admitted: readonly number[];
  /** How many decisions have granted tokens so far, and how many have refused. What gives back is neither. */
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

export class Track {
  readonly name: string;
  readonly limits: readonly Limit<string>[];
  readonly events: Event[] = [];
  reservations: Reservation[] = [];
  readonly viewed: readonly Bucket[];
  /** What was there at the beginning. */
  readonly first: readonly Snapshot[];

  /** Without states at the beginning it begins with new buckets. */
  constructor(name: string, limits: readonly Limit<string>[], first?: readonly Snapshot[]) {
    this.name = name;
    this.limits = limits;
    this.viewed = limits.map((limit) => new Bucket(START, limit));
    this.first = first ?? this.viewed.map((bucket) => bucket.save(START));
  }

  /** Adds a decision that is later than all that there are, and counts it. */
  add(decided: Omit<Event, "granted" | "refused">): Event {
    const { granted = 0, refused = 0 } = this.events.at(-1) ?? {};
    const { verb, decision } = decided;
    const event = {
      ...decided,
      granted: granted + Number(decision.allowed && TAKING.includes(verb)),
      refused: refused + Number(!decision.allowed),
    };
    this.events.push(event);
    return event;
  }

  /** How many decisions were made until this moment. */
  count(at: number): number {
    return byMoment.right(this.events, at);
  }

  /** The decision nearest to a moment, of those until `now`; -1 if there is none. */
  nearest(at: number, now: number): number {
    const count = this.count(now);
    // Of several at one moment, the last.
    return count === 0 ? -1 : this.count(this.events[byMoment.center(this.events, at, 0, count)]!.at) - 1;
  }

  /** The level of a limit at a moment, after all that was decided until then; below zero in debt. */
  level(limit: number, at: number): number {
    return this.levelAfter(limit, this.count(at), at);
  }

  /** The same, after the first `count` decisions. A token bucket has fractions of a token: its line is as even as its refill. */
  levelAfter(limit: number, count: number, at: number): number {
    const bucket = this.viewed[limit]!;
    const { kind = "token_bucket", rate, periodMs } = this.limits[limit]!;
    bucket.restore((this.events[count - 1]?.states ?? this.first)[limit]!);
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
    const full = this.viewed.map((bucket, i) => {
      bucket.restore((this.events[count - 1]?.states ?? this.first)[i]!);
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
    } = this.limits[limit]!;
    const opened = (moment: number) => Math.floor((moment - offsetMs) / periodMs);
    const periods = kind === "fixed_window" ? opened(START + at) - opened(START) : at / periodMs;
    return initial + maxDebt + rate * periods;
  }
}

/** How long after it was asked something may be used, or would pass: in milliseconds, `Infinity` if never. */
export function waitOf({ at, decision }: Event): number {
  return decision.allowed ? decision.readyAt - START - at : decision.retryAfterMs;
}

/** Whether such a request may be granted tokens that come later. */
export const mayWait = (verb: Event["verb"]): verb is "reserve" | "borrow" => verb === "reserve" || verb === "borrow";

/** Whether such a request has a cost: what is cancelled or reset is all there is. */
export const namesCost = (verb: Event["verb"]) => verb !== "cancel" && verb !== "reset";

const TAKING: readonly Event["verb"][] = ["consume", "reserve", "borrow", "charge"];
const byMoment = bisector(({ at }: Event) => at);

/** When traces begin: a Monday at midnight UTC, so that the windows of a day or a week open where one expects it. */
export const START = Date.UTC(2026, 0, 5);
