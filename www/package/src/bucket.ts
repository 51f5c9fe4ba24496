// One limit for one key, with time as an argument.
import type { Cost } from "./budget.js";
import { allocate, consume, core, load, NUMBER_BYTES } from "./core.js";
import { checkIndex, checkOptions, checkWhole, TollgateError } from "./errors.js";

/** The kind of a limit that `tollgate/kinds` has made. */
export type OtherKind = string & { readonly "tollgate/kinds": never };

/** One rule: a token bucket or a fixed window. All numbers are whole; `tollgate/rate` makes them of 2.5 per second. */
export interface Limit<Name extends string = string> {
  /** `token_bucket` (the default) refills evenly; `fixed_window` refills all at once when a window opens. `tollgate/kinds` makes others. */
  readonly kind?: "token_bucket" | "fixed_window" | OtherKind;
  /** Names this limit in costs, if a policy has several limits. */
  readonly name?: Name;
  /** How many tokens are added in each period. With 0 the budget never refills. */
  readonly rate: number;
  /** The period in milliseconds. */
  readonly periodMs: number;
  /**
   * The most tokens it can hold, and so the largest burst. With 0 only `reserve` and `borrow` are granted. Default:
   * `rate`.
   */
  readonly capacity?: number;
  /** How many tokens may be owed after `reserve`, `borrow` and `charge`. Default: 0. */
  readonly maxDebt?: number;
  /** How many tokens it starts with. Default: `capacity`. */
  readonly initial?: number;
  /** For a fixed window: how many milliseconds after the Unix epoch a window opens; others follow in each period. Default: 0. */
  readonly offsetMs?: number;
}

/**
 * What to do with the tokens.
 *
 * * `consume` takes them now or refuses.
 * * `reserve` takes them in advance, to be used at `readyAt`, when they will have been refilled.
 * * `borrow` starts as soon as earlier debt is paid; its own cost delays the next caller.
 * * `consumeUpTo` takes what is left, at most `cost`.
 * * `charge` debits what was already used, down to `-maxDebt`; never refused.
 * * `refund` gives back, up to the capacity, and `reset` fills the bucket; never refused.
 */
export type Verb = "consume" | "reserve" | "borrow" | "charge" | "consumeUpTo" | "refund" | "reset";

/** What to ask for. */
export interface DecideOptions<Name extends string = never> {
  /** How many tokens. Default: 1. */
  readonly cost?: Cost<Name>;
  /** Default: `consume`. */
  readonly verb?: Verb;
  /** `reserve` and `borrow` are refused if they would start later than this. Default: `Infinity`. */
  readonly maxWaitMs?: number;
}

/** The answer. Moments are Unix milliseconds by the clock that was used to ask. */
export type Decision = Grant | Refusal;

/** Granted. */
export interface Grant {
  readonly allowed: true;
  /** How many whole tokens were taken, or, by `refund` and `reset`, given back. */
  readonly tokens: number;
  /** When they may be used: now, except after `reserve` and `borrow`. */
  readonly readyAt: number;
  /** How many whole tokens are left; 0 in debt. */
  readonly remaining: number;
  readonly retryAfterMs: 0;
}

/** Not granted now, or never. */
export interface Refusal {
  readonly allowed: false;
  /** The first moment at which the same call would be granted if nothing else is taken. `Infinity` means never. */
  readonly retryAt: number;
  /** Time until `retryAt`. */
  readonly retryAfterMs: number;
  /** How many whole tokens are left; 0 in debt. */
  readonly remaining: number;
  /** Only if never: the largest cost that could be granted. */
  readonly maxCost?: number;
}

/**
 * The state of one limit: three whole numbers, safe to store as JSON. Only a limit with the same numbers can restore
 * it.
 */
export interface Snapshot {
  /** Whole tokens; negative in debt. */
  readonly tokens: number;
  /** The fraction of the next token, in the core's own unit: see {@link Bucket.dropsPerToken}. */
  readonly drops: number;
  /** The moment up to which refills are included. */
  readonly at: number;
  /** Only of a rolling window: when what is missing comes back, in order, and how many tokens at each moment. */
  readonly returns?: readonly (readonly [at: number, tokens: number])[];
}

/**
 * One limit for one key. Time is an argument: Unix milliseconds from any clock. If the clock steps back by up to a
 * minute, no time has passed; after a larger step the bucket continues from the new time.
 *
 * Over any `t` milliseconds it admits at most `capacity + ⌊rate · t / periodMs⌋` tokens by `consume`, and it never
 * refuses what exact arithmetic would admit.
 *
 * ```js
 * const bucket = new Bucket(0, { rate: 3, periodMs: 1000 }); // 3 per second
 * bucket.tryConsume(0, 3); // true
 * bucket.tryConsume(0); // false
 * bucket.peek(0).retryAt; // 334: granted after a third of a second, refused at 333
 * ```
 */
export class Bucket {
  readonly #address: number;

  /**
   * Makes a bucket that is first used at `now`. Throws a {@link TollgateError} for numbers that cannot be kept exact.
   */
  constructor(
    now: number,
    { kind = "token_bucket", rate, periodMs, capacity = rate, maxDebt = 0, initial = capacity, offsetMs = 0 }: Limit,
  ) {
    load();
    const address = allocate(this);
    this.#address = address;
    const parameters = Object.entries({ rate, periodMs, capacity, maxDebt, initial, offsetMs });
    // A period of 0 ms has no rate.
    const check = (i: number, max?: number) => checkWhole(...parameters[i]!, Number(i === 1), max);
    const numbers = parameters.map((_, i) => check(i)) as [number, number, number, number, number, number];
    const max = address - NUMBER_BYTES;
    const tooLarge = core.make(address, max, checkIndex("kind", kind, KINDS), checkMoment(now), ...numbers);
    if (tooLarge) check(tooLarge - 1, new Float64Array(core.memory.buffer, max, 1)[0]);
  }

  /**
   * Takes `cost` tokens now and returns true, or takes none and returns false. {@link decide} returns the whole answer.
   * A cost of 0 takes nothing, and is refused in debt.
   */
  tryConsume(now: number, cost = 1): boolean {
    // `checkMoment` and `checkWhole` inlined, because on this path it saves a quarter of the time.
    if (!(Number.isSafeInteger(now) && Math.abs(now) <= LAST_MOMENT && Number.isSafeInteger(cost) && cost >= 0)) {
      checkMoment(now);
      checkWhole("cost", cost);
    }
    return consume(this.#address, now, cost) > 0;
  }

  /** Does what the verb says, if that is granted, and returns the whole answer. */
  decide(now: number, options?: DecideOptions): Decision {
    return this.#decide(now, true, options);
  }

  /** Returns the answer that {@link decide} would give, and changes nothing. */
  peek(now: number, options?: DecideOptions): Decision {
    return this.#decide(now, false, options);
  }

  #decide(now: number, apply: boolean, options?: DecideOptions): Decision {
    const { cost = 1, verb = "consume", maxWaitMs = Infinity } = checkOptions(options);
    const answer = core.decide(
      this.#address,
      checkIndex("verb", verb, VERBS),
      checkMoment(now),
      checkWhole("cost", cost),
      checkWhole("maxWaitMs", maxWaitMs, 0, Infinity),
      apply,
    );
    const tokens = this.#get(0, 0);
    const at = this.#get(1, 0);
    const remaining = this.remaining(now);
    return answer
      ? { allowed: false, retryAt: at, retryAfterMs: at - now, remaining, ...(answer > 1 && { maxCost: tokens }) }
      : { allowed: true, tokens, readyAt: at, remaining, retryAfterMs: 0 };
  }

  /** How many whole tokens could be consumed; 0 in debt. */
  remaining(now: number): number {
    return Math.max(0, this.#get(2, now));
  }

  /** How many tokens are owed, rounded up; 0 when not in debt. */
  owed(now: number): number {
    return Math.max(0, -this.#get(2, now)); // the level is rounded down, so its negation is rounded up
  }

  /** The first moment, `now` or later, at which the bucket is full if nothing is taken; `Infinity` if it never is. */
  fullAt(now: number): number {
    return this.#get(5, now);
  }

  /** How many {@link Snapshot.drops} make a token. */
  get dropsPerToken(): number {
    return this.#get(6, 0);
  }

  /** The state at `now`, to store. */
  save(now: number): Snapshot {
    return { tokens: this.#get(2, now), drops: this.#get(3, now), at: this.#get(4, now) };
  }

  /**
   * Continues from what {@link save} returned for a bucket with the same numbers. Throws if this limit cannot be in
   * that state. If `apply` is false, it only checks.
   */
  restore(snapshot: Snapshot, apply = true): void {
    const { tokens, drops, at } = Object(snapshot) as Snapshot;
    if (![tokens, drops, at].every(Number.isSafeInteger) || !core.restore(this.#address, tokens, drops, at, apply))
      throw snapshotMismatched();
  }

  /**
   * Where the core keeps it.
   *
   * @internal
   */
  static addressOf(bucket: Bucket): number {
    return bucket.#address;
  }

  /** Reads one of the core's numbers; see its `get`. */
  #get(which: number, now: number): number {
    return core.get(this.#address, which, checkMoment(now));
  }
}

export const snapshotMismatched = () =>
  new TollgateError("snapshot_mismatched", "the snapshot does not match these limits");

export function checkMoment(now: number): number {
  return checkWhole("now", now, -LAST_MOMENT, LAST_MOMENT);
}

/** The core is exact for moments this far from the epoch: some 142 000 years. */
export const LAST_MOMENT = 2 ** 52;

/** In the order of the core's numbers. `tollgate/kinds` adds some. */
export const KINDS = ["token_bucket", "fixed_window"];
const VERBS: readonly Verb[] = ["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"];
