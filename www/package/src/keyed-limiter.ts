// A policy for many keys, in bounded memory.
//
// A map of buckets alone grows with every key ever seen. But a bucket that is full again equals one that never
// was, and the moment of that is known. So each key waits in a queue under that moment, and is forgotten once it has
// come. A decision does not touch the queue; it only makes the key's moment there too early. When it comes, the key is
// queued again under the true one. The crate's `keyed` does the same.
import {
  Bucket,
  type DecideOptions,
  type Decision,
  LAST_MOMENT,
  type Limit,
  type Refusal,
  type Snapshot,
} from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { type Clock, systemClock } from "./clock.js";
import { core } from "./core.js";
import { checkWhole, TollgateError } from "./errors.js";
import { networkOf } from "./network.js";
import { Slots } from "./slots.js";

export type { DecideOptions, Decision, Grant, Limit, Refusal, Verb } from "./bucket.js";
export type { Cost } from "./budget.js";
export type { Clock } from "./clock.js";
export { TollgateError, type TollgateErrorCode, type TollgateErrorDetails } from "./errors.js";

/** Options of a {@link KeyedLimiter}. */
export interface KeyedLimiterOptions {
  /** How many keys may be in use at once, from 1 to 16 000 000. Default: 100 000. */
  readonly maxKeys?: number;
  /** How many bits of an IPv6 address count, if a key is an address: 32 to 128. Default: 64. */
  readonly ipv6Prefix?: number;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
}

/**
 * A text of at most 1024 characters, or an address, which no text equals. IPv4 in IPv6 (`::ffff:192.0.2.1`) is IPv4, and of
 * IPv6 addresses only the first bits count: see {@link KeyedLimiterOptions.ipv6Prefix}.
 */
export type Key = string | { readonly ip: string };

/** A {@link Decision} that also says when the next token comes. */
export type KeyedDecision = Decision & {
  /** The next moment at which there is one token more in every limit, if nothing is taken; `Infinity` if none comes. */
  readonly nextTokenAt: number;
};

/**
 * Limits for each of many keys, in one process: for servers. A key is in use until its budget is full again, and is then
 * forgotten. No timer runs.
 *
 * When `maxKeys` keys are in use, a new one is refused, with the moment at which the first of the others may be
 * forgotten. Evicting one of them instead would fill its budget early. So a caller with many keys cannot get a token
 * more out of any key, nor any memory beyond the bound, nor delay a key that is in use. It can keep new keys out, as long
 * as it spends a token of each of `maxKeys` keys in the time in which a token comes back. Let a key be something that
 * costs: an account, or an address, `{ ip }`, of which a whole IPv6 network counts as one.
 *
 * With a `rate` of 0, or an `initial` below the capacity, keys are never forgotten.
 *
 * ```js
 * const limiter = new KeyedLimiter({ rate: 100, periodMs: 60_000 });
 * if (!limiter.tryConsume({ ip: request.socket.remoteAddress })) return response.writeHead(429).end();
 * ```
 */
export class KeyedLimiter<Name extends string = never> {
  readonly clock: Clock;
  /** How many keys may be in use at once. */
  readonly maxKeys: number;
  readonly #ipv6Prefix: number;
  /** The budget of the key used last. */
  readonly #budget: Budget<Name>;
  readonly #buckets: readonly Bucket[];
  /** How many words the state of each bucket has, and all of a key. */
  readonly #words: readonly number[];
  #stride = 0;
  readonly #slots = new Map<string, number>();
  /** The text of each slot's key, and the states of its buckets as the core has them. */
  readonly #keys: string[] = [];
  #states = new Int32Array(0);
  readonly #queue: Slots;
  /** The latest moment seen. */
  #latest = -Infinity;
  /** The core's memory. */
  #memory = new Int32Array(0);

  constructor(
    limits: Limit<Name> | readonly Limit<Name>[],
    { maxKeys = 100_000, ipv6Prefix = 64, clock = systemClock }: KeyedLimiterOptions = {},
  ) {
    this.clock = clock;
    this.maxKeys = checkWhole("maxKeys", maxKeys, 1, 16_000_000); // a Map has room for 2²⁴ entries
    this.#ipv6Prefix = checkWhole("ipv6Prefix", ipv6Prefix, 32, 128);
    this.#queue = new Slots(maxKeys);
    this.#budget = new Budget(0, limits); // each key begins when it is first used
    this.#buckets = this.#budget.buckets;
    this.#words = this.#buckets.map((bucket) => core.words?.(Bucket.addressOf(bucket)) ?? WORDS);
    for (const words of this.#words) this.#stride += words;
  }

  /** A copy of the limits. */
  get limits(): readonly Limit<Name>[] {
    return this.#budget.limits;
  }

  /** How many keys are kept, at most `maxKeys`. Some of them may be full again and not forgotten yet. */
  get size(): number {
    return this.#queue.size;
  }

  /**
   * Takes `cost` tokens of the key's budget now and returns true, or takes none and returns false. {@link decide}
   * returns the whole answer.
   */
  tryConsume(key: Key, cost: Cost<Name> = 1): boolean {
    const now = this.#now();
    const text = this.#textOf(key);
    const slot = this.#slots.get(text);
    if (slot === undefined) return this.#decideNew(text, now, true, { cost })?.allowed ?? false;
    this.#load(slot);
    const isAllowed =
      this.#buckets.length === 1 && typeof cost === "number"
        ? this.#buckets[0]!.tryConsume(now, cost)
        : this.#budget.tryConsume(now, cost);
    this.#store(slot);
    return isAllowed;
  }

  /**
   * Does what the verb says, if that is granted, and returns the whole answer. A new key for which there is no room is
   * refused by every verb that would change its budget; permanently, with a `maxCost` of 0, if no key can ever be forgotten.
   */
  decide(key: Key, options: DecideOptions<Name> = {}): KeyedDecision {
    return this.#decide(key, true, options);
  }

  /** Returns the answer that {@link decide} would give, takes nothing, and keeps no new key. */
  peek(key: Key, cost: Cost<Name> = 1): KeyedDecision {
    return this.#decide(key, false, { cost });
  }

  /**
   * Debits `cost` tokens that were already used, down to a debt of `maxDebt`. Refused only for a new key for which there
   * is no room.
   */
  charge(key: Key, cost: Cost<Name> = 1): KeyedDecision {
    return this.#decide(key, true, { cost, verb: "charge" });
  }

  /** Gives `cost` tokens back, up to the capacity. */
  refund(key: Key, cost: Cost<Name> = 1): void {
    this.#decide(key, true, { cost, verb: "refund" });
  }

  /** Fills all limits. */
  reset(key: Key): void {
    this.#decide(key, true, { cost: 0, verb: "reset" });
  }

  /** How many whole tokens the key has; 0 if it is new and there is no room for it. */
  remaining(key: Key): number {
    const now = this.#now();
    const slot = this.#slots.get(this.#textOf(key));
    if (slot !== undefined) this.#load(slot);
    else if (this.#hasRoom(now)) this.#begin(now);
    else return 0;
    return this.#budget.remaining(now);
  }

  /**
   * Takes as {@link tryConsume} does. Returns what each limit says, and its state after that; or, if there is no room for the key, when
   * there may be.
   *
   * @internal
   */
  consumeEach(key: Key, cost: Cost<Name>): ConsumedEach {
    const now = this.#now();
    const text = this.#textOf(key);
    this.#loadOrBegin(text, now);
    const decisions = this.#budget.each(now, { cost }, "peek");
    if (!this.#decideAt(now, text, true, { cost })) return { now, roomAt: this.#roomAt(now) };
    return { now, limits: decisions.map((decision, i) => ({ decision, snapshot: this.#buckets[i]!.save(now) })) };
  }

  #decide(key: Key, apply: boolean, options: DecideOptions<Name>): KeyedDecision {
    const now = this.#now();
    const text = this.#textOf(key);
    const decision = this.#decideAt(now, text, apply, options);
    if (!decision) {
      const retryAt = this.#roomAt(now);
      const refusal: Refusal = { allowed: false, retryAt, retryAfterMs: retryAt - now, remaining: 0 };
      return { ...refusal, ...(retryAt === Infinity && { maxCost: 0 }), nextTokenAt: retryAt };
    }
    if (!apply) this.#loadOrBegin(text, now); // a peek at a new key has changed its budget
    // No limit can have one token more than the most.
    const isMost = this.#budget.remaining(now) === Number.MAX_SAFE_INTEGER;
    return { ...decision, nextTokenAt: isMost ? Infinity : this.#budget.nextTokenAt(now) };
  }

  /** Decides, and leaves the key's budget loaded; `undefined` if there is no room for a new key. */
  #decideAt(now: number, text: string, apply: boolean, options: DecideOptions<Name>): Decision | undefined {
    const slot = this.#slots.get(text);
    if (slot === undefined) return this.#decideNew(text, now, apply, options);
    this.#load(slot);
    const decision = this.#budget[apply ? "decide" : "peek"](now, options);
    if (apply) this.#store(slot);
    return decision;
  }

  /** Keeps the key only if its budget is no longer what that of a new key would be. Returns `undefined` if there is no room for it. */
  #decideNew(text: string, now: number, apply: boolean, options: DecideOptions<Name>): Decision | undefined {
    const hasRoom = this.#hasRoom(now);
    this.#begin(now);
    const peeked = apply ? undefined : this.#budget.peek(now, options);
    const decision = this.#budget.decide(now, options);
    const due = this.#dueAt(now);
    if (due <= now) return peeked ?? decision;
    if (!hasRoom) return undefined;
    if (peeked) return peeked;
    const slot = this.#queue.add(due);
    this.#slots.set(text, slot);
    this.#keys[slot] = text;
    this.#store(slot);
    return decision;
  }

  /** The text under which the key is kept. */
  #textOf(key: Key): string {
    if (typeof key !== "string") {
      if (typeof key?.ip !== "string") {
        const shown = "ip" in Object(key) ? `{ ip: ${typeof key.ip} }` : String(key);
        throw new TollgateError("key_not_text", `key must be a text or { ip: "<address>" }, not ${shown}`);
      }
      return ADDRESS + networkOf(key.ip, this.#ipv6Prefix);
    }
    if (key.length > MAX_KEY_LENGTH) {
      const message = `key must have from 0 to ${MAX_KEY_LENGTH} characters, not ${key.length}`;
      throw new TollgateError("key_too_large", message, { min: 0, max: MAX_KEY_LENGTH });
    }
    return key[0] === ADDRESS ? ADDRESS + key : key;
  }

  /**
   * The current moment: the latest seen, unless the clock stepped back further than a bucket tolerates. Forgets keys
   * that are full by then.
   */
  #now(): number {
    const now = checkWhole("now", this.clock.now(), -LAST_MOMENT, LAST_MOMENT);
    const latest = this.#latest;
    this.#latest = latest - now > MAX_STEP_BACK_MS ? now : Math.max(latest, now);
    if (this.#latest < latest) {
      // Every moment is by the previous clock, and may be years away. All keys continue from now with what they had.
      this.#queue.moveAll((slot) => {
        this.#load(slot);
        for (const bucket of this.#buckets) {
          bucket.restore(bucket.save(latest));
          bucket.tryConsume(now, 0);
        }
        this.#store(slot);
        return this.#dueAt(now);
      });
    }
    if (this.#queue.firstAt <= this.#latest) this.#forget(this.#latest, STEPS);
    return this.#latest;
  }

  /** Forgets keys that are full again, in at most `steps` steps. */
  #forget(now: number, steps: number): void {
    for (let step = 0; step < steps && this.#queue.firstAt <= now; step++) {
      const slot = this.#queue.first;
      this.#load(slot);
      const due = this.#dueAt(now);
      if (due > now) this.#queue.moveFirst(due);
      else {
        this.#queue.removeFirst();
        this.#slots.delete(this.#keys[slot]!);
        this.#keys[slot] = "";
      }
    }
  }

  #hasRoom(now: number): boolean {
    if (this.size === this.maxKeys) this.#forget(now, STEPS_FOR_ROOM);
    return this.size < this.maxKeys;
  }

  /** When to look for a key to forget: exact, or too early if tokens of the first were taken since it was queued. */
  #roomAt(now: number): number {
    this.#load(this.#queue.first);
    return Math.max(Math.min(this.#dueAt(now), this.#queue.firstAt), now + 1);
  }

  /** The first moment, `now` or later, from which the loaded budget answers everything as a new one would. */
  #dueAt(now: number): number {
    let due = now;
    for (const [i, bucket] of this.#buckets.entries()) {
      const { rate, capacity = rate, initial = capacity } = this.limits[i]!;
      if (initial < capacity) return Infinity; // the older one stays ahead
      // After the clock stepped back, the bucket may be full already, but refills only from its own moment on.
      due = Math.max(due, bucket.fullAt(now), core.get(Bucket.addressOf(bucket), 4, now));
    }
    return due;
  }

  /** Resets the budget to that of a new key. */
  #begin(now: number): void {
    for (const [i, bucket] of this.#buckets.entries()) {
      const { kind, rate, periodMs, capacity = rate, initial = capacity, offsetMs = 0 } = this.limits[i]!;
      const sinceOffsetMs = (now - offsetMs) % periodMs;
      const at = kind === "fixed_window" ? now - sinceOffsetMs - (sinceOffsetMs < 0 ? periodMs : 0) : now;
      bucket.restore({ tokens: initial, drops: 0, at });
    }
    this.#look();
  }

  /** Loads the key's budget, or that of a new key. */
  #loadOrBegin(text: string, now: number): void {
    const slot = this.#slots.get(text);
    if (slot === undefined) this.#begin(now);
    else this.#load(slot);
  }

  #load(slot: number): void {
    this.#look();
    const memory = this.#memory;
    const states = this.#states;
    let from = slot * this.#stride;
    for (let i = 0; i < this.#buckets.length; i++) {
      const to = this.#word(i);
      for (let word = 0; word < this.#words[i]!; word++) memory[to + word] = states[from++]!;
    }
  }

  #store(slot: number): void {
    const memory = this.#memory;
    let to = slot * this.#stride;
    if (to >= this.#states.length) {
      const states = new Int32Array(this.#queue.capacity * this.#stride);
      states.set(this.#states);
      this.#states = states;
    }
    const states = this.#states;
    for (let i = 0; i < this.#buckets.length; i++) {
      const from = this.#word(i);
      for (let word = 0; word < this.#words[i]!; word++) states[to++] = memory[from + word]!;
    }
  }

  /** Where the state of a bucket begins: the first 16 bytes, and the moments of a rolling window after them. */
  #word(i: number): number {
    return Bucket.addressOf(this.#buckets[i]!) / 4;
  }

  /** Memory that has grown is another buffer, and the old one has no length. */
  #look(): void {
    if (this.#memory.length === 0) this.#memory = new Int32Array(core.memory.buffer);
  }
}

/** What {@link KeyedLimiter.consumeEach} returns. */
type ConsumedEach =
  | { readonly now: number; readonly roomAt: number }
  | {
      readonly now: number;
      readonly limits: readonly { readonly decision: Decision; readonly snapshot: Snapshot }[];
    };

/** The bytes of a state as 32-bit numbers, which keep every bit. */
const WORDS = 4;
/** The prefix of an address. A text that begins with it has it twice, and what follows it once is no address. */
const ADDRESS = "\0";
/** Longer than any name. Keys are kept, so this bounds the memory. */
const MAX_KEY_LENGTH = 1024;
/** As of the core. */
const MAX_STEP_BACK_MS = 60_000;
/** More than the one key that a decision may add, so that forgetting keeps up. */
const STEPS = 2;
const STEPS_FOR_ROOM = 16;
