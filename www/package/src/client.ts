// Tollgate's HTTP API, typed. Names are those of the API.
import type { Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { systemClock } from "./clock.js";
import { TollgateError, type TollgateErrorCode } from "./errors.js";
import type { InlineLimits } from "./limit-settings.js";
import { throwing } from "./not-granted.js";

export { type AcquireRequest, acquire } from "./acquire.js";
export { TollgateError, type TollgateErrorCode, type TollgateErrorDetails } from "./errors.js";
export { type NotGranted, NotGrantedError, orThrow } from "./not-granted.js";
export { type RunRequest, run } from "./run.js";

/** Where the server is, and the credentials for it. */
export interface ClientOptions<Throws extends boolean = false> {
  /**
   * The server's address, such as `https://tollgate.example.com`. Through a service binding the host does not matter.
   */
  readonly url: string;
  /**
   * The bearer token, or a function that returns it, which is called for each request and counts against `timeoutMs`. A
   * token is for backends only: never send it to a browser. A page gets a grant from a function, or, if it asks
   * through your own backend, `null`.
   */
  readonly token: string | null | (() => string | Promise<string>);
  /** Sends the requests: a service binding such as `env.TOLLGATE`. Default: the global `fetch`. */
  readonly fetcher?: { fetch(url: string, init: RequestInit): Promise<Response> };
  /** How many milliseconds a call may take, up to the last byte of its answer: whole, less than 2³¹. Default: 10 000. */
  readonly timeoutMs?: number;
  /** Whether `consume` and `peek` reject with a {@link NotGrantedError} unless they are granted. Default: `false`. */
  readonly throws?: Throws;
}

/** The answers that a call returns: only grants, if others are thrown. */
export type Returned<Answers, Throws extends boolean> = Throws extends true
  ? Extract<Answers, { readonly allowed: true }>
  : Answers;

/**
 * Whose budget: a text, a list of 1 to 8 texts, or an address. Keys of different kinds are never the same. Addresses of one
 * IPv6 network count as one, by default the first 64 bits.
 */
export type Key = string | readonly string[] | { readonly ip: string };

/**
 * A service's policies as a type: their names, as in `"api" | "llm"`, or an object type with the names of each
 * one's limits, as in `{ api: never; llm: "requests" | "tokens" }`. `npx tollgate types` writes one. With `string`, any
 * name will do.
 */
export type PolicyNames = string | object;

/** The names of the policies. */
export type PolicyName<P extends PolicyNames> = keyof LimitNames<P> & string;

/** The names of each policy's limits: any text, if they are not known. */
export type LimitNames<P extends PolicyNames> = [P] extends [string] ? { readonly [Name in P]: string } : P;

/** Which budget, and how many tokens. */
export type BudgetCost<P extends PolicyNames = string> = {
  /** Required, unless the credential is a grant, which has its own key, or the policy has one budget for all. */
  readonly key?: Key;
  readonly snapshot?: boolean;
} & PolicyCost<LimitNames<P>>;

/** Limits under a name that no policy of the service has. The token must allow that. */
interface InlineCost {
  readonly policy: string;
  readonly limits: InlineLimits;
  readonly cost?: Cost<string>;
}

type PolicyCost<Limits> = string extends keyof Limits
  ? Omit<InlineCost, "limits"> & Partial<InlineCost>
  :
      | InlineCost
      | {
          [Name in keyof Limits]: {
            readonly policy: Name;
            readonly cost?: Cost<Limits[Name] & string>;
            readonly limits?: never;
          };
        }[keyof Limits]
      // A number fits all policies, even one whose name is known only at run time.
      | { readonly policy: keyof Limits & string; readonly cost?: number; readonly limits?: never };

/** Which budget to ask, and for what. The service's HTTP reference explains the members. */
export type BudgetRequest<P extends PolicyNames = string> = BudgetCost<P> & {
  readonly mode?: "take" | "reserve" | "borrow" | "up_to";
  readonly max_wait_ms?: number;
};

/** Which reservation to settle, cancel or extend. */
export type ReservationRequest<P extends PolicyNames = string> = BudgetRequest<P> & { readonly reservation: string };

/** The tokens wanted in advance, and those spent of earlier leases. */
export interface LeaseRequest {
  readonly policy: string;
  readonly key?: Key;
  /** What to take at once. */
  readonly cost?: Cost<string>;
  readonly tokens?: Cost<string>;
  readonly returned?: readonly { readonly lease: string; readonly spent: Cost<string> }[];
}

/** Options of a call. */
export interface CallOptions {
  /** Makes the request safe to repeat for as long as the policy's `idempotency_ttl` says, an hour by default: with the same key it takes only once. */
  readonly idempotencyKey?: string;
  readonly signal?: AbortSignal;
}

/** Whether the policies of an answer were up to date. */
interface UnderPolicies {
  /** The policies may have changed: the registry did not answer. */
  readonly stale_policies?: true;
}

/** An answer as received. */
export interface Answer {
  /** The headers, such as `Retry-After` and `RateLimit`. Not enumerable, so JSON leaves them out. */
  readonly headers: Headers;
}

/** The server's verdict on one limit alone: if another refuses, nothing is taken. Moments are by the server's clock. */
export interface LimitVerdict {
  readonly allowed: boolean;
  readonly cost: number;
  /** How many tokens were taken or given back, if that may be fewer than the cost. */
  readonly tokens?: number;
  /** How many tokens of a charge or settlement could not be taken, because of `max_debt`. */
  readonly unpaid?: number;
  readonly limit: number;
  readonly remaining: number;
  readonly owed?: number;
  /** By how many tokens a soft limit is exceeded. */
  readonly over?: number;
  readonly near_limit: boolean;
  readonly reset_at: number | null;
  /** When the tokens may be used, for the `mode`s `reserve` and `borrow`. */
  readonly ready_at?: number;
  /** The first moment at which the same request would be granted; absent if it was granted, or never would be. */
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
}

/** The server's verdict on a budget. */
export interface Verdict extends Omit<LimitVerdict, "limit" | "remaining"> {
  readonly policy: string;
  /** Absent, as `remaining`, if the policy enforces no limit. */
  readonly limit?: number;
  readonly remaining?: number;
  readonly now: number;
  readonly reservation?: string;
  readonly expires_at?: number;
  readonly replayed?: true;
  /** The reservation that was settled or cancelled had expired. */
  readonly late?: true;
  readonly degraded?: undefined;
  /** Each limit, if limits have names; the members above are those of the limit that decides. */
  readonly limits?: readonly (LimitVerdict & { readonly name: string })[];
  /** What each limit in the mode `shadow` would have decided. It has no part in the decision. */
  readonly shadow?: readonly (LimitVerdict & { readonly name?: string })[];
  /** The limits' numbers and states, if the request asked for them. */
  readonly snapshot?: readonly LimitSnapshot[];
}

/** The server's numbers of a limit. */
export interface LimitNumbers {
  readonly name?: string;
  /**
   * A `first_use_window` opens when something is taken from a full bucket. Slots are given back by reservations. In a snapshot, the last
   * token of a `rolling_window` is back `period_ms` after its `at`.
   */
  readonly kind: "token_bucket" | "fixed_window" | "first_use_window" | "rolling_window" | "slots";
  readonly rate: number;
  /** Of a calendar, the length of its longest window, or in a snapshot of the one that is open. */
  readonly period_ms: number;
  /** Of windows of a calendar: their length, on which day they open and the time zone, such as `month 15 America/Sao_Paulo`. */
  readonly calendar?: string;
  readonly capacity: number;
  readonly max_debt: number;
  /** It never refuses, and counts below zero. */
  readonly soft?: true;
}

/** The server's numbers of a limit, with the state of one key. */
export type LimitSnapshot = LimitNumbers & Omit<Snapshot, "returns">;

/** 200: granted. */
export interface Granted extends Verdict, Answer, UnderPolicies {
  readonly status: 200;
  readonly allowed: true;
  readonly retry_at?: never;
  readonly retry_after_ms?: never;
  /** An override lets the key take whatever it asks for. */
  readonly unlimited?: true;
  /** Decided from tokens that the service had set aside; `remaining` is as if nothing else had been taken since. */
  readonly source?: "lease";
}

/** 200: a reservation lasts until `expires_at`. To be settled or cancelled. */
export interface Extended extends Granted {
  readonly reservation: string;
  readonly expires_at: number;
}

/** 200: granted in advance, by `mode: "reserve"`. */
export interface Reserved extends Extended {
  /** When the tokens may be used. */
  readonly ready_at: number;
}

/** 200, but the server could not decide, and the policy lets requests pass in that case. */
export interface Degraded extends Answer, UnderPolicies {
  readonly status: 200;
  readonly allowed: true;
  readonly policy: string;
  readonly degraded: Cause;
  readonly now?: undefined;
  readonly remaining?: undefined;
  readonly snapshot?: undefined;
}

/** 429: refused. */
export interface Refused extends Omit<Verdict, "ready_at">, RefusedMembers {
  readonly allowed: false;
  readonly ready_at?: undefined;
  /** The key is banned, by an override or by its policy's `ban`, until `retry_at` if there is one. */
  readonly banned?: true;
  readonly limit: number;
  readonly remaining: number;
}

/** Additional members of every refusal. */
interface RefusedMembers extends Answer, UnderPolicies {
  readonly status: 429;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly "violated-policies": readonly string[];
  readonly max_cost?: undefined;
  readonly cause?: undefined;
  /** `"cache"`: by an earlier refusal, for a moment, without asking the budget again. `"lease"`: see {@link Granted.source}. */
  readonly source?: "cache" | "lease";
}

/** Any other status: a problem, as RFC 9457 defines it. */
export interface Problem extends Answer, UnderPolicies {
  readonly status: 400 | 401 | 403 | 404 | 405 | 408 | 409 | 413 | 415 | 422 | 500 | 503;
  readonly allowed?: undefined;
  readonly now?: undefined;
  readonly retry_at?: undefined;
  readonly retry_after_ms?: undefined;
  readonly snapshot?: undefined;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  /** 400: the largest cost that could ever be granted. */
  readonly max_cost?: number;
  /** 403: the scope that the token lacks, if that is the reason. */
  readonly scope?: "consume" | "adjust" | "admin";
  /**
   * 503: why the server could not decide. After `timeout` and `failed` the request may have been done, and only one with an
   * idempotency key is safe to repeat. After `overloaded` it was not done.
   */
  readonly cause?: Cause;
}

/** 200: tokens in advance, or when there could be some. Moments are by the server's clock. */
export interface Leased extends Answer, UnderPolicies {
  readonly status: 200;
  readonly policy: string;
  readonly now: number;
  readonly replayed?: true;
  readonly degraded?: undefined;
  /** Whether the cost was taken, if there was one. */
  readonly allowed?: boolean;
  readonly lease?: string;
  readonly tokens: Cost<string>;
  readonly from?: number;
  readonly until?: number;
  readonly remaining?: number;
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
}

/** 200: the state of a budget. */
export interface Inspection extends Answer, UnderPolicies {
  readonly status: 200;
  /** The key is banned, by an override or by its policy's `ban`. */
  readonly banned?: true;
  readonly banned_until?: number;
  /** An override lets the key take whatever it asks for. */
  readonly unlimited?: true;
  readonly policy: string;
  readonly now: number;
  readonly open_reservations: number;
  readonly limits: readonly (LimitNumbers & {
    readonly remaining: number;
    readonly owed: number;
    readonly reset_at: number | null;
  })[];
  /** The limits in the mode `shadow`. */
  readonly shadow?: Inspection["limits"];
  /** The names of the limits in the mode `off`. */
  readonly off?: readonly string[];
  readonly snapshot?: readonly LimitSnapshot[];
}

/** 200: all requests of a batch were granted. */
export interface BatchGranted extends Answer, UnderPolicies {
  readonly status: 200;
  readonly allowed: true;
  readonly now: number;
  /** Of a batch of one request: see {@link Granted.source}. */
  readonly source?: "lease";
  readonly replayed?: true;
  readonly degraded?: undefined;
  readonly results: readonly (Verdict | DegradedResult)[];
}

/** Why the server could not decide. */
type Cause = "overloaded" | "timeout" | "failed";

/** 200, but the server could not decide, and all policies let requests pass in that case. */
export interface BatchDegraded extends Answer, UnderPolicies {
  readonly status: 200;
  readonly allowed: true;
  readonly degraded: Cause;
  readonly now?: undefined;
  readonly results: readonly DegradedResult[];
}

/** 429: a request of the batch was refused, and so none took anything. */
export interface BatchRefused extends RefusedMembers {
  readonly allowed: false;
  readonly now: number;
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
  readonly results: readonly (Verdict | Undecided | DegradedResult)[];
}

/** A request of a batch that the server could not decide, and that its policy lets pass, as one whose limits are all soft or in shadow does. */
export type DegradedResult = Omit<Degraded, "status" | "headers">;

/** A request of a refused batch that was not decided, and why. */
export interface Undecided {
  readonly policy: string;
  readonly allowed?: undefined;
  readonly undecided: Cause;
}

/** 200: what {@link Client.spend} reserved is spent. */
export interface Spent<Result> {
  readonly status: 200;
  /** What the work returned. */
  readonly result: Result;
  /** How the reservation was settled: `late` if it had expired meanwhile. If that failed, it keeps its full cost or none, as the policy says. */
  readonly settled: Granted | Problem | TollgateError;
}

/**
 * A client of Tollgate's HTTP API. An answer of any status is a value, unless `throws` is set. Anything but an answer is thrown: a
 * {@link TollgateError} with a `cause`, or the reason of an aborted signal.
 *
 * ```js
 * const tollgate = new Client({ url: "https://tollgate.example.com", token });
 * const answer = await tollgate.consume({ policy: "api", key: "alice" });
 * if (answer.status === 429) return wait(answer.retry_after_ms);
 * ```
 */
export class Client<P extends PolicyNames = string, Throws extends boolean = false> {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  declare readonly consume: {
    ask(
      request: BudgetRequest<P> & { readonly mode: "reserve" },
      options?: CallOptions,
    ): Promise<Returned<Reserved | Refused | Problem, Throws>>;
    ask(
      request: BudgetRequest<P>,
      options?: CallOptions,
    ): Promise<Returned<Granted | Degraded | Refused | Problem, Throws>>;
  }["ask"];
  /** Returns the answer that {@link consume} would give, and takes nothing. */
  declare readonly peek: Call<BudgetRequest<P>, Returned<Granted | Refused | Problem, Throws>>;
  /** Debits what was already used. */
  declare readonly charge: Call<BudgetRequest<P>, Granted | Problem>;
  /** Gives tokens back. */
  declare readonly refund: Call<BudgetRequest<P>, Granted | Problem>;
  /** Fills all limits. */
  declare readonly reset: Call<BudgetRequest<P>, Granted | Problem>;
  /** Returns the state of a budget. */
  declare readonly inspect: Call<BudgetRequest<P>, Inspection | Problem>;
  /** Closes a reservation at its real cost; without a `cost`, at the reserved one. */
  declare readonly settle: Call<ReservationRequest<P>, Granted | Problem>;
  /** Closes a reservation at no cost. */
  declare readonly cancel: Call<ReservationRequest<P>, Granted | Problem>;
  /**
   * Extends a reservation to its policy's `reservation_ttl` from now, unless it already lasts longer. Takes the `cost`, if any, from all
   * limits; if one refuses, nothing changes.
   */
  declare readonly extend: Call<ReservationRequest<P>, Extended | Refused | Problem>;
  /** Consumes from several budgets: from all of them, or from none. */
  declare readonly batch: Call<
    { readonly requests: readonly BudgetRequest<P>[] },
    BatchGranted | BatchDegraded | BatchRefused | Problem
  >;

  /** Takes tokens in advance, and returns some: for `LeasingLimiter` of `tollgate/leases`. Needs the scope `adjust`. */
  declare readonly lease: Call<LeaseRequest, Leased | Degraded | Problem>;

  constructor({ url, token, fetcher = globalThis, timeoutMs = 10_000, throws }: ClientOptions<Throws>) {
    if (!token && token !== null) throw new TollgateError("token_missing", "no token");
    if ((timeoutMs & LONGEST_TIMER_MS) !== timeoutMs)
      throw new TollgateError("timeoutMs_not_whole", `timeoutMs: 0 to ${LONGEST_TIMER_MS}, not ${timeoutMs}`);
    if (typeof token === "string" && globalThis.document) warn();
    for (const name of "consume peek charge refund reset inspect settle cancel extend batch lease".split(" "))
      (this as unknown as Record<string, Call<unknown, unknown>>)[name] = async (
        request,
        { idempotencyKey, signal } = {},
      ) => {
        const address = url.replace(/\/*$/, "/v1/") + name;
        const late = AbortSignal.timeout(timeoutMs);
        const ends = AbortSignal.any([signal ?? late, late]);
        let fault: TollgateErrorCode = "token_missing";
        try {
          ends.throwIfAborted();
          const bearer =
            typeof token === "function"
              ? await Promise.race([
                  token(),
                  new Promise<never>((_, reject) => {
                    ends.onabort = reject;
                  }),
                ])
              : token;
          if (!bearer && bearer !== null) throw new Error(fault);
          fault = "network_failed";
          const response = await fetcher.fetch(address, {
            method: "POST",
            headers: {
              "content-type": "application/json",
              ...(bearer && { authorization: `Bearer ${bearer}` }),
              ...(idempotencyKey !== undefined && { "idempotency-key": idempotencyKey }),
            },
            body: JSON.stringify(request),
            signal: ends,
          });
          const text = await response.text();
          fault = "answer_malformed";
          const answer = JSON.parse(text);
          if (!(answer.policy ?? answer.results ?? answer.type)) throw new Error(text);
          answer.status = response.status;
          return Object.defineProperty(answer, "headers", { value: response.headers });
        } catch (cause) {
          signal?.throwIfAborted();
          throw new TollgateError(late.aborted ? "timeout" : fault, address, { cause: ends.reason ?? cause });
        }
      };
    if (throws) Object.assign(this, throwing(this));
  }

  /**
   * Reserves the cost, waits until it may be used, calls `work`, extends the reservation until that ends, and settles it at
   * the cost that `work` has reported last; if it has not, at the reserved one. If `work` throws, as it should when it is aborted, settles what it
   * has reported, or else cancels the reservation. Without an answer or after a 503, this is repeated, three times at most; if it
   * fails, that is reported on the console. With an `idempotencyKey` the reservation is requested again in the same way; without one,
   * what a lost answer reserved stays reserved until it expires. A grant needs the verb `extend` for longer work. Returns the answer of the server if that is not a reservation.
   *
   * ```js
   * const spent = await tollgate.spend({ policy: "llm", key, cost: { requests: 1, tokens: 4000 } }, async (report) => {
   *   const reply = await ask(prompt);
   *   report({ requests: 1, tokens: reply.tokens });
   *   return reply;
   * });
   * if (spent.status === 200) show(spent.result);
   * ```
   */
  async spend<Result>(
    request: BudgetRequest<P>,
    work: (report: (cost: NonNullable<Exclude<BudgetRequest<P>, InlineCost>["cost"]>) => void) => Result,
    options?: CallOptions,
  ): Promise<Spent<Awaited<Result>> | Refused | Problem> {
    const { signal, ...keyed } = options ?? {};
    signal?.throwIfAborted();
    // An abort does not end the wait for this answer: only then can the reservation be cancelled.
    const reserve = () => this.consume({ max_wait_ms: LONGEST_TIMER_MS, ...request, mode: "reserve" }, keyed);
    const reserving = keyed.idempotencyKey === undefined ? reserve() : persistently(reserve, signal);
    const answer = await reserving.catch((error) => {
      signal?.throwIfAborted();
      throw error;
    });
    if (!answer.allowed) {
      signal?.throwIfAborted();
      return answer;
    }
    // Undefined members are not sent.
    const only = { cost: undefined, mode: undefined, max_wait_ms: undefined };
    const reserved: object = { ...request, ...only, reservation: answer.reservation };
    let cost: Cost<string> | undefined;
    const close = async (verb: "settle" | "cancel", cost?: Cost<string>): Promise<Granted | Problem> =>
      this[verb]({ ...reserved, cost } as ReservationRequest<P>);
    const asValue = (error: TollgateError) => error;
    const over = new AbortController();
    const keep = async ({ now, expires_at }: Extended): Promise<void> => {
      for (let endsAt = systemClock.now() + expires_at - now; ; ) {
        await sleep((endsAt - systemClock.now()) / 2, over.signal);
        const sentAt = systemClock.now();
        const extended = await this.extend(reserved as ReservationRequest<P>, { signal: over.signal }).catch(asValue);
        over.signal.throwIfAborted();
        if ("allowed" in extended && extended.allowed) endsAt = sentAt + extended.expires_at - extended.now;
        else if (("status" in extended && extended.status < 500) || systemClock.now() + FIRST_PAUSE_MS > endsAt)
          return console.warn("tollgate: could not extend:", extended);
      }
    };
    let result: Awaited<Result>;
    try {
      keep(answer).catch(() => {});
      await sleep(answer.ready_at - answer.now, signal);
      result = await work((real) => {
        cost = typeof real === "object" ? { ...real } : real;
      });
    } catch (error) {
      over.abort();
      const reported = cost;
      // The caller does not see this answer. A reservation is closed once, however often this is repeated.
      const verb = reported === undefined ? "cancel" : "settle";
      const closing = persistently(() => close(verb, reported), verb === "cancel" ? signal : undefined);
      const closed = await closing.catch(asValue);
      if (!("status" in closed && closed.status === 200))
        console.warn(`tollgate: could not ${verb}:`, reported, closed);
      throw error;
    } finally {
      over.abort();
    }
    return { status: 200, result, settled: await close("settle", cost).catch(asValue) };
  }
}

/** Calls again without an answer and after a 503, with growing pauses; after an abort once, at once: then what was done can be cancelled. */
async function persistently<Answer>(call: () => Promise<Answer>, signal?: AbortSignal): Promise<Answer> {
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs *= 2) {
    const isLast = pauseMs > LAST_PAUSE_MS || signal?.aborted;
    const answered = call();
    // A client that throws has the answer in its error.
    const { answer, status = answer?.status ?? 503 } = await answered.catch((error) => error);
    if (status !== 503 || isLast) return answered;
    await sleep(pauseMs * (1 - Math.random() / 2), signal).catch(() => {});
  }
}

/** Rejects at an abort. */
async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  if (ms <= 0) return;
  await new Promise<void>((resolve) => {
    const end = () => {
      cancel();
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const cancel = systemClock.at(systemClock.now() + ms, end);
    signal?.addEventListener("abort", end);
  });
  signal?.throwIfAborted();
}

/** A method's type, so that a client of known policies can be used where any policy is allowed. */
type Call<Request, Answer> = { ask(request: Request, options?: CallOptions): Promise<Answer> }["ask"];

let warn = () => {
  warn = () => {};
  console.warn("tollgate: public token");
};
/** The pauses before a call is repeated: about one second, then two, then four. */
const FIRST_PAUSE_MS = 1_000;
const LAST_PAUSE_MS = 4_000;
/** The longest delay of `setTimeout`; with a longer one it fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
