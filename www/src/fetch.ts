// A `fetch` that keeps to a limit, and listens when the server says to wait.
import type { AcquireOptions } from "./queue.js";
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { TollgateError } from "./errors.js";

/** How {@link limitFetch} behaves, if not as usual. */
export interface LimitFetchOptions extends Omit<AcquireOptions, "cost" | "signal"> {
  /** Who sends. The page's `fetch`, if left out. */
  readonly fetch?: (input: RequestInfo | URL, init?: RequestInit) => Promise<Response>;
  /** How many tokens a request costs, each time it is sent. 1, if left out. */
  readonly cost?: Cost | ((input: RequestInfo | URL, init?: RequestInit) => Cost);
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
 * sending twice does no harm (GET, HEAD, PUT, DELETE, OPTIONS, or an `Idempotency-Key`), unless the body is a stream;
 * each time it is counted. If there is no time left for that, the response is what the server last said.
 *
 * ```js
 * const api = limitFetch(new Limiter({ rate: 10, periodMs: 1000 }), { maxWaitMs: 10_000 });
 * const response = await api("/search?q=x");
 * ```
 */
export function limitFetch(limiter: Pausable, options: LimitFetchOptions = {}): (input: RequestInfo | URL, init?: RequestInit) => Promise<Response> {
  const { fetch = (...args) => globalThis.fetch(...args), cost = 1, retries = 2, jitterMs = 1000, ...wait } = options;
  return async (input, init) => {
    const request = input instanceof Request ? input : undefined;
    const signal = init?.signal ?? request?.signal;
    let response: Response | undefined;
    for (let again = 0; ; again++) {
      try {
        await limiter.acquire({ ...wait, signal, cost: typeof cost === "function" ? cost(input, init) : cost });
      } catch (error) {
        if (response && error instanceof TollgateError) return response;
        throw error;
      }
      void response?.body?.cancel();
      response = await fetch(request && again < retries ? request.clone() : input, init);
      const now = limiter.clock.now();
      const pauseMs = pauseOf(response, now, again);
      if (pauseMs > 0) limiter.pause(now + Math.ceil(pauseMs + Math.random() * jitterMs));
      if (again >= retries || !(response.status === 429 || (response.status === 503 && isRepeatable(request, init))) || init?.body instanceof ReadableStream) {
        return response;
      }
    }
  };
}

/** For how long the server wants to be left alone. */
function pauseOf({ status, headers }: Response, now: number, again: number): number {
  const refused = status === 429 || status === 503;
  const after = headers.get("retry-after");
  if (refused && after !== null) {
    const at = Date.parse(after);
    const pauseMs = /^\d+$/.test(after) ? Number(after) * 1000 : at - (Date.parse(headers.get("date")!) || now);
    if (pauseMs >= 0) return pauseMs;
  }
  // A list of structured fields: without strings, a comma parts its items.
  const items = headers.get("ratelimit")?.replace(/"(\\.|[^"\\])*"/g, "").split(",") ?? [];
  const spent = items.filter((item) => /;\s*r=0\b/.test(item)).map((item) => Number(/;\s*t=(\d+)/.exec(item)?.[1] ?? 0) * 1000);
  return Math.max(0, ...spent) || (refused ? 1000 * 2 ** again : 0);
}

function isRepeatable(request: Request | undefined, init: RequestInit | undefined): boolean {
  const method = init?.method ?? request?.method ?? "GET";
  const headers = new Headers(init?.headers ?? request?.headers);
  return /^(GET|HEAD|PUT|DELETE|OPTIONS)$/i.test(method) || headers.has("idempotency-key");
}
