// Limits in front of a Worker's handler.
import type { BudgetRequest, Key, PolicyName, PolicyNames } from "./client.js";
import { TollgateError } from "./errors.js";
import { type Answer, ask, type RespondOptions, respond } from "./in-front.js";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import * as embedded from "./worker/embedded.mjs";
import type { Embedded } from "./worker.js";

/** How requests are limited. The functions have the arguments of the handler. */
export interface RateLimitOptions<Args extends unknown[], Env = object, P extends PolicyNames = string>
  extends RespondOptions<Args, P> {
  /** The name of the policy, or a function that returns it. */
  readonly policy: PolicyName<P> | ((...args: Args) => PolicyName<P> | Promise<PolicyName<P>>);
  /** What decides; TypeScript then knows its policies. Default: `tollgate(env)`. */
  readonly tollgate?: (env: Env) => Pick<Embedded<P>, "consume">;
}

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

/** Asks, and calls `next` if the request may pass. */
export async function limit<Args extends unknown[], Env extends object, P extends PolicyNames>(
  options: RateLimitOptions<Args, Env, P>,
  request: Request,
  env: Env,
  args: Args,
  next: () => Promise<Response>,
): Promise<Response> {
  const { policy, tollgate = embedded.tollgate as (env: Env) => Pick<Embedded<P>, "consume"> } = options;
  const { method, headers } = request;
  const incoming = { method, has: (name: string) => headers.has(name), address: () => addressOf(request) };
  const answer = await ask<Args, P, Answer>(options, incoming, args, async (counted) => {
    const named = { policy: typeof policy === "function" ? await policy(...args) : policy, ...counted };
    return tollgate(env).consume(named as BudgetRequest<P> & { readonly key: Key });
  });
  return respond<Args, P>(options, answer, args, next);
}

function addressOf(request: Request): Key {
  const ip = request.headers.get("cf-connecting-ip");
  if (ip !== null) return { ip };
  throw new TollgateError(
    "address_missing",
    "the request has no `CF-Connecting-IP`, the client's address, which Cloudflare adds to each request: in a test, send it, as in" +
      ' `headers: { "CF-Connecting-IP": "192.0.2.1" }`; or pass a `key` function',
  );
}
