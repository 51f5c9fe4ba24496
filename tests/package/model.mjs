// The naive bucket: the documented rules one by one, in exact integers, without optimisation.

/** Keeps `level` in parts of a token, of which `periodMs` make one. A window adds all of its parts when it opens. */
export class Model {
  constructor(
    now,
    { kind = "token_bucket", rate, periodMs, capacity = rate, maxDebt = 0, initial = capacity, offsetMs = 0 },
  ) {
    this.opens = kind === "fixed_window";
    Object.assign(this, {
      rate: BigInt(rate),
      periodMs: BigInt(periodMs),
      maxDebt: BigInt(maxDebt),
      full: BigInt(capacity) * BigInt(periodMs),
    });
    this.level = BigInt(initial) * this.periodMs;
    const into = modulo(BigInt(now) - BigInt(offsetMs), this.periodMs);
    this.at = this.opens ? BigInt(now) - into : BigInt(now);
  }

  /** Takes `cost` tokens at `now`, or none. */
  consume(now, cost) {
    const granted = this.grants(now, cost);
    this.#anchor(now);
    if (granted && cost > 0)
      Object.assign(this, { level: this.#levelAt(now) - BigInt(cost) * this.periodMs, at: this.#refilledAt(now) });
    return granted;
  }

  /** Whether `cost` tokens are available at `now`. */
  grants(now, cost) {
    return this.#levelAt(now) >= BigInt(cost) * this.periodMs;
  }

  /** Like the package's `decide`, but searches millisecond by millisecond: for small numbers. */
  decide(now, { cost, verb, maxWaitMs }, apply) {
    const { level, at } = this;
    this.#anchor(now);
    const answer = this.#decideAnchored(now, cost, verb, maxWaitMs, apply);
    if (!apply) Object.assign(this, { level, at });
    return answer;
  }

  remaining(now) {
    const level = this.#levelAt(now);
    return level < 0n ? 0 : Number(level / this.periodMs);
  }

  owed(now) {
    const level = this.#levelAt(now);
    return level < 0n ? Number((-level + this.periodMs - 1n) / this.periodMs) : 0;
  }

  fullAt(now) {
    return this.#reachedAt(now, this.full);
  }

  #decideAnchored(now, cost, verb, maxWaitMs, apply) {
    const taken = this.#taken(now, cost, verb, maxWaitMs);
    if (taken) {
      const { parts, readyAt } = taken;
      if (apply && parts !== 0n) Object.assign(this, { level: this.#levelAt(now) - parts, at: this.#refilledAt(now) });
      return { allowed: true, tokens: Number((parts < 0n ? -parts : parts) / this.periodMs), readyAt };
    }
    // consumeUpTo is refused only for want of a single token.
    const asked = verb === "consumeUpTo" ? Math.min(1, cost) : cost;
    const first = (cost) => {
      const end = this.#horizon(now);
      for (let moment = now; moment <= end; moment++) if (this.#taken(moment, cost, verb, maxWaitMs)) return moment;
      return Infinity;
    };
    const retryAt = first(asked);
    if (retryAt < Infinity) return { allowed: false, retryAt };
    let maxCost = asked;
    while (maxCost > 0 && first(maxCost) === Infinity) maxCost -= 1;
    return { allowed: false, retryAt, maxCost };
  }

  /** The tokens taken at `now` and when they may be used; undefined if refused. */
  #taken(now, cost, verb, maxWaitMs) {
    const level = this.#levelAt(now);
    const asked = BigInt(cost) * this.periodMs;
    const debt = this.maxDebt * this.periodMs;
    switch (verb) {
      case "consume":
        return level >= asked ? { parts: asked, readyAt: now } : undefined;
      case "reserve":
      case "borrow": {
        const readyAt = this.#reachedAt(now, verb === "reserve" ? asked : 0n);
        return level - asked >= -debt && readyAt - now <= maxWaitMs && readyAt < Infinity
          ? { parts: asked, readyAt }
          : undefined;
      }
      case "consumeUpTo": {
        if (cost === 0) return level >= 0n ? { parts: 0n, readyAt: now } : undefined;
        const there = BigInt(this.remaining(now)) * this.periodMs;
        return there > 0n ? { parts: smaller(there, asked), readyAt: now } : undefined;
      }
      case "charge":
        return { parts: smaller(asked, level + debt > 0n ? level + debt : 0n), readyAt: now };
      case "refund":
        return { parts: level - smaller(level + asked, this.full), readyAt: now };
      case "reset":
        return { parts: level - this.full, readyAt: now };
    }
  }

  /** The first moment, `now` or later, at which the level is reached. */
  #reachedAt(now, level) {
    if (this.#levelAt(now) >= level) return now;
    if (this.rate === 0n) return Infinity;
    // As if there were no capacity: a reservation may wait for more than that.
    const perMs = this.opens ? undefined : this.rate;
    const { level: before, at } = this.#refilled(now);
    if (perMs) return Number(at + (level - before + perMs - 1n) / perMs);
    const perWindow = this.rate * this.periodMs;
    return Number(at + ((level - before + perWindow - 1n) / perWindow) * this.periodMs);
  }

  /** A moment after which nothing changes: the bucket is full, and two more windows have opened. */
  #horizon(now) {
    const fullAt = this.fullAt(now);
    return Math.max(fullAt === Infinity ? now : fullAt, Number(this.at)) + 2 * Number(this.periodMs);
  }

  #levelAt(now) {
    return this.#refilled(now).level;
  }

  #refilledAt(now) {
    return this.#refilled(now).at;
  }

  #refilled(now) {
    const { level, at } = this.#anchored(now);
    const elapsedMs = BigInt(now) - at;
    if (elapsedMs <= 0n) return { level, at };
    const windows = elapsedMs / this.periodMs;
    const back = this.opens ? windows * this.periodMs * this.rate : elapsedMs * this.rate;
    return {
      level: smaller(level + back, this.full),
      at: this.opens ? at + windows * this.periodMs : BigInt(now),
    };
  }

  /** A clock that stepped back by more than a minute is followed, in whole windows. */
  #anchored(now) {
    const { level, at } = this;
    const aheadMs = at - BigInt(now);
    if (aheadMs <= 60_000n) return { level, at };
    return {
      level,
      at: this.opens ? at - ((aheadMs + this.periodMs - 1n) / this.periodMs) * this.periodMs : BigInt(now),
    };
  }

  #anchor(now) {
    Object.assign(this, this.#anchored(now));
  }
}

function smaller(a, b) {
  // biome-ignore lint/complexity/useMathMinMax: Math.min takes no bigint
  return a < b ? a : b;
}

function modulo(a, b) {
  return ((a % b) + b) % b;
}
