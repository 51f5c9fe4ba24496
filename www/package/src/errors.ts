// The errors that this package throws.

/** What went wrong. Codes do not change. */
export type TollgateErrorCode =
  /** The argument of that name is not a whole number, or is out of range; `min` and `max` are the bounds. */
  | `${string}_not_whole`
  | `${string}_too_small`
  | `${string}_too_large`
  /**
   * The argument of that name is not one of the known words, there is none of that name, or, for `options`, it is not an
   * object.
   */
  | `${string}_unknown`
  /** A key is neither a string nor, if addresses are allowed, an address. */
  | "key_not_text"
  /** The text is not exactly an IP address. */
  | "ip_malformed"
  /** The text is not a rate, or not one of this kind. */
  | "rate_malformed"
  /** The snapshot does not match the limits. */
  | "snapshot_mismatched"
  /** The WebAssembly module is not set yet: call `init` first. */
  | "not_initialised"
  /** `tollgate/kinds` was imported after the first limiter had been made. */
  | "kinds_too_late"
  /** There is no WebAssembly, or it could not be compiled: in a page, usually a Content Security Policy without `'wasm-unsafe-eval'`. */
  | "wasm_failed"
  /** The cost is more than could ever be granted; `maxCost` is the most that could. */
  | "cost_never_granted"
  /** It would not be granted within `maxWaitMs`; `retryAt` is when it would be. */
  | "wait_too_long"
  /** The queue was full: this call was rejected, or dropped to make room for a newer one. */
  | "queue_full"
  /** The queue was cleared while the call waited. */
  | "cleared"
  /** The client has no token, or the function that returns it failed: `cause` says how. */
  | "token_missing"
  /** What was fetched as a grant is not a JWT with an `exp`. */
  | "grant_malformed"
  /** The server could not be reached. */
  | "network_failed"
  /** The server did not answer within `timeoutMs`. */
  | "timeout"
  /** The server granted nothing, and waiting would not help; `cause` is its answer. */
  | "not_granted"
  /** The server refused, and the client throws refusals; `retryAt` is when it would grant the same. */
  | "refused"
  /** The request, or the platform, does not say which address the client has. */
  | "address_missing"
  /** A grant cannot be made of these keys or options. */
  | "grant_invalid"
  /** The limiter has been closed. */
  | "closed"
  /** The response did not come from Tollgate. */
  | "answer_malformed";

/** Details of a code. */
export interface TollgateErrorDetails {
  /** The error of the platform that led to this one. */
  readonly cause?: unknown;
  readonly min?: number;
  readonly max?: number;
  readonly maxCost?: number;
  readonly retryAt?: number;
}

/** Every error that this package throws or rejects with, except that an abort rejects with its own reason. Check `code`. */
export class TollgateError extends Error implements TollgateErrorDetails {
  override readonly name = "TollgateError";
  declare readonly code: TollgateErrorCode;
  declare readonly min?: number;
  declare readonly max?: number;
  declare readonly maxCost?: number;
  declare readonly retryAt?: number;

  constructor(code: TollgateErrorCode, message: string, details?: TollgateErrorDetails) {
    super(message, details);
    Object.assign(this, { code }, details);
  }
}

/**
 * Returns `value` if it is a whole number in range, and throws otherwise. `Infinity` passes if `max` is `Infinity`.
 */
export function checkWhole(name: string, value: number, min = 0, max = 2 ** 53 - 1): number {
  const isWhole = Number.isSafeInteger(value) || value === max;
  const fault = value < min ? "too_small" : value > max ? "too_large" : isWhole ? "" : "not_whole";
  if (!fault) return value;
  throw new TollgateError(`${name}_${fault}`, `${name} must be a whole number from ${min} to ${max}, not ${value}`, {
    min,
    max,
  });
}

/** Returns the index of `value` in `values`, and throws if it is not there. */
export function checkIndex(name: string, value: string, values: readonly string[]): number {
  const index = values.indexOf(value);
  if (index < 0) throw new TollgateError(`${name}_unknown`, `${name} must be one of ${values}, not ${value}`);
  return index;
}

/** Returns `options`, or none. Plain JavaScript may pass a cost in their place. */
export function checkOptions<Options extends object>(options: Options = {} as Options): Options {
  checkIndex("options", typeof options, ["object"]);
  return options;
}
