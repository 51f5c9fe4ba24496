// Tollgate inside another Worker: the whole service, prebuilt, with types.
import type {
  BatchDegraded,
  BatchGranted,
  BatchRefused,
  BudgetRequest,
  CallOptions,
  Degraded,
  Granted,
  Inspection,
  Problem,
  Refused,
  ReservationRequest,
  Reserved,
} from "./client.js";
// @ts-expect-error: likewise
import * as embedded from "./worker/embedded.mjs";
// @ts-expect-error: scripts/build-package puts it there, from src/worker.
import * as built from "./worker/entry.mjs";

export type * from "./client.js";

/** One limit. The page of the policies explains the members. */
export interface LimitSettings {
  readonly kind?: "token_bucket" | "fixed_window";
  /** Tokens that come back in each period. */
  readonly rate: number;
  /** A length of time such as `"250ms"`, `"1m"` or `"1day"`. */
  readonly period: string;
  /** The most tokens at once. Default: `rate`. */
  readonly capacity?: number;
  /** How far below zero reservations and charges may take it, in tokens. Default: 0. */
  readonly max_debt?: number;
  /** Tokens of a key never seen before. Default: `capacity`. */
  readonly initial?: number;
  /** Where fixed windows begin, after midnight UTC of 1 January 1970. Default: by key. */
  readonly offset?: string;
  /** Tokens that may be spent without a write, and so the most a crash can cost. */
  readonly write_ahead?: number;
}

/** One limit, or several, all of which must pass. */
export type PolicySettings = (
  | LimitSettings
  | { readonly limits: readonly (LimitSettings & { readonly name: string })[] }
) & {
  readonly on_error?: "closed" | "open" | readonly ("timeout" | "failed" | "overloaded")[];
  /** How long after its start a reservation can be settled. Default: `"10m"`. */
  readonly reservation_ttl?: string;
  /** What an unsettled reservation costs when it expires. Default: `"keep"`, all of it. */
  readonly unsettled?: "keep" | "refund";
};

/** The namespace of the objects: a Durable Object binding for {@link KeyObject}. */
export interface KeyNamespace {
  // biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
  getByName(name: string): any;
}

/** What an embedded answer can do beside telling. */
export interface Decision {
  /** The response that the service would have sent: status, headers and body. */
  response(): Response;
  /**
   * The given response with the rate-limit headers of this answer, and the `Retry-After` of a refusal. The same object, or a
   * copy if its headers cannot be changed; its body goes on streaming.
   */
  apply(response: Response): Response;
}

/** Options of a call. */
export type EmbeddedCallOptions = Pick<CallOptions, "idempotencyKey">;

/** Every verb of the HTTP API, as in {@link Client}. `Name` are the names of the policies, where they are known. */
export interface Embedded<Name extends string = string> {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  consume: {
    (
      request: Of<BudgetRequest, Name> & { readonly mode: "reserve" },
      options?: EmbeddedCallOptions,
    ): Promise<(Reserved | Refused | Problem) & Decision>;
    (
      request: Of<BudgetRequest, Name>,
      options?: EmbeddedCallOptions,
    ): Promise<(Granted | Degraded | Refused | Problem) & Decision>;
  };
  /** Returns the answer that `consume` would give, and takes nothing. */
  peek: Call<Of<BudgetRequest, Name>, Granted | Refused | Problem>;
  /** Debits what was already used. */
  charge: Call<Of<BudgetRequest, Name>, Granted | Problem>;
  /** Gives tokens back. */
  refund: Call<Of<BudgetRequest, Name>, Granted | Problem>;
  /** Fills all limits. */
  reset: Call<Of<BudgetRequest, Name>, Granted | Problem>;
  /** Returns the state of a budget. */
  inspect: Call<Of<BudgetRequest, Name>, Inspection | Problem>;
  /** Closes a reservation at its real cost; without a `cost`, at the reserved one. */
  settle: Call<Of<ReservationRequest, Name>, Granted | Problem>;
  /** Closes a reservation at no cost. */
  cancel: Call<Of<ReservationRequest, Name>, Granted | Problem>;
  /** Consumes from several budgets: from all of them, or from none. */
  batch: Call<
    { readonly requests: readonly Of<BudgetRequest, Name>[] },
    BatchGranted | BatchDegraded | BatchRefused | Problem
  >;
}

/**
 * Every verb of the HTTP API, in your own Worker: without HTTP, without a token, one call of an object for each decision. An
 * answer of any status is a value. Cheap to call for each request: the same arguments give the same object.
 *
 * The policies are those of the variable `POLICIES`, or `policies`, whose names TypeScript then knows. `keys` is the namespace of
 * the objects, by default the binding `KEYS`.
 *
 * ```js
 * import { tollgate } from "tollgate/worker";
 * export { KeyObject } from "tollgate/worker";
 *
 * export default {
 *   async fetch(request, env) {
 *     const decision = await tollgate(env).consume({ policy: "api", key: request.headers.get("cf-connecting-ip") });
 *     return decision.status === 429 ? decision.response() : decision.apply(new Response("Hello"));
 *   },
 * };
 * ```
 *
 * @throws {@link SettingsError} if the policies have errors, a policy is in both places, `TOLLGATE_KEY_SECRET` is too short, or the
 * binding is missing.
 */
export const tollgate: {
  <const P extends Readonly<Record<string, PolicySettings>>>(
    env: object,
    options: { readonly policies: P; readonly keys?: KeyNamespace },
  ): Embedded<keyof P & string>;
  <Name extends string = string>(env: object, options?: { readonly keys?: KeyNamespace }): Embedded<Name>;
} = embedded.tollgate;

/** What is wrong with the settings. */
export interface SettingsError extends Error {
  readonly name: "SettingsError";
  /** A line for each error. */
  readonly errors: readonly string[];
}
export const SettingsError: new (errors: readonly string[]) => SettingsError = embedded.SettingsError;

/** An object of the platform's class `DurableObject`: keeps all buckets of one key. */
export interface KeyObject {
  /** By this the platform's types tell Durable Objects. */
  readonly __DURABLE_OBJECT_BRAND: never;
}
/** The Durable Object class. Your Worker exports it, and binds it as `KEYS`. */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const KeyObject: new (context: any, env: any) => KeyObject = built.KeyObject;

/** An answer by RPC: plain values, without methods. */
export type Plain<Answer> = Answer extends unknown
  ? Omit<Answer, "headers"> & { readonly headers: Readonly<Record<string, string>> }
  : never;

/** An entry point of the platform's class `WorkerEntrypoint`. Its methods are those of {@link Embedded}, with plain answers. */
export interface Tollgate {
  /** By this the platform's types tell entry points. */
  readonly __WORKER_ENTRYPOINT_BRAND: never;
  /** The HTTP API, which asks no token of those who hold the binding. */
  fetch(request: Request): Promise<Response>;
  consume(
    request: BudgetRequest,
    options?: EmbeddedCallOptions,
  ): Promise<Plain<Granted | Degraded | Refused | Problem>>;
  peek(request: BudgetRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Refused | Problem>>;
  charge(request: BudgetRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  refund(request: BudgetRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  reset(request: BudgetRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  inspect(request: BudgetRequest, options?: EmbeddedCallOptions): Promise<Plain<Inspection | Problem>>;
  settle(request: ReservationRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  cancel(request: ReservationRequest, options?: EmbeddedCallOptions): Promise<Plain<Granted | Problem>>;
  batch(
    request: { readonly requests: readonly BudgetRequest[] },
    options?: EmbeddedCallOptions,
  ): Promise<Plain<BatchGranted | BatchDegraded | BatchRefused | Problem>>;
}
/** For service bindings: `[[services]]` with `entrypoint = "Tollgate"`. Holding the binding is the credential. */
// biome-ignore lint/suspicious/noExplicitAny: the platform's types are not ours
export const Tollgate: new (context: any, env: any) => Tollgate = built.Tollgate;

/** The service by HTTP, for callers with a token. */
const service: { fetch(request: Request, env: object): Promise<Response> } = built.default;
export default service;

type Of<Request, Name> = Omit<Request, "policy"> & { readonly policy: Name };
type Call<Request, Answer> = (request: Request, options?: EmbeddedCallOptions) => Promise<Answer & Decision>;
