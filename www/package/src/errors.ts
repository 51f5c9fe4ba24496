// What this package throws.

/** What was wrong, in a word that does not change. */
export type TollgateErrorCode =
  /** The number of that name was not a whole one, or out of range: `min` and `max` say between which it has to be. */
  | `${string}_not_whole`
  | `${string}_too_small`
  | `${string}_too_large`
  /** The word of that name was none of those that there are. */
  | `${string}_unknown`
  /** A snapshot was not one of these limits. */
  | "snapshot_mismatched"
  /** The WebAssembly module was not given yet: see `init`. */
  | "not_initialised"
  /** More than could ever be granted: `maxCost` is the most. */
  | "cost_never_granted"
  /** It would take longer than `maxWaitMs`: `retryAt` is when it would be granted. */
  | "wait_too_long"
  /** Too many were waiting already, or it was dropped for one that came later. */
  | "queue_full"
  /** The server's answer was not one of Tollgate's. */
  | "answer_malformed";

/** The numbers that belong to a code. */
export interface TollgateErrorDetails {
  readonly min?: number;
  readonly max?: number;
  readonly maxCost?: number;
  readonly retryAt?: number;
}

/** What this package throws, and what its promises are rejected with: see `code`. */
export class TollgateError extends Error implements TollgateErrorDetails {
  override readonly name = "TollgateError";
  declare readonly min?: number;
  declare readonly max?: number;
  declare readonly maxCost?: number;
  declare readonly retryAt?: number;

  constructor(
    readonly code: TollgateErrorCode,
    message: string,
    details?: TollgateErrorDetails,
  ) {
    super(message);
    Object.assign(this, details);
  }
}

/** The number itself if it is whole and in range. `Infinity` is, where it is the largest. */
export function whole(name: string, value: number, min = 0, max = Number.MAX_SAFE_INTEGER): number {
  if ((Number.isSafeInteger(value) || value === max) && value >= min && value <= max) return value;
  const wrong = value < min ? "too_small" : value > max ? "too_large" : "not_whole";
  throw new TollgateError(`${name}_${wrong}`, `${name} must be a whole number from ${min} to ${max}, not ${value}`, {
    min,
    max,
  });
}

/** The place of `value` among `values`. */
export function placeOf(name: string, value: string, values: readonly string[]): number {
  const place = values.indexOf(value);
  if (place < 0) throw new TollgateError(`${name}_unknown`, `${name} must be one of ${values}, not ${value}`);
  return place;
}
