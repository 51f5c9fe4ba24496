// The two limits that are measured: one grants everything, the other nothing, throughout the run and by any clock.

/** More than can be asked for. */
export const PLENTY = { rate: 100, periodMs: 60_000, capacity: 1_000_000_000 };
/** Nothing, and ten years until the first token: the time that is given runs on by days while all are measured. */
export const SPENT = { rate: 1, periodMs: 3_650 * 86_400_000, capacity: 1, initial: 0 };
