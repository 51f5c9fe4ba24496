// The same token bucket, exact, in plain JavaScript. It needs no BigInt: a level is a whole number of drops, as in
// Tollgate, in a double, and the constructor rejects numbers that need more than its 53 bits; Tollgate has 63.
//
// Omitted: fixed windows, debt, every verb but `consume` and `peek`, snapshots, and errors that name the wrong number.

export class Bucket {
  /** Drops refilled per millisecond, drops per token, and the most drops. */
  #rate;
  #period;
  #full;
  /** The level in drops, and its moment. */
  #level;
  #at;

  constructor(now, { rate, periodMs, capacity = rate, initial = capacity }) {
    [rate, capacity, initial].forEach(assertWhole);
    assertWhole(periodMs);
    const divisor = gcd(rate, periodMs);
    this.#rate = rate / divisor;
    this.#period = periodMs / divisor;
    this.#full = capacity * this.#period;
    if (periodMs === 0 || initial > capacity || !Number.isSafeInteger(this.#full))
      throw new RangeError("the limit cannot be kept exact");
    this.#level = initial * this.#period;
    this.#at = assertMoment(now);
  }

  /** Takes `cost` tokens now, or none, and returns which. */
  consume(now, cost = 1) {
    this.#at = this.#anchor(assertMoment(now));
    const left = this.#levelAt(now) - assertWhole(cost) * this.#period;
    if (left < 0) return false;
    if (cost === 0) return true; // it only looked
    this.#level = left;
    this.#at = Math.max(this.#at, now);
    return true;
  }

  /** The answer of `consume`, and when it would grant; nothing is taken. */
  peek(now, cost = 1) {
    const at = this.#anchor(assertMoment(now));
    const lacking = assertWhole(cost) * this.#period - this.#levelAt(now);
    if (lacking <= 0) return { allowed: true, readyAt: now };
    const isNever = cost * this.#period > this.#full || this.#rate === 0;
    // Exact: the quotient of two whole numbers below 2⁵³ is not rounded onto a whole one that it is not.
    return { allowed: false, retryAt: isNever ? Infinity : Math.max(at, now) + Math.ceil(lacking / this.#rate) };
  }

  /** Where a double rounds, here or in `consume`, it is beyond 2⁵³, and so beyond `full` on either side. */
  #levelAt(now) {
    return Math.min(this.#full, this.#level + Math.max(0, now - this.#at) * this.#rate);
  }

  /** A clock that stepped back a little stands still; after a larger step the bucket goes on from there. */
  #anchor(now) {
    return now < this.#at - LONGEST_STEP_BACK_MS ? now : this.#at;
  }
}

function assertWhole(value) {
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw new RangeError(`${value} is not a whole number`);
}

function assertMoment(value) {
  if (Number.isSafeInteger(value)) return value;
  throw new RangeError(`${value} is not a whole number`);
}

function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}

const LONGEST_STEP_BACK_MS = 60_000;
