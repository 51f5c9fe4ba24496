// Limits in front of a handler: asks, then passes the request on, refuses it, or reports that nothing could be decided.
import type { BudgetRequest, Degraded, Granted, Key, PolicyName, PolicyNames, Problem, Refused } from "./client.js";
import { TollgateError } from "./errors.js";
import { answerOf } from "./not-granted.js";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import * as embedded from "./worker/embedded.mjs";
import type { Decision, Embedded } from "./worker.js";

/** How requests are limited. The functions have the arguments of the handler. */
export interface RateLimitOptions<Args extends unknown[], Env = object, P extends PolicyNames = string> {
  /** The name of the policy, or a function that returns it. */
  readonly policy: PolicyName<P> | ((...args: Args) => PolicyName<P> | Promise<PolicyName<P>>);
  /**
   * Whose budget. By default, and if it returns `undefined`, the client's address as Cloudflare reports it. Headers that a
   * client can write, such as `X-Forwarded-For`, do not change that.
   */
  readonly key?: (...args: Args) => Key | undefined | Promise<Key | undefined>;
  /** How many tokens a request costs. Default: 1. */
  readonly cost?: RateLimitCost<P> | ((...args: Args) => RateLimitCost<P> | Promise<RateLimitCost<P>>);
  /** Returns true for requests that pass without being counted. */
  readonly skip?: (...args: Args) => boolean | Promise<boolean>;
  /** Makes the response to a refused request, to which the headers are added. Default: the service's 429. */
  readonly onRefused?: (refusal: Refused & Decision, ...args: Args) => Response | Promise<Response>;
  /**
   * Makes the response if nothing could be decided; `undefined` lets the request pass. Default: the service's 503. A
   * wrong key or cost is answered 400, whatever this says; a policy that does not exist throws.
   */
  readonly onError?: (
    problem: Problem & Decision,
    ...args: Args
  ) => Response | undefined | Promise<Response | undefined>;
  /** What decides; TypeScript then knows its policies. Default: `tollgate(env)`. */
  readonly tollgate?: (env: Env) => Pick<Embedded<P>, "consume">;
}

type RateLimitCost<P extends PolicyNames> = NonNullable<BudgetRequest<P>["cost"]>;

/** A handler of Workers and other servers. */
export type FetchHandler<Env, Rest extends unknown[]> = (
  request: Request,
  env: Env,
  ...rest: Rest
) => Response | Promise<Response>;

/**
 * Puts a limit in front of a `fetch` handler. Every response has the headers `RateLimit-Policy` and `RateLimit`.
 *
 * ```js
 * import { rateLimited } from "tollgate/worker";
 * export { KeyObject } from "tollgate/worker";
 *
 * export default {
 *   fetch: rateLimited({ policy: "api" }, async (request, env) => new Response("Hello")),
 * };
 * ```
 */
export function rateLimited<Env extends object, Rest extends unknown[], P extends PolicyNames = string>(
  options: RateLimitOptions<[request: Request, env: Env, ...rest: Rest], Env, P>,
  handler: FetchHandler<Env, Rest>,
): (request: Request, env: Env, ...rest: Rest) => Promise<Response> {
  return async (...args) => limit(options, args[0], args[1], args, async () => handler(...args));
}

/** Asks, and calls `next` if the request may pass. A browser's preflight passes undecided: no page sends it, and it has no credentials. */
export async function limit<Args extends unknown[], Env extends object, P extends PolicyNames>(
  { policy, key, cost, skip, onRefused, onError, tollgate = embedded.tollgate }: RateLimitOptions<Args, Env, P>,
  request: Request,
  env: Env,
  args: Args,
  next: () => Promise<Response>,
): Promise<Response> {
  if (isPreflight(request) || (await skip?.(...args))) return next();
  const asked = tollgate(env).consume({
    policy: typeof policy === "function" ? await policy(...args) : policy,
    key: (await key?.(...args)) ?? addressOf(request),
    cost: (typeof cost === "function" ? await cost(...args) : cost) ?? 1,
  } as BudgetRequest<P> & { readonly key: Key });
  const answer: Answer = await asked.catch(answerOf as (error: unknown) => Answer);
  if (answer.status === 200) return answer.apply(await next());
  if (answer.status === 429) {
    return onRefused ? answer.apply(await onRefused(answer, ...args)) : answer.response();
  }
  // Not for `onError`: a client can cause a wrong request, by its key or its cost, and must not pass that way.
  if (answer.status === 400) return answer.response();
  if (answer.status !== 503) throw new TollgateError("not_granted", answer.detail, { cause: answer });
  return onError ? ((await onError(answer, ...args)) ?? next()) : answer.response();
}

type Answer = (Granted | Degraded | Refused | Problem) & Decision;

function isPreflight({ method, headers }: Request): boolean {
  return method === "OPTIONS" && headers.has("origin") && headers.has("access-control-request-method");
}

function addressOf(request: Request): Key {
  const ip = request.headers.get("cf-connecting-ip");
  if (ip === null) throw new TollgateError("address_missing", "no address from Cloudflare: pass a `key` function");
  return { ip };
}
