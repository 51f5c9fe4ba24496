// The two limits measured: one grants everything, the other nothing, throughout the run and by any clock.

/** More than can be requested. */
export const PLENTY = { rate: 100, periodMs: 60_000, capacity: 1_000_000_000 };
/** Nothing, and ten years until the first token: time as an argument advances by days during the measurement. */
export const SPENT = { rate: 1, periodMs: 3_650 * 86_400_000, capacity: 1, initial: 0 };
