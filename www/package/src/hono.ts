// A limit in front of Hono's routes: on Node, Deno and Bun here, on Cloudflare Workers in hono-workerd.ts.
import type { Context, Env, MiddlewareHandler } from "hono";
import type { Key, PolicyNames } from "./client.js";
import { TollgateError } from "./errors.js";
import { middleware } from "./hono-middleware.js";
import {
  ask,
  type Counted,
  GONE,
  type Incoming,
  isGone,
  type Connection as NodeConnection,
  type RespondOptions,
  respond,
} from "./in-front.js";
import type { LocalAnswer } from "./local-answer.js";
import { warnOfProxy } from "./proxies.js";
import type { RateLimitOptions } from "./rate-limited.js";
import { counterOf, type LimitedBy } from "./request-limiter.js";

export type { LimitedBy, RequestLimiter } from "./request-limiter.js";

/** How requests are limited on Node, Deno and Bun. The functions in the options have Hono's context as their argument. */
export interface LimitOptions<E extends Env = Env, P extends PolicyNames = string>
  extends LimitedBy<P>,
    RespondOptions<[context: Context<E>], P> {}

/**
 * Middleware that limits the routes it is used for. Every response has the headers `RateLimit-Policy` and `RateLimit`. The
 * functions in the options have Hono's context as their argument.
 *
 * On Cloudflare Workers:
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
 *
 * On Node, Deno and Bun, with a limiter, by default for each address:
 *
 * ```js
 * app.use(rateLimit({ limiter: new KeyedLimiter({ rate: 100, periodMs: 60_000 }) }));
 * ```
 */
export function rateLimit<E extends Env = Env, P extends PolicyNames = string>(
  options: LimitOptions<E, P>,
): MiddlewareHandler<E>;
export function rateLimit<E extends Env = Env, P extends PolicyNames = string>(
  options: RateLimitOptions<[context: Context<E>], E["Bindings"] & object, P> & { readonly limiter?: never },
): MiddlewareHandler<E>;
export function rateLimit<E extends Env>(given: object): MiddlewareHandler<E> {
  const options = given as LimitOptions<E>;
  if (options.limiter === undefined)
    throw new TollgateError("limiter_unknown", "rateLimit needs a `limiter`, except on Cloudflare Workers");
  const counter = counterOf(options);
  return middleware<E>(async (context, next) => {
    const { method, headers } = context.req.raw;
    const incoming: Incoming = {
      method,
      has: (name) => headers.has(name),
      address: () => addressOf(context),
    };
    let counted: Counted | undefined;
    const answer = await ask<[Context<E>], string, LocalAnswer>(options, incoming, [context], (now) => {
      counted = now;
      return counter.consume(now);
    });
    const response = await respond<[Context<E>], string>(options, answer, [context], next);
    if (options.failedOnly && answer && answer !== GONE && answer.status === 200)
      counter.responded(counted!, answer, response.status);
    return response;
  });
}

/** What the servers pass to Hono, some as `env`, some in `env.server`. */
interface Connection {
  /** Node. */
  readonly incoming?: { readonly socket: NodeConnection };
  /** Deno. */
  readonly remoteAddr?: { readonly hostname?: string };
  /** Bun. */
  requestIP?(request: Request): { readonly address: string } | null;
  readonly server?: Connection;
}

function addressOf({ env, req: { raw } }: Context): Key | typeof GONE {
  const connection: Connection | undefined = (env as Connection | undefined)?.server ?? env;
  const socket = connection?.incoming?.socket;
  const ip = socket?.remoteAddress ?? connection?.remoteAddr?.hostname ?? connection?.requestIP?.(raw)?.address;
  if (ip === undefined && socket && isGone(socket)) return GONE;
  if (ip === undefined)
    throw new TollgateError(
      "address_missing",
      "Hono has no connection whose address could be the key: serve the app as Hono's documentation says for your runtime; in a test, pass" +
        ' one, as in `app.request("/", {}, { incoming: { socket: { remoteAddress: "192.0.2.1" } } })`; or pass a `key` function',
    );
  warnOfProxy((header) => raw.headers.has(header), ip, "pass a `key` function that reads what your proxy sets");
  return { ip };
}
