// What limits have in common in front of Hono's routes.
import type { Context, Env, MiddlewareHandler } from "hono";

/** Middleware that responds with what `limit` returns: the response of `next`, another, or one made of it. */
export function middleware<E extends Env>(
  limit: (context: Context<E>, next: () => Promise<Response>) => Promise<Response>,
): MiddlewareHandler<E> {
  return async (context, next) => {
    let passed: Response | undefined;
    const response = await limit(context, async () => {
      await next();
      passed = context.res;
      return passed;
    });
    if (!passed) return response;
    if (response !== passed) {
      context.res = undefined; // or Hono would overwrite the headers of one with those of the other
      context.res = response;
    }
    return undefined;
  };
}
