// One limit for one key, with time as an argument.
import { allocate, core, start } from "./core.js";
import { placeOf, TollgateError, whole } from "./errors.js";

/** One rule: a token bucket or a fixed window. All numbers are whole. */
export interface Limit {
  /** `token_bucket` (the default): tokens come back evenly. `fixed_window`: all come back when a window opens. */
  readonly kind?: "token_bucket" | "fixed_window";
  /** How it is called in costs, where a policy has several limits. */
  readonly name?: string;
  /** How many tokens come back in each period. With 0 it is a budget that never refills. */
  readonly rate: number;
  /** The period in milliseconds. */
  readonly periodMs: number;
  /** The most there is at once, and so the largest burst; with 0 only `reserve` and `borrow` are granted. As many as `rate`, if left out. */
  readonly capacity?: number;
  /** How many tokens may be owed after `reserve`, `borrow` and `charge`. 0, if left out. */
  readonly maxDebt?: number;
  /** How many tokens there are at first. `capacity`, if left out. */
  readonly initial?: number;
  /** For a fixed window: windows open so many milliseconds after the Unix epoch, and each period from there. 0, if left out. */
  readonly offsetMs?: number;
}

/**
 * A way to ask.
 *
 * * `consume` takes now or refuses.
 * * `reserve` takes in advance, to be used at `readyAt`, when the tokens will have come back.
 * * `borrow` starts as soon as earlier debt is paid; this cost delays whoever comes next.
 * * `consumeUpTo` takes what is there, at most so many.
 * * `charge` debits what was already used, down to `-maxDebt`; never refused.
 * * `refund` gives back, up to the capacity, and `reset` fills; never refused.
 */
export type Verb = "consume" | "reserve" | "borrow" | "charge" | "consumeUpTo" | "refund" | "reset";

/** The answer. All moments are Unix milliseconds of the clock that was asked. */
export type Decision = Grant | Refusal;

/** Yes. */
export interface Grant {
  readonly allowed: true;
  /** Whole tokens that were taken, or given back by `refund` and `reset`. */
  readonly tokens: number;
  /** From when they may be used: at once, unless it was `reserve` or `borrow`. */
  readonly readyAt: number;
}

/** Not now, or never. */
export interface Refusal {
  readonly allowed: false;
  /** The first moment at which the same call would be granted, if nobody else asks. `Infinity` if that is never. */
  readonly retryAt: number;
  /** If never: the largest cost that could be granted. */
  readonly maxCost?: number;
}

/** The state of one limit: three whole numbers, to be kept as JSON. It means something only to a limit with the same numbers. */
export interface Snapshot {
  /** Whole tokens, below zero in debt. */
  readonly tokens: number;
  /** Parts of a token beside them. */
  readonly drops: number;
  /** The moment up to which what came back is in. */
  readonly at: number;
}

/**
 * One limit, and how much of it one key has used. Time is an argument: Unix milliseconds from any clock. One that
 * steps back by up to a minute counts as standing still; after a larger step the bucket goes on from the new time.
 *
 * Over any `t` milliseconds it admits at most `capacity + ⌊rate · t / periodMs⌋` tokens by `consume`, and it never
 * refuses what exact arithmetic would admit.
 *
 * ```js
 * const bucket = new Bucket(0, { rate: 3, periodMs: 1000 }); // 3 per second
 * bucket.consume(0, 3); // true
 * bucket.consume(0); // false
 * bucket.peek(0).retryAt; // 334: a third of a second, and refused at 333
 * ```
 */
export class Bucket {
  readonly #address: number;

  /** A bucket first used at `now`. Throws a {@link TollgateError} for numbers that could not be kept exact. */
  constructor(
    now: number,
    { kind = "token_bucket", rate, periodMs, capacity = rate, maxDebt = 0, initial = capacity, offsetMs = 0 }: Limit,
  ) {
    start();
    const address = (this.#address = allocate(this));
    const values = Object.entries({ rate, periodMs, capacity, maxDebt, initial, offsetMs });
    const numbers = values.map(([name, value]) => whole(name, value, leastOf(name))) as [
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    const max = address + core.size();
    const wrong = values[core.make(address, max, placeOf("kind", kind, KINDS), moment(now), ...numbers) - 1];
    if (wrong) whole(...wrong, leastOf(wrong[0]), new Float64Array(core.memory.buffer, max, 1)[0]);
  }

  /** Takes `cost` tokens now, or none, and says which. {@link decide} says more. A cost of 0 takes nothing, and is refused in debt. */
  consume(now: number, cost = 1): boolean {
    // Once more what `moment` and `whole` do, because here it shows: a quarter of the time.
    if (!(Number.isSafeInteger(now) && Math.abs(now) <= LAST_MOMENT && Number.isSafeInteger(cost) && cost >= 0)) {
      moment(now);
      whole("cost", cost);
    }
    return core.consume(this.#address, now, cost) > 0;
  }

  /** The answer that {@link consume} would give, with nothing taken. */
  peek(now: number, cost = 1): Decision {
    return this.decide(now, cost, "consume", 0, false);
  }

  /**
   * Asks for `cost` tokens. `reserve` and `borrow` are refused where they would start more than `maxWaitMs` from now, or
   * owe more than `maxDebt`. With `keep` false nothing is taken.
   */
  decide(now: number, cost = 1, verb: Verb = "consume", maxWaitMs = Infinity, keep = true): Decision {
    const answer = core.decide(
      this.#address,
      placeOf("verb", verb, VERBS),
      moment(now),
      whole("cost", cost),
      whole("maxWaitMs", maxWaitMs, 0, Infinity),
      keep,
    );
    const tokens = this.#get(0, 0);
    const at = this.#get(1, 0);
    return answer === 0
      ? { allowed: true, tokens, readyAt: at }
      : answer === 1
        ? { allowed: false, retryAt: at }
        : { allowed: false, retryAt: at, maxCost: tokens };
  }

  /** How many whole tokens could be consumed; 0 when in debt. */
  remaining(now: number): number {
    return Math.max(0, this.#get(2, now));
  }

  /** How many tokens are owed, a part of one counted as one; 0 when not in debt. */
  owed(now: number): number {
    return Math.max(0, -this.#get(2, now)); // rounded down, and so up
  }

  /** The first moment, `now` or later, at which the bucket is full if nobody asks; `Infinity` if it never will be. */
  fullAt(now: number): number {
    return this.#get(5, now);
  }

  /** The state at `now`, to be kept. */
  save(now: number): Snapshot {
    return { tokens: this.#get(2, now), drops: this.#get(3, now), at: this.#get(4, now) };
  }

  /** Takes over a state that {@link save} gave of a bucket with the same numbers. Throws for one that this limit cannot be in. With `keep` false it is only checked. */
  restore(snapshot: Snapshot, keep = true): void {
    const { tokens, drops, at } = snapshot ?? {};
    if (![tokens, drops, at].every(Number.isSafeInteger) || !core.restore(this.#address, tokens, drops, at, keep))
      throw mismatched();
  }

  /** One of the numbers that the core's `get` knows. */
  #get(which: number, now: number): number {
    return core.get(this.#address, which, moment(now));
  }
}

/** What is thrown for a state that cannot be. */
export const mismatched = () => new TollgateError("snapshot_mismatched", "this is no state of these limits");

/** Nothing can come back every 0 ms. */
const leastOf = (name: string) => Number(name === "periodMs");

function moment(now: number): number {
  return whole("now", now, -LAST_MOMENT, LAST_MOMENT);
}

/** The core is exact about moments this far from the epoch, some 142 000 years. */
export const LAST_MOMENT = 2 ** 52;

/** In the order of the core's. */
const KINDS = ["token_bucket", "fixed_window"];
const VERBS: readonly Verb[] = ["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"];
