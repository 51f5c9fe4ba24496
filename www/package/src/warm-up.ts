// A pace that begins slowly after idleness.
import { checkMoment, type Grant, type Refusal } from "./bucket.js";
import { allocate, type Core, core, load, NUMBER_BYTES } from "./core.js";
import { checkOptions, checkWhole } from "./errors.js";

/** The numbers of a {@link WarmUp}. All are whole. */
export interface WarmUpNumbers {
  /** How many tokens each period has, once it is warm. */
  readonly rate: number;
  /** The period in milliseconds. */
  readonly periodMs: number;
  /** How long a warm-up takes in milliseconds, and so does cooling down. */
  readonly warmUpMs: number;
}

/** What to ask a {@link WarmUp} for. */
export interface WarmUpOptions {
  /** How many tokens. Default: 1. */
  readonly cost?: number;
  /** Refused if the start would be later than this. Default: `Infinity`. */
  readonly maxWaitMs?: number;
}

/** When to start: a {@link Grant} without what a pace does not have. */
export type Start = Omit<Grant, "remaining">;

/** The answer where a wait may be too long. */
export type Turn = Start | Omit<Refusal, "remaining" | "maxCost">;

/**
 * A pace for requests to something that answers slowly while it is cold: after idleness tokens come at a third of the rate, then faster from one
 * to the next, until they come at the rate. It begins cold. Each caller gets a moment to start at, and its tokens delay the next caller. Only a
 * wait that is too long is refused, and idle time is never made up for by a burst. It is Guava's `SmoothWarmingUp` in exact integers.
 * Time is an argument, as with `Bucket`.
 *
 * ```js
 * const pace = new WarmUp(0, { rate: 2, periodMs: 1000, warmUpMs: 4000 });
 * pace.borrow(0).readyAt; // 0, then 1375, 2500, 3375, 4000, 4500, 5000
 * ```
 */
export class WarmUp {
  readonly #address: number;

  /** Makes a pace that is first used at `now`. Throws a {@link TollgateError} for numbers that cannot be kept exact. */
  constructor(now: number, { rate, periodMs, warmUpMs }: WarmUpNumbers) {
    load();
    const address = allocate(this);
    this.#address = address;
    const parameters = Object.entries({ rate, periodMs, warmUpMs });
    const check = (i: number, max?: number) => checkWhole(...parameters[i]!, Number(i < 2), max);
    const numbers = parameters.map((_, i) => check(i)) as [number, number, number];
    const max = address - NUMBER_BYTES;
    const tooLarge = ours().warm_up(address, max, checkMoment(now), ...numbers);
    if (tooLarge) check(tooLarge - 1, numberAt(max));
  }

  /** Takes `cost` tokens, to be used at `readyAt`; or none, if that is more than `maxWaitMs` away. */
  borrow(now: number, options?: AnyWait): Start;
  borrow(now: number, options?: WarmUpOptions): Turn;
  borrow(now: number, options?: WarmUpOptions): Turn {
    return this.#ask(now, true, options);
  }

  /** Returns the answer that {@link borrow} would give, and changes nothing. */
  peek(now: number, options?: AnyWait): Start;
  peek(now: number, options?: WarmUpOptions): Turn;
  peek(now: number, options?: WarmUpOptions): Turn {
    return this.#ask(now, false, options);
  }

  #ask(now: number, apply: boolean, options?: WarmUpOptions): Turn {
    const { cost = 1, maxWaitMs = Infinity } = checkOptions(options);
    const at = this.#address - NUMBER_BYTES;
    const [tokens, wait] = [checkWhole("cost", cost), checkWhole("maxWaitMs", maxWaitMs, 0, Infinity)];
    const allowed = ours().borrow(this.#address, at, checkMoment(now), tokens, wait, apply) > 0;
    const moment = numberAt(at);
    return allowed
      ? { allowed, tokens, readyAt: moment, retryAfterMs: 0 }
      : { allowed, retryAt: moment, retryAfterMs: moment - now };
  }
}

/** Without a longest wait nothing is refused. */
type AnyWait = WarmUpOptions & { readonly maxWaitMs?: never };

/** The exports of src/js/kinds.rs. */
const ours = () =>
  core as Core & {
    warm_up(pace: number, max: number, now: number, rate: number, periodMs: number, warmUpMs: number): number;
    borrow(pace: number, at: number, now: number, cost: number, maxWaitMs: number, apply: boolean): number;
  };

const numberAt = (address: number): number => new Float64Array(core.memory.buffer, address, 1)[0]!;
