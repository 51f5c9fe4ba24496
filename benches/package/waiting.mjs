// The time for a hundred thousand calls to join a queue and to be admitted, wherever this file runs. Contestants take
// turns, so that a machine that slows down slows both.
import { limiterQueue, pQueue } from "./contestants/queues.mjs";
import { JOINS } from "./joins.mjs";

/** Nanoseconds per call, by round, in the shape of `measure` in speed.mjs. */
export async function measureWaiting() {
  const cases = {};
  for (const [name, options] of Object.entries(JOINS)) {
    const lanes = Object.fromEntries(ALL.map(({ name }) => [name, []]));
    for (let round = 0; round < ROUNDS + 1; round++) {
      for (const { name, run } of round % 2 ? ALL : ALL.toReversed()) {
        const began = performance.now();
        const admitted = await run(CALLS, options);
        if (admitted !== CALLS) throw new Error(`${name} admitted ${admitted} of ${CALLS}`);
        if (round > 0) lanes[name].push(((performance.now() - began) * 1e6) / CALLS); // the first round compiles
      }
    }
    cases[name] = lanes;
  }
  return { title: `${CALLS} calls wait`, cases };
}

const ALL = [limiterQueue, pQueue];
const CALLS = 100_000;
const ROUNDS = 4;
