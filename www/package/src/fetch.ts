// A `fetch` that respects a limit, and waits when the server says so.
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { checkIndex, checkWhole, TollgateError } from "./errors.js";
import { bytesOf, discard, type FetchArguments, readArguments, spareOf, split } from "./fetch-arguments.js";
import { followedResponse } from "./followed-response.js";
import type { AcquireOptions } from "./queue.js";
import { requestedPauseMs } from "./requested-pause.js";

/** Options of {@link limitFetch}. */
export interface LimitFetchOptions<Name extends string = never> extends Omit<AcquireOptions, "cost" | "signal"> {
  /** Sends a request: it gets the caller's own arguments. Default: the global `fetch`. */
  readonly fetch?: (...args: FetchArguments) => Promise<Response>;
  /**
   * How many tokens a request costs, each time it is sent, or a function that returns it. That may read the body of the
   * copy that it gets. Where relative URLs have no base, as in Node, its own is `http://localhost`. Default: 1.
   */
  readonly cost?: Cost<Name> | ((request: Request) => Cost<Name> | Promise<Cost<Name>>);
  /**
   * Returns what a request really cost, by its response: what is missing is charged, and the rest refunded. It may read
   * the body of the copy that it gets, also while that streams to the caller, and that ends where the caller cancels. If `settle` fails,
   * that is reported on the console, and the cost stays.
   */
  readonly settle?: (response: Response) => Cost<Name> | Promise<Cost<Name>>;
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
  /**
   * Until when a request counts against `maxConcurrent`: until the `body` of its response has been read, is cancelled or
   * fails, or has not been read from for ten seconds; or only until its `headers` are there. Default: `body`.
   */
  readonly countUntil?: "body" | "headers";
}

/** A limiter that can be paused: `Limiter`, `SharedLimiter` or `Twin`. */
export interface Pausable<Name extends string = string> {
  readonly clock: Clock;
  acquire(options: AcquireOptions<Name>): Promise<unknown>;
  pause(moment: number): unknown;
  /** How many calls may run at once, if the limiter counts them. */
  readonly maxConcurrent?: number;
  /** If the limiter counts running calls: ends what `acquire` has admitted. */
  release?(admitted: never): void;
  /** Debits, and gives back, what `settle` finds; absent if only a server can. */
  charge?(cost: Cost<Name>): unknown;
  refund?(cost: Cost<Name>): unknown;
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
    fetch = (...args) => globalThis.fetch(...args),
    cost = 1,
    settle,
    retries = 2,
    jitterMs = 1000,
    maxPauseMs = 300_000,
    countUntil = "body",
    ...wait
  }: LimitFetchOptions<Name> = {},
): (...args: FetchArguments) => Promise<Response> {
  checkWhole("retries", retries);
  checkWhole("jitterMs", jitterMs);
  checkWhole("maxPauseMs", maxPauseMs);
  const isCounted = (limiter.maxConcurrent ?? Infinity) < Infinity;
  const waitsForBody = checkIndex("countUntil", countUntil, ["headers", "body"]) > 0 && isCounted;
  if (settle && !(limiter.charge && limiter.refund))
    throw new TollgateError("settle_unknown", "settle needs a limiter with charge and refund, such as a Limiter");
  return async (...args: FetchArguments) => {
    const { signal, isIdempotent, isSentOnce } = readArguments(args);
    let taken = cost as Cost<Name>;
    if (typeof cost === "function") {
      let copy: Request;
      [copy, args] = split(args);
      try {
        taken = await cost(copy);
      } finally {
        discard(copy);
      }
    }
    /** For the body of a retry. */
    let spare: Request | Response | undefined;
    let response: Response | undefined;
    for (let attempt = 0; ; attempt++) {
      let admitted: unknown;
      try {
        admitted = await limiter.acquire({ ...wait, signal, cost: taken });
      } catch (error) {
        discard(spare);
        if (response && error instanceof TollgateError) return response;
        discard(response);
        throw error;
      }
      discard(response);
      const end = () => limiter.release?.(admitted as never);
      if (signal?.aborted) {
        end();
        discard(spare);
        try {
          await limiter.refund?.(taken); // nothing has been sent
        } catch {} // it has been closed meanwhile
        throw signal.reason;
      }
      let statedMs: number | undefined;
      try {
        if (isSentOnce && attempt === 0 && retries > 0) [spare, args] = spareOf(args);
        response = await fetch(...args);
        statedMs = requestedPauseMs(response, limiter.clock.now());
      } catch (error) {
        end();
        discard(spare);
        throw error;
      }
      const { status } = response;
      const isRefused = status === 429 || status === 503;
      const now = limiter.clock.now();
      const requestedMs = statedMs ?? (isRefused ? 1000 * 2 ** attempt : 0);
      const pauseMs = Math.min(requestedMs, maxPauseMs) + (status >= 400 ? Math.random() * jitterMs : 0);
      if (requestedMs > 0) void pause(now + Math.ceil(pauseMs));
      const isRepeatable = status === 429 || (status === 503 && isIdempotent);
      const isLast = !isRepeatable || attempt >= retries || requestedMs > maxPauseMs;
      const isHeld = isLast && waitsForBody;
      if (!isHeld) end();
      let copy: Response | undefined;
      if (isHeld || (isLast && settle))
        [response, copy] = followedResponse(response, limiter.clock, isHeld ? end : undefined, !!settle);
      if (settle) {
        const own = response;
        void settleBy(settle, () => copy ?? own.clone(), taken, signal);
      }
      if (isLast) {
        discard(spare);
        return response;
      }
      if (spare) {
        try {
          args = [args[0], { ...args[1], body: await bytesOf(spare, signal) }];
        } catch (error) {
          discard(response);
          throw error;
        }
      }
      spare = undefined;
    }
  };

  async function pause(moment: number): Promise<void> {
    try {
      await limiter.pause(moment);
    } catch {} // it has been closed meanwhile
  }

  /** Replaces what was taken by what `settle` returns for a copy of the response. */
  async function settleBy(
    settle: (response: Response) => Cost<Name> | Promise<Cost<Name>>,
    copied: () => Response,
    taken: Cost<Name>,
    signal: AbortSignal | null | undefined,
  ): Promise<void> {
    let copy: Response | undefined;
    try {
      copy = copied();
      const real = await settle(copy);
      const [more, less] = [excess(real, taken), excess(taken, real)] as [Cost<Name>, Cost<Name>];
      if (isSome(more)) await limiter.charge!(more);
      if (isSome(less)) await limiter.refund!(less);
    } catch (error) {
      if (!signal?.aborted) console.warn("tollgate: not settled, so the cost stays:", error);
    } finally {
      discard(copy);
    }
  }
}

/** How much more `a` is than `b`, in each limit. */
function excess(a: Cost<string>, b: Cost<string>): Cost<string> {
  const costIn = (cost: Cost<string>, name: string) =>
    checkWhole("cost", typeof cost === "object" ? cost[name]! : cost);
  const excessIn = (name: string) => Math.max(0, costIn(a, name) - costIn(b, name));
  const named = [a, b].find((cost) => typeof cost === "object");
  return named ? Object.fromEntries(Object.keys(named).map((name) => [name, excessIn(name)])) : excessIn("");
}

const isSome = (cost: Cost<string>) =>
  Object.values(typeof cost === "object" ? cost : [cost]).some((tokens) => tokens > 0);
