// A limit in front of Hono's routes.
import type { Context, Env, MiddlewareHandler } from "hono";
import type { PolicyNames } from "./client.js";
import { limit, type RateLimitOptions } from "./rate-limited.js";

/**
 * Middleware that limits the routes it is used for. Every response has the headers `RateLimit-Policy` and `RateLimit`. The
 * functions in the options have Hono's context as their argument.
 *
 * ```js
 * import { Hono } from "hono";
 * import { rateLimit } from "tollgate/hono";
 * export { KeyObject } from "tollgate/worker";
 *
 * const app = new Hono();
 * app.use("/api/*", rateLimit({ policy: "api" }));
 * app.post("/login", rateLimit({ policy: "login", key: async (c) => (await c.req.json()).user }), (c) => c.text("Hello"));
 * export default app;
 * ```
 */
export function rateLimit<E extends Env = Env, P extends PolicyNames = string>(
  options: RateLimitOptions<[context: Context<E>], E["Bindings"] & object, P>,
): MiddlewareHandler<E> {
  return async (context, next) => {
    let passed: Response | undefined;
    const response = await limit(
      options,
      context.req.raw,
      context.env as E["Bindings"] & object,
      [context],
      async () => {
        await next();
        passed = context.res;
        return passed;
      },
    );
    if (!passed) return response;
    if (response !== passed) {
      context.res = undefined; // or Hono would overwrite the headers of one with those of the other
      context.res = response;
    }
    return undefined;
  };
}
