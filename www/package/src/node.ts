// A limit in front of a server on Node: with Express, with Fastify, or with `http` alone.
import type { Key, PolicyNames, Problem, Refused } from "./client.js";
import { TollgateError } from "./errors.js";
import { ask, type Connection, type Counted, type CountOptions, GONE, type Incoming, isGone } from "./in-front.js";
import type { LocalAnswer } from "./local-answer.js";
import { warnOfProxy } from "./proxies.js";
import { counterOf, type LimitedBy } from "./request-limiter.js";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import { addFields } from "./worker/fields.mjs";

export { TollgateError } from "./errors.js";
export type { CountOptions, RequestCost } from "./in-front.js";
export { KeyedLimiter } from "./keyed.js";
export type { LimitedBy, RequestLimiter } from "./request-limiter.js";

/** A request of `http`, Express or Fastify, as far as a limit needs it. */
export interface NodeRequest {
  readonly method?: string | undefined;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly socket: Connection;
}

/** A response of `http` or Express, as far as a limit needs it. */
export interface NodeResponse {
  statusCode: number;
  readonly headersSent: boolean;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  once(event: "finish", listener: () => void): unknown;
  end(body: string): unknown;
}

/** A reply of Fastify, as far as a limit needs it. */
export interface NodeReply {
  readonly raw: Pick<NodeResponse, "statusCode" | "headersSent" | "once">;
  code(status: number): unknown;
  getHeader(name: string): unknown;
  header(name: string, value: string): unknown;
  send(body: string): unknown;
}

/** A server of Fastify, as far as a limit needs it. */
export interface NodeServer {
  // biome-ignore lint/suspicious/noExplicitAny: Fastify's types are not ours
  addHook(name: any, hook: any): unknown;
}

/**
 * How requests are limited. The functions have the request and the response as their arguments: those of `http` or Express, or Fastify's
 * request and reply.
 */
export interface RateLimitOptions<Request = NodeRequest, Response = unknown, P extends PolicyNames = string>
  extends LimitedBy<P>,
    CountOptions<[request: Request, response: Response], P> {
  /** Responds to a refused request. The response has the status 429 and the headers. Default: a problem, as the service would send it. */
  readonly onRefused?: (refusal: Refused, request: Request, response: Response) => unknown;
  /** Returns true to let a request pass if nothing could be decided. Default: it gets the service's 503. */
  readonly onError?: (problem: Problem, request: Request, response: Response) => boolean | Promise<boolean>;
}

/** A limit: the middleware of Express, a plugin of Fastify, and a function for servers of `http`. */
export interface RateLimit {
  /** For Fastify: limits the routes of this server. */
  (server: NodeServer, options: object, done: (error?: Error) => void): void;
  /**
   * For `http`: whether the request may pass. If not, the response has been sent, or the client has gone. Rejects if a function in the
   * options throws, and if the service answers that the application is mistaken, as for an unknown policy.
   */
  (request: NodeRequest, response: NodeResponse): Promise<boolean>;
  /** For Express and others like it: calls `next` if the request may pass, or with an error. */
  (request: NodeRequest, response: NodeResponse, next: (error?: unknown) => void): void;
}

/**
 * A limit in front of a server, by default for each address: for IPv6, for each network. Every response has the headers
 * `RateLimit-Policy` and `RateLimit`. A refused request gets a 429 with `Retry-After` and a problem as its body. Requests that a browser
 * sends before those of other origins (CORS preflights) are not counted.
 *
 * ```js
 * import { KeyedLimiter, rateLimit } from "tollgate/node";
 *
 * const limit = rateLimit({ limiter: new KeyedLimiter({ rate: 100, periodMs: 60_000 }) });
 *
 * app.use(limit); // Express
 * app.register(limit); // Fastify
 * createServer(async (request, response) => { // http
 *   if (await limit(request, response)) response.end("Hello");
 * });
 * ```
 *
 * @throws {@link TollgateError} for options that do not fit the limiter.
 */
export function rateLimit<
  Request extends NodeRequest = NodeRequest,
  Response = unknown,
  P extends PolicyNames = string,
>(options: RateLimitOptions<Request, Response, P>): RateLimit {
  const counter = counterOf(options);

  /** Whether the request may pass. If not, it has been answered, or its client has gone. */
  const passes = async (request: Request, response: Response, { get, set, status, end, raw }: Writer) => {
    const { method, headers } = request;
    const incoming: Incoming = {
      method,
      has: (name) => headers[name] !== undefined,
      address: () => addressOf(request),
    };
    let counted: Counted<P> | undefined;
    const answer = await ask<[Request, Response], P, LocalAnswer>(options, incoming, [request, response], (now) => {
      counted = now;
      return counter.consume(now);
    });
    if (answer === GONE) return false;
    if (!answer) return true;
    if (answer.status === 503 && (await options.onError?.(answer, request, response))) return true;
    const { written } = answer;
    addFields(written.headers, get, set);
    if (answer.status === 200) {
      if (options.failedOnly)
        raw.once("finish", () => {
          // With HTTP/2 also if the client has gone, and the status is then that of no response.
          if (raw.headersSent) counter.responded(counted!, answer, raw.statusCode);
        });
      return true;
    }
    status(answer.status);
    if (answer.status === 429 && options.onRefused) {
      try {
        await options.onRefused(answer, request, response);
      } catch (error) {
        status(500); // or Express and Fastify would answer the error with that of the refusal
        throw error;
      }
      return false;
    }
    for (const [name, value] of Object.entries(written.headers)) {
      const isAdded = /^ratelimit|^retry-after$/.test(name) && get(name) !== undefined;
      if (!isAdded) set(name, value);
    }
    end(written.body);
    return false;
  };

  /** Before bodies are read, unless a function may need them. */
  const isReading = [options.key, options.cost, options.skip].some((option) => typeof option === "function");
  const hook = isReading ? "preValidation" : "onRequest";
  const limit = (
    first: NodeServer | NodeRequest,
    second: object | NodeResponse,
    next?: Next,
  ): Promise<boolean> | undefined => {
    if ("addHook" in first) {
      // With a callback: after a hook that returns the reply, the handler is called if the client goes before all is sent.
      first.addHook(hook, (request: Request, reply: NodeReply, done: Next) => {
        proceed(passes(request, reply as Response, ofReply(reply)), done);
      });
      next?.();
      return undefined;
    }
    const passing = passes(first as Request, second as Response, ofResponse(second as NodeResponse));
    if (!next) return passing;
    proceed(passing, next);
    return undefined;
  };
  // Otherwise Fastify would limit only the routes that the plugin itself has.
  return Object.assign(limit, { [Symbol.for("skip-override")]: true }) as RateLimit;
}

type Next = (error?: unknown) => void;

/** Calls `next` if the request may pass, or with an error. */
function proceed(passing: Promise<boolean>, next: Next): void {
  passing.then(
    (isPassed) => {
      if (isPassed) next();
    },
    (cause) => {
      // Express takes `undefined`, "route" and "router" for no error.
      const isError = Object(cause) === cause;
      next(isError ? cause : new Error(`a function of the limit has thrown ${String(cause)}`, { cause }));
    },
  );
}

/** What writes a response. */
interface Writer {
  readonly get: (name: string) => unknown;
  readonly set: (name: string, value: string) => unknown;
  readonly status: (status: number) => unknown;
  readonly end: (body: string) => unknown;
  readonly raw: NodeReply["raw"];
}

function ofResponse(response: NodeResponse): Writer {
  return {
    get: (name) => response.getHeader(name),
    set: (name, value) => response.setHeader(name, value),
    status: (status) => {
      response.statusCode = status;
    },
    end: (body) => response.end(body),
    raw: response,
  };
}

function ofReply(reply: NodeReply): Writer {
  return {
    get: (name) => reply.getHeader(name),
    set: (name, value) => reply.header(name, value),
    status: (status) => reply.code(status),
    end: (body) => reply.send(body),
    raw: reply.raw,
  };
}

/** What Express and Fastify add to a request. */
interface Framed extends NodeRequest {
  /** The client's address, from `X-Forwarded-For` if a trusted proxy has sent it. */
  readonly ip?: string | undefined;
  /** Of Fastify, only if it trusts a proxy; of Express always. */
  readonly ips?: readonly string[] | undefined;
  /** Of Express. */
  readonly app?: { get?(setting: string): unknown } | undefined;
}

function addressOf(request: Framed): Key | typeof GONE {
  const { socket, headers } = request;
  const ip = request.ip ?? socket.remoteAddress;
  if (ip === undefined && isGone(socket)) return GONE;
  if (ip === undefined)
    throw new TollgateError(
      "address_missing",
      "the connection has no address: it is a Unix socket's, or a test's: give it one, as in" +
        ' `socket: { remoteAddress: "192.0.2.1" }`, or pass a `key` function',
    );
  if (ip === socket.remoteAddress && !trustsProxies(request))
    warnOfProxy((header) => headers[header] !== undefined, ip, PROXY_ADVICE);
  return { ip: ip.replace(PORT, "$1$2") };
}

const PROXY_ADVICE =
  "set `trust proxy` in Express or `trustProxy` in Fastify to the proxies that you trust, or pass a `key` function";

/** Some proxies, such as Azure's, write an address with its port: `192.0.2.1:4711`, `[2001:db8::1]:4711`. */
const PORT = /^([\d.]+):\d+$|^\[(.*)\](?::\d+)?$/;

function trustsProxies({ app, ips }: Framed): boolean {
  return app?.get ? Boolean(app.get("trust proxy")) : ips !== undefined;
}
