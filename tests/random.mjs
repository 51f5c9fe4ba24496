// Randomness that a test can repeat.
import { relative } from "node:path";
import { test } from "node:test";

/** A random generator, by Tommy Ettinger, that gives the same everywhere: `below(n)`, `pick(list)` and `chance(p)`. */
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

/**
 * A test of something that holds in every case. Calls `check(random, seen)` for `cases` cases, each with its
 * own generator. Every machine runs the same ones, unless TOLLGATE_SEED names the first case and TOLLGATE_CASES how many
 * follow. A failing case prints the command that repeats it alone. `check` counts in `seen` what it encountered;
 * `enough(seen)` asserts that the usual cases encounter everything that matters.
 *
 *   law("a bucket agrees with its model", { seed: 7, cases: 700 }, ({ below }, seen) => { ... }, (seen) => { ... });
 */
export function law(name, { seed: usualSeed, cases: usualCases }, check, enough = () => {}) {
  test(`law: ${name}`, async (t) => {
    const { TOLLGATE_SEED, TOLLGATE_CASES } = process.env;
    const seed = Number(TOLLGATE_SEED ?? usualSeed);
    const cases = Number(TOLLGATE_CASES ?? usualCases);
    const seen = {};
    for (let i = 0; i < cases; i++) {
      try {
        await check(random(seed + i), seen);
      } catch (error) {
        throw new Error(`after ${i} of ${cases} cases; to repeat this one: ${repeat(seed + i, name)}`, {
          cause: error,
        });
      }
    }
    t.diagnostic(`TOLLGATE_SEED=${seed} TOLLGATE_CASES=${cases} ${JSON.stringify(seen)}`);
    if (TOLLGATE_SEED === undefined && TOLLGATE_CASES === undefined) enough(seen);
  });
}

/** Counts in `seen` that `what` was encountered. */
export function count(seen, what, times = 1) {
  seen[what] = (seen[what] ?? 0) + times;
}

/** The seed of a test that generates its own cases: always the same one, unless TOLLGATE_SEED is set. */
export const seedOf = (test) => {
  const seed = Number(process.env.TOLLGATE_SEED ?? 7);
  test.diagnostic(`TOLLGATE_SEED=${seed}`);
  return seed;
};

function repeat(seed, name) {
  const file = relative(process.cwd(), process.argv[1]);
  const pattern = name.replaceAll(/[^\w ,:]/g, ".");
  return `TOLLGATE_SEED=${seed} TOLLGATE_CASES=1 node --test --test-name-pattern="^law: ${pattern}$" ${file}`;
}
