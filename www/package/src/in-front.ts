// Limits in front of handlers, on any platform: which requests are counted, for whom, at what cost, and what becomes of the answer.
import type { BudgetRequest, Degraded, Granted, Key, PolicyNames, Problem, Refused } from "./client.js";
import { TollgateError } from "./errors.js";
import { answerOf } from "./not-granted.js";
import type { Decision } from "./worker.js";

/** Which requests are counted, for whom, and at what cost. The functions have the arguments of the handler. */
export interface CountOptions<Args extends unknown[], P extends PolicyNames = string> {
  /**
   * Whose budget. By default, and if it returns `undefined`, the client's address: on Cloudflare Workers as Cloudflare reports it,
   * elsewhere that of the connection. Headers that a client can write, such as `X-Forwarded-For`, change that only where Express or
   * Fastify is told to trust the proxies that set them. A `KeyedLimiter` takes no lists.
   */
  readonly key?: (...args: Args) => Key | undefined | Promise<Key | undefined>;
  /** How many tokens a request costs. Default: 1. */
  readonly cost?: RequestCost<P> | ((...args: Args) => RequestCost<P> | Promise<RequestCost<P>>);
  /** Returns true for requests that pass without being counted. */
  readonly skip?: (...args: Args) => boolean | Promise<boolean>;
}

/** The same, and what the responses are. */
export interface RespondOptions<Args extends unknown[], P extends PolicyNames = string> extends CountOptions<Args, P> {
  /** Makes the response to a refused request, to which the headers are added. Default: the service's 429. */
  readonly onRefused?: (refusal: Refused & Decision, ...args: Args) => Response | Promise<Response>;
  /**
   * Makes the response if nothing could be decided; `undefined` lets the request pass. Default: the service's 503. A
   * wrong key or cost is answered 400, whatever this says; a policy that does not exist throws, and so does a key for one budget for all.
   */
  readonly onError?: (
    problem: Problem & Decision,
    ...args: Args
  ) => Response | undefined | Promise<Response | undefined>;
}

export type RequestCost<P extends PolicyNames = string> = NonNullable<BudgetRequest<P>["cost"]>;

/** What counts a request. */
export interface Counted<P extends PolicyNames = string> {
  readonly key: Key;
  readonly cost: RequestCost<P>;
}

export type Answer = (Granted | Degraded | Refused | Problem) & Decision;

/** A request, as far as it matters here. */
export interface Incoming {
  readonly method: string | undefined;
  has(header: string): boolean;
  /** The client's address. */
  address(): Key | typeof GONE;
}

/** The connection was closed before its address was read. That is no error: any client can do it. */
export const GONE = Symbol("gone");

/** A connection of Node. */
export interface Connection {
  readonly remoteAddress?: string | undefined;
  readonly localAddress?: string | undefined;
  readonly destroyed?: boolean;
}

/** Whether that is why a connection has no address. One that never had any has no local one either. */
export const isGone = ({ destroyed, localAddress }: Connection): boolean => !!destroyed || localAddress !== undefined;

/** Asks whether the request may pass; `undefined` if it is not counted. A browser's preflight is not: no page sends it, and it has no credentials. */
export async function ask<Args extends unknown[], P extends PolicyNames, A extends Answer>(
  { key, cost, skip }: CountOptions<Args, P>,
  request: Incoming,
  args: Args,
  consume: (counted: Counted<P>) => Promise<A>,
): Promise<A | typeof GONE | undefined> {
  if (isPreflight(request) || (await skip?.(...args))) return undefined;
  const whose = (await key?.(...args)) ?? request.address();
  if (whose === GONE) return GONE;
  const counted = {
    key: whose,
    cost: (typeof cost === "function" ? await cost(...args) : cost) ?? 1,
  } as Counted<P>;
  const answer: A = await consume(counted).catch(answerOf as (error: unknown) => A);
  const { status, detail = "" } = answer as Problem;
  // A 400 that no client can cause.
  const isKeyless = status === 400 && ONE_FOR_ALL.test(detail);
  if (PASSED_ON.includes(status) && !isKeyless) return answer;
  const advice = isKeyless ? ", so the limit needs `key: () => []`" : "";
  throw new TollgateError("not_granted", detail + advice, { cause: answer });
}

/** The response to a request with this answer: that of `next`, if the request may pass. */
export async function respond<Args extends unknown[], P extends PolicyNames>(
  { onRefused, onError }: RespondOptions<Args, P>,
  answer: Answer | typeof GONE | undefined,
  args: Args,
  next: () => Promise<Response>,
): Promise<Response> {
  if (answer === undefined) return next();
  if (answer === GONE) return new Response(null, { status: 499 }); // for the log, as nginx has it
  if (answer.status === 200) return answer.apply(await next());
  if (answer.status === 429) {
    return onRefused ? answer.apply(await onRefused(answer, ...args)) : answer.response();
  }
  // Not for `onError`: a client can cause a wrong request, by its key or its cost, and must not pass that way.
  if (answer.status === 400 || !onError) return answer.response();
  return (await onError(answer, ...args)) ?? next();
}

function isPreflight({ method, has }: Incoming): boolean {
  return method === "OPTIONS" && has("origin") && has("access-control-request-method");
}

/** As the service says it of a policy, if a request to it has a key. */
const ONE_FOR_ALL = /^`key` must be left out/;
/** The statuses of answers that the client gets; any other is a mistake of the application. */
const PASSED_ON: readonly number[] = [200, 400, 429, 503];
