// A reservation closed late counts from the start: the level that a limit would have if each had its final cost from the start. The
// service's own is src/limit/cuts.rs, which says why it is so; a test compares the answers of both.
import type { Bucket, Limit, Snapshot } from "tollgate";
import type { Event } from "../levels/track.ts";

/** One limit, while reservations from it are open. Moments are Unix milliseconds. */
export class Hindsight {
  readonly #bucket: Bucket;
  readonly #perToken: bigint;
  readonly #full: bigint;
  readonly #debt: bigint;
  /** The level if nothing taken before the last opening counted. */
  #newest: Snapshot;
  /** For each opening, by how many drops what there would be without all before it is above that without all after it. */
  #steps = new Row();
  /** Where the step of each opening is. */
  readonly #places = new Map<unknown, number>();

  /** Uses `bucket`, which is of this limit, for its arithmetic, and begins with this state. */
  constructor(bucket: Bucket, { rate, capacity = rate, maxDebt = 0 }: Limit<string>, state: Snapshot) {
    this.#bucket = bucket;
    this.#perToken = BigInt(bucket.dropsPerToken);
    this.#full = BigInt(capacity) * this.#perToken;
    this.#debt = BigInt(maxDebt) * this.#perToken;
    this.#newest = state;
  }

  /** The last decision may later turn out to have another cost. */
  open(id: unknown, now: number) {
    this.#refill(now);
    this.#places.set(id, this.#steps.push(this.#drops(this.#newest) - this.#full));
    this.#set(this.#full);
  }

  /** Follows a decision, for which the limit was asked for this cost, and which has made `after` of `before`. */
  follow(verb: Event["verb"], cost: number, before: Snapshot, after: Snapshot, now: number) {
    this.#refill(now);
    const level = this.#drops(this.#newest);
    if (verb === "reset") {
      this.#set(this.#full);
      this.#steps = new Row();
      this.#places.clear();
    } else if (verb === "refund") {
      // It gives back again, as far as there is room.
      const raised = level + BigInt(cost) * this.#perToken;
      this.#set(raised < this.#full ? raised : this.#full);
      this.#lose(raised - this.#drops(this.#newest));
    } else this.#set(level - this.#drops(before) + this.#drops(after));
  }

  /**
   * Closes a reservation of this many tokens at its `real` cost, or at less if that would exceed the largest debt. Returns
   * the cost at which it was closed, and the level after it.
   */
  close(id: unknown, taken: number, real: number, now: number): { cost: number; state: Snapshot } {
    this.#refill(now);
    const index = this.#places.get(id);
    if (index === undefined) return { cost: real, state: this.#state() }; // everything was reset since
    const level = this.#level();
    const floor = lower(level, -this.#debt);
    const older = this.#drops(this.#newest) + this.#steps.leastUpTo(index);
    const room = older > floor ? Number((older - floor) / this.#perToken) : 0;
    const cost = Math.min(real, taken + room);
    this.#steps.add(index, BigInt(taken - cost) * this.#perToken);
    return { cost, state: this.#state() };
  }

  #refill(now: number) {
    const { at } = this.#newest;
    const level = this.#drops(this.#newest);
    // From so deep a debt all refill fits, or enough to fill what has been emptied since.
    const deep = { tokens: -Number(lower(DEEP_DROPS / this.#perToken, DEEP_TOKENS)), drops: 0, at };
    this.#bucket.restore(deep);
    const refilled = level + this.#drops(this.#bucket.save(now)) - this.#drops(deep);
    this.#bucket.restore(this.#newest);
    this.#newest = this.#bucket.save(now);
    this.#lose(refilled - this.#drops(this.#newest));
  }

  /** This many drops did not fit: the level without takings before the last opening is lower by that. */
  #lose(drops: bigint) {
    if (drops > 0n && this.#steps.length > 0) this.#steps.add(this.#steps.length - 1, drops);
  }

  /** The level: the least that is left after any opening, or in all. */
  #level(): bigint {
    const least = this.#steps.least();
    return this.#drops(this.#newest) + (least < 0n ? least : 0n);
  }

  #state(): Snapshot {
    return this.#snapshot(this.#level());
  }

  #set(level: bigint) {
    this.#newest = this.#snapshot(level);
  }

  #snapshot(level: bigint): Snapshot {
    const drops = ((level % this.#perToken) + this.#perToken) % this.#perToken;
    return { tokens: Number((level - drops) / this.#perToken), drops: Number(drops), at: this.#newest.at };
  }

  #drops({ tokens, drops }: Snapshot): bigint {
    return BigInt(tokens) * this.#perToken + BigInt(drops);
  }
}

/** A sequence of numbers with its least suffix sum: a binary tree, so that each is found without scanning all. */
class Row {
  length = 0;
  #size = 1;
  /** For each node, whose children are at twice its index and after: the sum of its numbers, and their least suffix sum. */
  #sums = [0n, 0n];
  #least = [NONE, NONE];

  /** Returns its place. */
  push(value: bigint): number {
    const index = this.length;
    if (index === this.#size) this.#grow();
    this.length += 1;
    this.add(index, value);
    return index;
  }

  add(index: number, value: bigint) {
    let node = this.#size + index;
    this.#sums[node]! += value;
    this.#least[node] = this.#sums[node]!;
    for (node >>= 1; node > 0; node >>= 1) this.#join(node);
  }

  /** The least sum of a suffix that is not empty. */
  least(): bigint {
    return this.#least[1]!;
  }

  /** The same of suffixes that begin at this place or before. */
  leastUpTo(index: number): bigint {
    let node = this.#size + index;
    let least = this.#least[node]!;
    for (; node > 1; node >>= 1) {
      if (node % 2 === 0) least += this.#sums[node + 1]!;
      else least = lower(least, this.#least[node - 1]! + this.#sums[node]!);
    }
    return least;
  }

  #grow() {
    const values = this.#sums.slice(this.#size);
    this.#size *= 2;
    this.#sums = Array<bigint>(2 * this.#size).fill(0n);
    this.#least = Array<bigint>(2 * this.#size).fill(NONE);
    for (const [i, value] of values.entries()) this.#sums[this.#size + i] = this.#least[this.#size + i] = value;
    for (let node = this.#size - 1; node > 0; node -= 1) this.#join(node);
  }

  #join(node: number) {
    const [left, right] = [2 * node, 2 * node + 1];
    this.#sums[node] = this.#sums[left]! + this.#sums[right]!;
    this.#least[node] = lower(this.#least[right]!, this.#least[left]! + this.#sums[right]!);
  }
}

const lower = (one: bigint, other: bigint) => (one < other ? one : other);

/** Above every sum. */
const NONE = 2n ** 100n;
/** Half of the deepest debt that the core counts, and the deepest that a state can say. */
const DEEP_DROPS = 2n ** 60n;
const DEEP_TOKENS = BigInt(Number.MAX_SAFE_INTEGER);
