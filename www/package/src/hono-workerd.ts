// A limit in front of Hono's routes on Cloudflare Workers: see hono.ts.
import type { Context, Env, MiddlewareHandler } from "hono";
import { TollgateError } from "./errors.js";
import type * as hono from "./hono.js";
import { middleware } from "./hono-middleware.js";
import { limit, type RateLimitOptions } from "./rate-limited.js";

export const rateLimit = (<E extends Env>(
  options: RateLimitOptions<[context: Context<E>], E["Bindings"] & object> & { readonly limiter?: unknown },
): MiddlewareHandler<E> => {
  if (options.limiter !== undefined)
    throw new TollgateError("limiter_unknown", "on Cloudflare Workers rateLimit needs a `policy`, not a `limiter`");
  return middleware<E>((context, next) =>
    limit(options, context.req.raw, context.env as E["Bindings"] & object, [context], next),
  );
}) as typeof hono.rateLimit;
