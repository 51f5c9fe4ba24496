// Chance that a test can repeat.

/** A random generator that is the same everywhere, by Tommy Ettinger: `below(n)`, `pick(list)`, and `chance(p)`. */
export function random(seed) {
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (n) => Math.floor(next() * n);
  return { below, pick: (list) => list[below(list.length)], chance: (p) => next() < p };
}

/** Another seed each time, but in CI; a test that fails has said it. */
export const seedOf = (test) => {
  const seed = Number(process.env.SEED ?? (process.env.CI ? 7 : Date.now() % 1e6));
  test.diagnostic(`SEED=${seed}`);
  return seed;
};
