// The two limits that are asked: one that grants everything, and one that grants nothing. Neither changes that while it is
// measured, for an hour at least, by any clock.

/** More than can be asked for. */
export const PLENTY = { rate: 100, periodMs: 60_000, capacity: 1_000_000_000 };
/** Nothing, and a day until the first token. */
export const SPENT = { rate: 1, periodMs: 86_400_000, capacity: 1, initial: 0 };
