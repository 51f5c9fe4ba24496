// A `fetch` that respects a limit, and waits when the server says so.
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import type { AcquireOptions } from "./queue.js";
import { requestedPauseMs } from "./requested-pause.js";

/** Options of {@link limitFetch}. */
export interface LimitFetchOptions<Name extends string = never> extends Omit<AcquireOptions, "cost" | "signal"> {
  /** Sends a request. Default: the global `fetch`. */
  readonly fetch?: (request: Request) => Promise<Response>;
  /** How many tokens a request costs, each time it is sent. Default: 1. */
  readonly cost?: Cost<Name> | ((request: Request) => Cost<Name>);
  /** How many times a request is retried. Default: 2. */
  readonly retries?: number;
  /**
   * The pause after an error is longer by a random part of this, so that clients refused together do not retry
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
 * `Retry-After` on any error, or a family of `RateLimit` headers with nothing left), it pauses the limiter, and so
 * everything that uses it. The README has a table of what is understood. A 429 is retried, and so is a 503 if the
 * request is idempotent (GET, HEAD, PUT, DELETE, OPTIONS, or with an `Idempotency-Key`); every retry costs tokens. If a
 * retry cannot be admitted within `maxWaitMs`, or would have to wait longer than `maxPauseMs`, the last response is
 * returned.
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
      const { status } = response;
      const mayPass = status === 429 || (status === 503 && isIdempotent);
      const now = limiter.clock.now();
      const requestedMs =
        requestedPauseMs(response, now) ?? (status === 429 || status === 503 ? 1000 * 2 ** attempt : 0);
      const pauseMs = Math.min(requestedMs, maxPauseMs) + (status >= 400 ? Math.random() * jitterMs : 0);
      if (requestedMs > 0) void limiter.pause(now + Math.ceil(pauseMs));
      if (attempt >= retries || requestedMs > maxPauseMs || !mayPass) return response;
    }
  };
}

/** Frees the connection of a response that will not be read. */
function discard(response: Response | undefined): void {
  response?.body?.cancel().catch(() => {});
}
