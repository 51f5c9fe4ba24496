// Tollgate inside another Worker: the whole service, prebuilt, with types.
import { type AcquireRequest, acquire as acquireFrom } from "./acquire.js";
import type {
  BatchDegraded,
  BatchGranted,
  BatchRefused,
  BudgetRequest,
  CallOptions,
  Degraded,
  Extended,
  Granted,
  Inspection,
  Key,
  PolicyNames,
  Problem,
  Refused,
  ReservationRequest,
  Reserved,
  Returned,
} from "./client.js";
import type { KeyCalls } from "./key-acts.js";
import type { LimitSettings, NamedLimitSettings } from "./limit-settings.js";
import { type NotGranted, NotGrantedError as NotGrantedErrorOf, throwing } from "./not-granted.js";
// @ts-expect-error: likewise
import * as embedded from "./worker/embedded.mjs";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import * as built from "./worker/entry.mjs";
// @ts-expect-error: likewise
import * as local from "./worker/local.mjs";

export type * from "./client.js";
export { TollgateError } from "./errors.js";
export type * from "./key-acts.js";
export type * from "./limit-settings.js";
export { type GrantOptions, type GrantVerb, mintGrant } from "./mint.js";
export { orThrow } from "./not-granted.js";
export { type FetchHandler, type RateLimitOptions, rateLimited } from "./rate-limited.js";

/** When a policy bans a key for being refused often, and for how long. */
export interface BanSettings {
  /** How many refusals ban a key: 1 to 100. */
  readonly after: number;
  /** The time in which they count: `"1s"` to `"1day"`. */
  readonly within: string;
  /** How long the first ban lasts: `"1s"` to `"365days"`. */
  readonly for: string;
  /** How many times as long as the one before each further ban lasts: 1 to 10. Default: 2. */
  readonly grow?: number;
  /**
   * How long a ban lasts at most, and how long after the end of one the next is a first one again: up to `"365days"`. Default: `"1day"`, or
   * `for` if that is longer.
   */
  readonly max?: string;
}

/** One limit, or several, all of which must pass; or only the rate of one, such as `"20/s burst 40"`. */
export type PolicySettings =
  | string
  | ((LimitSettings | { readonly limits: readonly (NamedLimitSettings & Pick<PolicyTerms, "mode">)[] }) & PolicyTerms);

/** The members of a policy beside its limits. */
export interface PolicyTerms {
  /** Whether its limits refuse, unless they say otherwise. Default: `"enforce"`. */
  readonly mode?: "enforce" | "soft" | "shadow" | "off";
  readonly on_error?: "closed" | "open" | readonly ("timeout" | "failed" | "overloaded")[];
  /** How long a reservation lasts, from its start or its last extension. Default: `"10m"`. */
  readonly reservation_ttl?: string;
  /** What an unsettled reservation costs when it expires. Default: `"keep"`, its full cost. */
  readonly unsettled?: "keep" | "refund";
  /** How long a refusal may be repeated from memory: `"0s"` to `"1m"`. Default: `"1s"`. */
  readonly refusal_cache?: string;
  /** How long the answer to a request with an `idempotencyKey` is repeated: `"1m"` to `"7days"`. Default: `"1h"`. */
  readonly idempotency_ttl?: string;
  /** How long a frontend may spend tokens taken in advance: `"100ms"` to `"10s"`. By default it takes none. */
  readonly lease?: string;
  /** The most tokens of each limit that a lease may have. Default: half of what is left. */
  readonly max_lease?: number;
  /** How many objects share the budget of one key: 1 to 16. Default: 1. */
  readonly shards?: number;
  /** How many bits of an IPv6 address count, if a key is an address: 32 to 128. Default: 64. */
  readonly ipv6_prefix?: number;
  /** How many characters of a key operators are shown beside its hash: 0 to 64. Default: 0. */
  readonly show_key_prefix?: number;
  /** Events reported to a webhook or a queue. Default: none. */
  readonly notify?: readonly (`${number}%` | "over" | "refused")[];
  /** Minimum interval between notices of one kind about a limit of one key. Default: `"10m"`. */
  readonly notify_every?: string;
  /** Bans a key that is refused often. Default: never. */
  readonly ban?: BanSettings;
  /** `[]`: one budget for all, whose requests have no `key`, or `[]`. By default each key has a budget. */
  readonly key?: readonly [];
  /** The most that a random delay adds to the retry time of a refusal: up to `"1h"`. Default: `"0s"`. */
  readonly jitter?: string;
  /** Whether operators cannot change it in the registry. Default: `false`. */
  readonly fixed?: boolean;
  /** How tokens are carried over, in the registry, when it replaces another text. Default: `"additive"`, with shards `"as_is"`. */
  readonly carry?: "additive" | "as_is" | "proportional";
}

/** The names of these policies, and of the limits of each. */
export type NamesIn<P extends Readonly<Record<string, PolicySettings>>> = {
  readonly [Name in keyof P]: P[Name] extends infer One
    ? One extends { readonly limits: readonly { readonly name: infer Limit }[] }
      ? Limit
      : never
    : never;
};

/** The names of those with one budget for all. */
export type KeylessIn<P extends Readonly<Record<string, PolicySettings>>> = {
  readonly [Name in keyof P]: P[Name] extends { readonly key: readonly [] } ? Name : never;
}[keyof P];

/** The namespace of the objects: a Durable Object binding for {@link KeyObject}. */
export interface KeyNamespace {
  // biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
  getByName(name: string): any;
}

/** Methods of an embedded answer. */
export interface Decision {
  /** The response that the service would have sent: status, headers and body; but for CORS, which is the application's. */
  response(): Response;
  /**
   * The given response with the rate-limit headers of this answer, and the `Retry-After` of a refusal. The same object, or a
   * copy if its headers cannot be changed; its body goes on streaming.
   */
  apply(response: Response): Response;
}

/** Options of a call. */
export type EmbeddedCallOptions = Pick<CallOptions, "idempotencyKey">;

/** The error of `tollgate(env, { throws: true })`: `error.answer.response()` is the response that the service would have sent. */
export type NotGrantedError = NotGrantedErrorOf<NotGranted & (Refused | Problem) & Decision>;
export const NotGrantedError = NotGrantedErrorOf as unknown as new (
  answer: NotGrantedError["answer"],
) => NotGrantedError;

/**
 * Every verb of the HTTP API but `lease`, as in {@link Client}. `P` is what is known of the policies, and `Keyless` the names of those whose
 * requests need no key.
 */
export interface Embedded<P extends PolicyNames = string, Throws extends boolean = false, Keyless = never> {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  consume: {
    ask(
      request: Keyed<BudgetRequest<P>, Keyless> & { readonly mode: "reserve" },
      options?: EmbeddedCallOptions,
    ): Promise<Returned<Reserved | Refused | Problem, Throws> & Decision>;
    ask(
      request: Keyed<BudgetRequest<P>, Keyless>,
      options?: EmbeddedCallOptions,
    ): Promise<Returned<Granted | Degraded | Refused | Problem, Throws> & Decision>;
  }["ask"];
  /** Returns the answer that `consume` would give, and takes nothing. */
  peek: Call<Keyed<BudgetRequest<P>, Keyless>, Returned<Granted | Refused | Problem, Throws>>;
  /** Debits what was already used. */
  charge: Call<Keyed<BudgetRequest<P>, Keyless>, Granted | Problem>;
  /** Gives tokens back. */
  refund: Call<Keyed<BudgetRequest<P>, Keyless>, Granted | Problem>;
  /** Fills all limits. */
  reset: Call<Keyed<BudgetRequest<P>, Keyless>, Granted | Problem>;
  /** Returns the state of a budget. */
  inspect: Call<Keyed<BudgetRequest<P>, Keyless>, Inspection | Problem>;
  /** Closes a reservation at its real cost; without a `cost`, at the reserved one. */
  settle: Call<Keyed<ReservationRequest<P>, Keyless>, Granted | Problem>;
  /** Closes a reservation at no cost. */
  cancel: Call<Keyed<ReservationRequest<P>, Keyless>, Granted | Problem>;
  /**
   * Extends a reservation to its policy's `reservation_ttl` from now, unless it already lasts longer. Takes the `cost`, if any, from all
   * limits; if one refuses, nothing changes.
   */
  extend: Call<Keyed<ReservationRequest<P>, Keyless>, Extended | Refused | Problem>;
  /** Consumes from several budgets: from all of them, or from none. */
  batch: Call<
    { readonly requests: readonly Keyed<BudgetRequest<P>, Keyless>[] },
    BatchGranted | BatchDegraded | BatchRefused | Problem
  >;
  /** What operators do with one key. */
  keys: {
    readonly [Verb in keyof KeyCalls]: Call<KeyCalls[Verb][0], KeyCalls[Verb][1] & { readonly headers: Headers }>;
  };
}

/**
 * Every verb of the HTTP API but `lease`, in your own Worker: without HTTP, without a token, one object call per decision. An
 * answer of any status is a value. Cheap to call for each request: the same arguments give the same object.
 *
 * The policies are `policies`, whose names TypeScript then knows, or those of the variable `POLICIES`: `npx tollgate types` writes
 * their names, for `tollgate<Policies>(env)`. `keys` is the namespace of
 * the objects, by default the binding `KEYS`. With `throws`, `consume` and `peek` reject with a {@link NotGrantedError} unless they are
 * granted.
 *
 * ```js
 * import { tollgate } from "tollgate/worker";
 * export { KeyObject } from "tollgate/worker";
 *
 * export default {
 *   async fetch(request, env) {
 *     const decision = await tollgate(env).consume({ policy: "api", key: { ip: request.headers.get("cf-connecting-ip") } });
 *     return decision.allowed ? decision.apply(new Response("Hello")) : decision.response();
 *   },
 * };
 * ```
 *
 * @throws {@link SettingsError} if the policies have errors, a policy is in both places, `TOLLGATE_KEY_SECRET` is too short, or the
 * binding is missing.
 */
export const tollgate: {
  <const P extends Readonly<Record<string, PolicySettings>>, Throws extends boolean = false>(
    env: object,
    options: { readonly policies: P; readonly keys?: KeyNamespace; readonly throws?: Throws },
  ): Embedded<NamesIn<P>, Throws, KeylessIn<P>>;
  <P extends PolicyNames = string, Throws extends boolean = false>(
    env: object,
    options?: { readonly keys?: KeyNamespace; readonly throws?: Throws },
  ): Embedded<P, Throws>;
} = (env: object, options?: { readonly throws?: boolean }) => {
  const verbs = embedded.tollgate(env, options);
  if (!options?.throws) return verbs;
  const made = thatThrow.get(verbs) ?? { ...verbs, ...throwing(verbs) };
  thatThrow.set(verbs, made);
  return made;
};
const thatThrow = new WeakMap<object, Embedded<never, never>>();

/** The verbs of {@link Embedded}, decided at once. A request without a key is about the object's own. */
export interface Local<P extends PolicyNames = string> {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  consume: {
    ask(
      request: BudgetRequest<P> & { readonly mode: "reserve" },
      options?: EmbeddedCallOptions,
    ): (Reserved | Refused | Problem) & Decision;
    ask(request: BudgetRequest<P>, options?: EmbeddedCallOptions): (Granted | Refused | Problem) & Decision;
  }["ask"];
  /** Returns the answer that `consume` would give, and takes nothing. */
  peek: LocalCall<BudgetRequest<P>, Granted | Refused | Problem>;
  /** Debits what was already used. */
  charge: LocalCall<BudgetRequest<P>, Granted | Problem>;
  /** Gives tokens back. */
  refund: LocalCall<BudgetRequest<P>, Granted | Problem>;
  /** Fills all limits. */
  reset: LocalCall<BudgetRequest<P>, Granted | Problem>;
  /** Returns the state of a budget. */
  inspect: LocalCall<BudgetRequest<P>, Inspection | Problem>;
  /** Closes a reservation at its real cost; without a `cost`, at the reserved one. */
  settle: LocalCall<ReservationRequest<P>, Granted | Problem>;
  /** Closes a reservation at no cost. */
  cancel: LocalCall<ReservationRequest<P>, Granted | Problem>;
  /**
   * Extends a reservation to its policy's `reservation_ttl` from now, unless it already lasts longer. Takes the `cost`, if any, from all
   * limits; if one refuses, nothing changes.
   */
  extend: LocalCall<ReservationRequest<P>, Extended | Refused | Problem>;
  /** Consumes from several budgets: from all of them, or from none. */
  batch: LocalCall<{ readonly requests: readonly BudgetRequest<P>[] }, BatchGranted | BatchRefused | Problem>;
  /** Forgets full budgets, and reservations that expired more than an hour ago. With many keys, call it now and then. */
  clean(): void;
}

/**
 * Budgets in a Durable Object of your own, beside its rows. Each verb decides at once, without `await`, and what it writes
 * belongs to your transaction: a consume and your own writes are kept together or not at all, whether your code throws or
 * the machine stops. The rows are in the key-value part of the storage, under names that begin with `tollgate:`.
 *
 * ```js
 * import { DurableObject } from "cloudflare:workers";
 * import { tollgateIn } from "tollgate/worker";
 *
 * export class Mailbox extends DurableObject {
 *   #limits = tollgateIn(this.ctx, { mails: { rate: 100, period: "1day" } });
 *
 *   send(mail) {
 *     return this.ctx.storage.transactionSync(() => {
 *       const decision = this.#limits.consume({ policy: "mails" });
 *       if (decision.allowed) this.ctx.storage.sql.exec("INSERT INTO mails VALUES (?)", mail);
 *       return decision.allowed;
 *     });
 *   }
 * }
 * ```
 *
 * @throws {@link SettingsError} if the policies have errors. What fails in the storage is thrown by the verbs.
 */
export const tollgateIn: <const P extends Readonly<Record<string, PolicySettings>>>(
  context: {
    readonly id: { toString(): string };
    // biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
    readonly storage: any;
  },
  policies: P,
) => Local<NamesIn<P>> = local.tollgateIn;

/** Errors in the settings. */
export interface SettingsError extends Error {
  readonly name: "SettingsError";
  /** A line for each error. */
  readonly errors: readonly string[];
}
export const SettingsError: new (errors: readonly string[]) => SettingsError = embedded.SettingsError;

/** An object of the platform's class `DurableObject`: keeps all buckets of one key. */
export interface KeyObject {
  /** How the platform's types recognize Durable Objects. */
  readonly __DURABLE_OBJECT_BRAND: never;
}
/** The Durable Object class. Your Worker exports it, and binds it as `KEYS`. */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const KeyObject: new (context: any, env: any) => KeyObject = built.KeyObject;

/** An object of the platform's class `DurableObject`: keeps the policies of a service, and what operators change in them. */
export interface PolicyRegistry {
  /** How the platform's types recognize Durable Objects. */
  readonly __DURABLE_OBJECT_BRAND: never;
}
/** The Durable Object class of the registry. Your Worker exports it, and binds it as `REGISTRY`; without it, policies change with deployments alone. */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const PolicyRegistry: new (context: any, env: any) => PolicyRegistry = built.PolicyRegistry;

/** An answer by RPC: plain values, without methods. */
export type Plain<Answer> = Answer extends unknown
  ? Omit<Answer, "headers"> & { readonly headers: Readonly<Record<string, string>> }
  : never;

/** An entry point of the platform's class `WorkerEntrypoint`. Its methods are those of {@link Embedded}, with plain answers. */
export interface Tollgate {
  /** How the platform's types recognize entry points. */
  readonly __WORKER_ENTRYPOINT_BRAND: never;
  /** The HTTP API, within the rights of the binding. A header `Authorization` is not read. */
  fetch(request: Request): Promise<Response>;
  consume(
    request: Keyed<BudgetRequest>,
    options?: EmbeddedCallOptions,
  ): Promise<Plain<Granted | Degraded | Refused | Problem>>;
  peek(request: Keyed<BudgetRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Refused | Problem>>;
  charge(request: Keyed<BudgetRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  refund(request: Keyed<BudgetRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  reset(request: Keyed<BudgetRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  inspect(request: Keyed<BudgetRequest>, options?: EmbeddedCallOptions): Promise<Plain<Inspection | Problem>>;
  settle(request: Keyed<ReservationRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  cancel(request: Keyed<ReservationRequest>, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  extend(
    request: Keyed<ReservationRequest>,
    options?: EmbeddedCallOptions,
  ): Promise<Plain<Extended | Refused | Problem>>;
  batch(
    request: { readonly requests: readonly Keyed<BudgetRequest>[] },
    options?: EmbeddedCallOptions,
  ): Promise<Plain<BatchGranted | BatchDegraded | BatchRefused | Problem>>;
  /** What operators do with one key. */
  readonly keys: {
    readonly [Verb in keyof KeyCalls]: (
      request: KeyCalls[Verb][0],
      options?: EmbeddedCallOptions,
    ) => Promise<Plain<KeyCalls[Verb][1]>>;
  };
}
/** What `props` of a service binding may say. Without them it may consume and adjust, under all policies and for all keys. */
export interface BindingProps {
  /** Default: `consume` and `adjust`. */
  readonly scopes?: readonly ("consume" | "adjust" | "admin")[];
  /** The only policies that requests may name. Default: all. */
  readonly policies?: readonly string[];
  /** Whether requests may bring their own limits. Default: `false`. */
  readonly inline?: boolean;
  /** Restricts requests to text keys with this prefix. Not with `admin`. Default: all keys. */
  readonly key_prefix?: string;
}

/** For service bindings: `[[services]]` with `entrypoint = "Tollgate"` and, if need be, `props`: see {@link BindingProps}. */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const Tollgate: new (context: any, env: any) => Tollgate = built.Tollgate;

/** An entry point with the method of the platform's own rate limiting binding. */
export interface RateLimit {
  /** How the platform's types recognize entry points. */
  readonly __WORKER_ENTRYPOINT_BRAND: never;
  /**
   * Takes a token of the key under the binding's policy. `success` is false if there is none, and if nothing could be decided, unless the
   * policy fails open. Rejects for a wrong key, such as an empty one, an unknown policy and errors in the settings.
   */
  limit(request: { readonly key: Key }): Promise<{ readonly success: boolean }>;
}
/** What `props` of a service binding to {@link RateLimit} say. */
export interface RateLimitProps extends Pick<BindingProps, "key_prefix"> {
  readonly policy: string;
}

/**
 * For Workers that use the platform's rate limiting binding: a service binding to this entry point takes its place, with {@link
 * RateLimitProps} as `props`.
 */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const RateLimit: new (context: any, env: any) => RateLimit = built.RateLimit;

/** The service by HTTP, for callers with a token. */
const service: { fetch(request: Request, env: object): Promise<Response> } = built.default;
export default service;

/**
 * Takes tokens as soon as they can be granted, and resolves then: `acquire` of `tollgate/client`, also for what {@link tollgate}
 * returns.
 *
 * ```js
 * await acquire(tollgate(env), { policy: "llm", key: "alice", cost: 4000, maxWaitMs: 60_000 });
 * ```
 */
export const acquire = acquireFrom as typeof acquireFrom &
  (<P extends PolicyNames>(
    service: Pick<Embedded<P>, "consume" | "settle" | "cancel">,
    request: Keyed<AcquireRequest<P>>,
  ) => Promise<(Granted | Degraded) & Decision>);

/** Only a policy known to have one budget for all needs no key: there is no grant here that could bring one. */
type Keyed<Request, Keyless = never> = Request &
  ({ readonly key: Key } | { readonly policy: Keyless; readonly key?: readonly [] });
// Types of methods, so that verbs for known policies can be used where any policy is allowed.
type LocalCall<Request, Answer> = { ask(request: Request, options?: EmbeddedCallOptions): Answer & Decision }["ask"];
type Call<Request, Answer> = {
  ask(request: Request, options?: EmbeddedCallOptions): Promise<Answer & Decision>;
}["ask"];
