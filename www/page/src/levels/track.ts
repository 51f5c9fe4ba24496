// A budget over time: its decisions, with the state after each, so that any moment of the past can be looked
// at. The levels between are the package's arithmetic.
import { bisector } from "d3-array";
import { Bucket, type Decision, type Limit, type Snapshot, type Verb } from "tollgate";
import type { Amount } from "./amount.ts";

/** A decision as it was made. Moments are milliseconds since the trace began. */
export interface Event {
  readonly at: number;
  readonly verb: Exclude<Verb, "consumeUpTo"> | "settle" | "cancel" | "expired";
  /** The cost requested: for a settlement, what the work has cost. */
  readonly cost: Amount;
  /** For a charge, a refund or a closing by a caller: how many tokens of each limit it has moved, or the final cost of the work. */
  readonly tokens?: readonly number[];
  readonly decision: Decision;
  /** The state of each limit afterwards. */
  readonly states: readonly Snapshot[];
  /** Total granted by each limit, less refunds. */
  readonly admitted: readonly number[];
  /** How many decisions have granted tokens so far, and how many have refused. Giving back is neither. */
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
  /** The states at the beginning. */
  readonly first: readonly Snapshot[];

  /** Without initial states it begins with new buckets. */
  constructor(name: string, limits: readonly Limit<string>[], first?: readonly Snapshot[]) {
    this.name = name;
    this.limits = limits;
    this.viewed = limits.map((limit) => new Bucket(START, limit));
    this.first = first ?? this.viewed.map((bucket) => bucket.save(START));
  }

  /** Adds a decision later than all others, and counts it. */
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

  /** How many decisions were made up to this moment. */
  count(at: number): number {
    return byMoment.right(this.events, at);
  }

  /** The decision nearest to a moment, of those up to `now`; -1 if there is none. */
  nearest(at: number, now: number): number {
    const count = this.count(now);
    // Of several at the same moment, the last.
    return count === 0 ? -1 : this.count(this.events[byMoment.center(this.events, at, 0, count)]!.at) - 1;
  }

  /** The level of a limit at a moment, after all decisions up to then; below zero in debt. */
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

  /** When all limits are full, without further requests after this moment. */
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
   * The most that a limit can have admitted since the trace began: its initial level, its largest debt, and all refills. For a
   * fixed window, one refill for each window that has opened.
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

/** How long after the request its tokens may be used, or it would pass: in milliseconds, `Infinity` if never. */
export function waitOf({ at, decision }: Event): number {
  return decision.allowed ? decision.readyAt - START - at : decision.retryAfterMs;
}

/** Whether such a request may be granted tokens that come later. */
export const mayWait = (verb: Event["verb"]): verb is "reserve" | "borrow" => verb === "reserve" || verb === "borrow";

/** Whether such a request has a cost: a cancellation or reset always moves everything. */
export const namesCost = (verb: Event["verb"]) => verb !== "cancel" && verb !== "reset";

const TAKING: readonly Event["verb"][] = ["consume", "reserve", "borrow", "charge"];
const byMoment = bisector(({ at }: Event) => at);

/** When traces begin: a Monday at midnight UTC, so that daily and weekly windows open where expected. */
export const START = Date.UTC(2026, 0, 5);
