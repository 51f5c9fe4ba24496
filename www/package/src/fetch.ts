// A `fetch` that respects a limit, and waits when the server says so.
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import type { AcquireOptions } from "./queue.js";

/** Options of {@link limitFetch}. */
export interface LimitFetchOptions<Name extends string = never> extends Omit<AcquireOptions, "cost" | "signal"> {
  /** Sends a request. Default: the global `fetch`. */
  readonly fetch?: (request: Request) => Promise<Response>;
  /** How many tokens a request costs, each time it is sent. Default: 1. */
  readonly cost?: Cost<Name> | ((request: Request) => Cost<Name>);
  /** How many times a request is retried. Default: 2. */
  readonly retries?: number;
  /**
   * The pause after a refusal is longer by a random part of this, so that clients refused together do not retry
   * together. Default: 1000.
   */
  readonly jitterMs?: number;
  /**
   * The longest pause. If the server asks for more, the limiter is paused for this long and the response is returned, not
   * retried. Default: five minutes.
   */
  readonly maxPauseMs?: number;
}

/** A limiter that can be paused: `Limiter`, `SharedLimiter` or `Twin`. */
export interface Pausable<Name extends string = string> {
  readonly clock: Clock;
  acquire(options: AcquireOptions<Name>): Promise<unknown>;
  pause(moment: number): unknown;
  /** If the limiter counts running calls: ends what `acquire` has admitted. */
  release?(admitted: never): void;
}

/**
 * Makes a `fetch` whose requests wait in the limiter's queue. When the server says to come back later (429, 503,
 * `Retry-After`, or a `RateLimit` with nothing left), it pauses the limiter, and so everything that uses it. The older
 * headers `RateLimit-Reset` and `X-RateLimit-Reset` are honoured, too, in seconds or as Unix time. A 429 is retried, and so
 * is a 503 if the request is idempotent (GET, HEAD, PUT, DELETE, OPTIONS, or with an `Idempotency-Key`); every retry
 * costs tokens. If a retry cannot be admitted within `maxWaitMs`, or would have to wait longer than `maxPauseMs`, the
 * last response is returned.
 *
 * From another origin, a page can read only those headers that the server names in `Access-Control-Expose-Headers`.
 *
 * ```js
 * const api = limitFetch(new Limiter({ rate: 10, periodMs: 1000 }), { maxWaitMs: 10_000 });
 * const response = await api("/search?q=x");
 * ```
 */
export function limitFetch<Name extends string = never>(
  limiter: Pausable<Name>,
  {
    fetch = (request) => globalThis.fetch(request),
    cost = 1,
    retries = 2,
    jitterMs = 1000,
    maxPauseMs = 300_000,
    ...wait
  }: LimitFetchOptions<Name> = {},
): (input: string | URL | Request, init?: RequestInit) => Promise<Response> {
  checkWhole("retries", retries);
  checkWhole("jitterMs", jitterMs);
  checkWhole("maxPauseMs", maxPauseMs);
  return async (input, init) => {
    const request = new Request(input, init);
    const { method, headers, signal } = request;
    const isIdempotent = /^(GET|HEAD|PUT|DELETE|OPTIONS)$/.test(method) || headers.has("idempotency-key");
    let response: Response | undefined;
    for (let attempt = 0; ; attempt++) {
      let admitted: unknown;
      try {
        admitted = await limiter.acquire({ ...wait, signal, cost: typeof cost === "function" ? cost(request) : cost });
      } catch (error) {
        if (response && error instanceof TollgateError) return response;
        discard(response);
        throw error;
      }
      discard(response);
      try {
        response = await fetch(attempt < retries ? request.clone() : request);
      } finally {
        limiter.release?.(admitted as never);
      }
      const isBusy = response.status === 503;
      const isRefused = isBusy || response.status === 429;
      const now = limiter.clock.now();
      const askedMs = askedMsOf(response.headers, now, isRefused) ?? (isRefused ? 1000 * 2 ** attempt : 0);
      const pauseMs = Math.min(askedMs, maxPauseMs) + (isRefused ? Math.random() * jitterMs : 0);
      if (askedMs > 0) void limiter.pause(now + Math.ceil(pauseMs));
      if (attempt >= retries || askedMs > maxPauseMs || !isRefused || (isBusy && !isIdempotent)) return response;
    }
  };
}

/** Frees the connection of a response that will not be read. */
function discard(response: Response | undefined): void {
  response?.body?.cancel().catch(() => {});
}

/** How long the server asks to wait, if at all. */
function askedMsOf(headers: Headers, now: number, isRefused: boolean): number | undefined {
  const serverNow = Date.parse(headers.get("date")!) || now;
  const after = headers.get("retry-after");
  if (isRefused && after) {
    const ms = /^\d+$/.test(after) ? 1000 * Number(after) : Date.parse(after) - serverNow;
    if (ms >= 0) return ms;
  }
  let waitMs = 0;
  const hear = (remaining: unknown, reset: unknown) => {
    const seconds = Number(reset);
    // A refusal that does not say what remains means that nothing does.
    if (Number(remaining ?? !isRefused) === 0 && seconds > 0)
      waitMs = Math.max(waitMs, 1000 * seconds - (seconds > FIRST_UNIX_SECONDS ? serverNow : 0));
  };
  const field = `,${headers.get("ratelimit")}`.replace(/"(\\.|[^"\\])*"/g, "");
  const number = (text: string, name: string) => new RegExp(`[;,\\s]${name}=(\\d+)`).exec(text)?.[1];
  // A list of structured fields. Without their strings, commas separate the items. `r` tokens remain; `t` is a time in
  // seconds.
  for (const item of field.split(",")) hear(number(item, "r") ?? 1, number(item, "t"));
  // Earlier drafts.
  hear(number(field, "remaining") ?? 1, number(field, "reset"));
  for (const name of ["ratelimit", "x-ratelimit"]) hear(headers.get(`${name}-remaining`), headers.get(`${name}-reset`));
  return waitMs || undefined;
}

/** In 2001: from this many seconds on, a number is Unix time. */
const FIRST_UNIX_SECONDS = 1_000_000_000;
