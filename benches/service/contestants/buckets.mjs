// Token buckets as they are written by hand: a level is a float, which drifts, and a clock that steps back far locks a key out.

export class Buckets {
  /** By name: the level in tokens, and the moment at which it was that. */
  #levels = new Map();

  /** `save(name, level, at)` is called for each level that has changed. */
  constructor(save = () => {}) {
    this.save = save;
  }

  restore(name, level, at) {
    this.#levels.set(name, { level, at });
  }

  consume(name, { rate, periodMs, capacity }, cost) {
    const now = Date.now();
    const { level: before, at } = this.#levels.get(name) ?? { level: capacity, at: now };
    const level = Math.min(capacity, before + (Math.max(0, now - at) * rate) / periodMs);
    const allowed = cost <= level;
    const left = allowed ? level - cost : level;
    const risesAt = (target) => now + Math.ceil(((target - left) * periodMs) / rate);
    const remaining = Math.floor(left);
    const answer = { allowed, remaining, now, resetAt: risesAt(capacity), nextAt: risesAt(remaining + 1) };
    if (!allowed) return { ...answer, retryAt: risesAt(cost) };
    this.save(name, left, now);
    this.#levels.set(name, { level: left, at: now });
    return answer;
  }
}
