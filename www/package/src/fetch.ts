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
   * Each pause is longer by a random part of this, so that clients refused together do not retry together. Default:
   * 1000.
   */
  readonly jitterMs?: number;
}

/** A limiter that can be paused: `Limiter` or `SharedLimiter`. */
export interface Pausable<Name extends string = string> {
  readonly clock: Clock;
  acquire(options: AcquireOptions<Name>): Promise<unknown>;
  pause(moment: number): unknown;
}

/**
 * Makes a `fetch` whose requests wait in the limiter's queue. When the server says to come back later (429, 503,
 * `Retry-After`, or a `RateLimit` with nothing left), it pauses the limiter, and so everything that uses it. A 429 is
 * retried, and so is a 503 if the request is idempotent (GET, HEAD, PUT, DELETE, OPTIONS, or with an
 * `Idempotency-Key`); every retry costs tokens. If a retry cannot be admitted within `maxWaitMs`, the last response is
 * returned.
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
    ...wait
  }: LimitFetchOptions<Name> = {},
): (input: string | URL | Request, init?: RequestInit) => Promise<Response> {
  checkWhole("retries", retries);
  checkWhole("jitterMs", jitterMs);
  return async (input, init) => {
    const request = new Request(input, init);
    const { method, headers, signal } = request;
    const isIdempotent = /^(GET|HEAD|PUT|DELETE|OPTIONS)$/.test(method) || headers.has("idempotency-key");
    let response: Response | undefined;
    for (let attempt = 0; ; attempt++) {
      try {
        await limiter.acquire({ ...wait, signal, cost: typeof cost === "function" ? cost(request) : cost });
      } catch (error) {
        if (response && error instanceof TollgateError) return response;
        discard(response);
        throw error;
      }
      discard(response);
      response = await fetch(attempt < retries ? request.clone() : request);
      const isRefused = response.status === 429;
      const isBusy = response.status === 503;
      const now = limiter.clock.now();
      const pauseMs = pauseMsOf(response.headers, now, isRefused || isBusy ? 1000 * 2 ** attempt : 0);
      if (pauseMs > 0)
        void limiter.pause(now + Math.ceil(Math.min(pauseMs, LONGEST_PAUSE_MS) + Math.random() * jitterMs));
      if (attempt >= retries || !(isRefused || (isBusy && isIdempotent))) return response;
    }
  };
}

/** Frees the connection of a response that will not be read. */
function discard(response: Response | undefined): void {
  response?.body?.cancel().catch(() => {});
}

/** How long the server asks to wait; `defaultMs` if it refused without saying. */
function pauseMsOf(headers: Headers, now: number, defaultMs: number): number {
  const after = headers.get("retry-after");
  if (defaultMs > 0 && after) {
    const pauseMs = /^\d+$/.test(after)
      ? 1000 * Number(after)
      : Date.parse(after) - (Date.parse(headers.get("date")!) || now);
    if (pauseMs >= 0) return pauseMs;
  }
  // A list of structured fields. Without their strings, commas separate the items. `r` tokens remain; `t` is a time in
  // seconds.
  const items = (headers.get("ratelimit") ?? "").replace(/"(\\.|[^"\\])*"/g, "").split(",");
  const waitsMs = items.map((item) => (/;\s*r=0\b/.test(item) ? 1000 * Number(/;\s*t=(\d+)/.exec(item)?.[1] ?? 0) : 0));
  return Math.max(...waitsMs) || defaultMs;
}

/** A year: a longer pause is a mistake of the server, and must not overflow the clock here. */
const LONGEST_PAUSE_MS = 366 * 24 * 3_600_000;
