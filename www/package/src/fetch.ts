// A `fetch` that keeps to a limit, and listens when the server says to wait.
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { TollgateError, whole } from "./errors.js";
import type { AcquireOptions } from "./line.js";

/** How {@link limitFetch} behaves, if not as usual. */
export interface LimitFetchOptions extends Omit<AcquireOptions, "cost" | "signal"> {
  /** Who sends. The page's `fetch`, if left out. */
  readonly fetch?: (request: Request) => Promise<Response>;
  /** How many tokens a request costs, each time it is sent. 1, if left out. */
  readonly cost?: Cost | ((request: Request) => Cost);
  /** How often a request is sent again. 2, if left out. */
  readonly retries?: number;
  /** A pause is longer by a random part of this, so that not all who were refused come back at once. 1000, if left out. */
  readonly jitterMs?: number;
}

/** What can be held up: a `Limiter`, a `SharedLimiter`. */
export interface Pausable {
  readonly clock: Clock;
  acquire(options: AcquireOptions): Promise<unknown>;
  pause(moment: number): unknown;
}

/**
 * Makes a `fetch` whose requests wait in line. When the server says to come back later (429, 503, `Retry-After`, or a
 * `RateLimit` with nothing left) all who use the limiter wait until then. A 429 is sent again, and so is a 503 where
 * sending twice does no harm (GET, HEAD, PUT, DELETE, OPTIONS, or an `Idempotency-Key`); each time it is counted. If
 * there is no time left for that, the response is what the server said last.
 *
 * ```js
 * const api = limitFetch(new Limiter({ rate: 10, periodMs: 1000 }), { maxWaitMs: 10_000 });
 * const response = await api("/search?q=x");
 * ```
 */
export function limitFetch(
  limiter: Pausable,
  {
    fetch = (request) => globalThis.fetch(request),
    cost = 1,
    retries = 2,
    jitterMs = 1000,
    ...wait
  }: LimitFetchOptions = {},
): (input: string | URL | Request, init?: RequestInit) => Promise<Response> {
  whole("retries", retries);
  whole("jitterMs", jitterMs);
  return async (input, init) => {
    const request = new Request(input, init);
    const { method, headers, signal } = request;
    const isRepeatable = /^(GET|HEAD|PUT|DELETE|OPTIONS)$/.test(method) || headers.has("idempotency-key");
    let response: Response | undefined;
    for (let again = 0; ; again++) {
      try {
        await limiter.acquire({ ...wait, signal, cost: typeof cost === "function" ? cost(request) : cost });
      } catch (error) {
        if (response && error instanceof TollgateError) return response;
        letGo(response);
        throw error;
      }
      letGo(response);
      response = await fetch(again < retries ? request.clone() : request);
      const isRefused = response.status === 429;
      const isBusy = response.status === 503;
      const now = limiter.clock.now();
      const pauseMs = pauseOf(response.headers, now, isRefused || isBusy ? 1000 * 2 ** again : 0);
      if (pauseMs > 0)
        void limiter.pause(now + Math.ceil(Math.min(pauseMs, LONGEST_PAUSE_MS) + Math.random() * jitterMs));
      if (again >= retries || !(isRefused || (isBusy && isRepeatable))) return response;
    }
  };
}

/** Frees the connection of a response that nobody reads. */
function letGo(response: Response | undefined): void {
  response?.body?.cancel().catch(() => {});
}

/** For how long the server wants to be left alone; `refusedMs` if it refused and does not say. */
function pauseOf(headers: Headers, now: number, refusedMs: number): number {
  const after = headers.get("retry-after");
  if (refusedMs > 0 && after) {
    const pauseMs = /^\d+$/.test(after)
      ? 1000 * Number(after)
      : Date.parse(after) - (Date.parse(headers.get("date")!) || now);
    if (pauseMs >= 0) return pauseMs;
  }
  // A list of structured fields: with its strings gone, a comma parts the items. `r` is what remains, `t` until when, in seconds.
  const items = (headers.get("ratelimit") ?? "").replace(/"(\\.|[^"\\])*"/g, "").split(",");
  const spentMs = items.map((item) => (/;\s*r=0\b/.test(item) ? 1000 * Number(/;\s*t=(\d+)/.exec(item)?.[1] ?? 0) : 0));
  return Math.max(...spentMs) || refusedMs;
}

/** A year. What is longer is a mistake of the server, and must not be one here. */
const LONGEST_PAUSE_MS = 366 * 24 * 3_600_000;
