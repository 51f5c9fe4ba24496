// Tollgate's HTTP API, typed. Names are those of the API.
import type { Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { TollgateError } from "./errors.js";

/** Where the server is, and the credentials for it. */
export interface ClientOptions {
  /**
   * The server's address, such as `https://tollgate.example.com`. Through a service binding the host does not matter.
   */
  readonly url: string;
  /** The bearer token, or a function that returns it. It is for backends only: never send it to a browser. */
  readonly token: string | (() => string | Promise<string>);
  /** Sends the requests: a service binding such as `env.TOLLGATE`. Default: the global `fetch`. */
  readonly fetcher?: { fetch(url: string, init: RequestInit): Promise<Response> };
}

/** Which budget to ask, and for what. The service's HTTP reference explains the members. */
export interface Request {
  readonly policy: string;
  readonly key: string;
  readonly cost?: Cost<string>;
  readonly mode?: "take" | "reserve" | "borrow" | "up_to";
  readonly max_wait_ms?: number;
  readonly snapshot?: boolean;
}

/** Which reservation to settle or cancel. */
export interface Reserved extends Request {
  readonly reservation: string;
}

/** Options of a call. */
export interface CallOptions {
  /** Makes the request safe to repeat: with the same key it takes only once. */
  readonly idempotencyKey?: string;
  readonly signal?: AbortSignal;
}

/** The server's verdict on one limit. Moments are by the server's clock. */
export interface LimitVerdict {
  readonly allowed: boolean;
  readonly cost: number;
  /** How many tokens were taken or given back, where that may be fewer than the cost. */
  readonly tokens?: number;
  readonly limit: number;
  readonly remaining: number;
  readonly owed?: number;
  readonly near_limit: boolean;
  readonly reset_at: number | null;
  readonly ready_at?: number;
  /** The first moment at which the same request would be granted; absent if it was granted, or never would be. */
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
}

/** The server's verdict on a budget. */
export interface Verdict extends LimitVerdict {
  readonly policy: string;
  readonly now: number;
  readonly reservation?: string;
  readonly expires_at?: number;
  readonly replayed?: true;
  readonly degraded?: undefined;
  /** Each limit, where limits have names; the members above are those of the limit that decides. */
  readonly limits?: readonly (LimitVerdict & { readonly name: string })[];
  /** The limits' numbers and states, if the request asked for them. */
  readonly snapshot?: readonly LimitSnapshot[];
}

/** A limit as the server has it. */
export interface LimitNumbers {
  readonly name?: string;
  readonly kind: "token_bucket" | "fixed_window";
  readonly rate: number;
  readonly period_ms: number;
  readonly capacity: number;
  readonly max_debt: number;
}

/** A limit as the server has it, with the state of one key. */
export type LimitSnapshot = LimitNumbers & Snapshot;

/** 200: granted. */
export interface Granted extends Verdict {
  readonly status: 200;
  readonly allowed: true;
}

/** 200, but the server could not decide, and the policy lets requests pass in that case. */
export interface Degraded {
  readonly status: 200;
  readonly allowed: true;
  readonly policy: string;
  readonly degraded: "overloaded" | "timeout" | "failed";
  readonly now?: undefined;
  readonly remaining?: undefined;
  readonly snapshot?: undefined;
}

/** 429: refused. */
export interface Refused extends Verdict, RefusedMembers {
  readonly allowed: false;
}

/** Additional members of every refusal. */
interface RefusedMembers {
  readonly status: 429;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly "violated-policies": readonly string[];
}

/** Any other status: a problem, as RFC 9457 defines it. */
export interface Problem {
  readonly status: 400 | 401 | 404 | 405 | 408 | 409 | 413 | 415 | 422 | 500 | 503;
  readonly allowed?: undefined;
  readonly now?: undefined;
  readonly snapshot?: undefined;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  /** 400: the largest cost that could ever be granted. */
  readonly max_cost?: number;
  /**
   * 503: why the server could not decide. After `timeout` and `failed` the request may have been done, and only one with an
   * idempotency key is safe to repeat. After `overloaded` it was not done.
   */
  readonly cause?: "overloaded" | "timeout" | "failed";
}

/** 200: the state of a budget. */
export interface Inspection {
  readonly status: 200;
  readonly policy: string;
  readonly now: number;
  readonly open_reservations: number;
  readonly limits: readonly (LimitNumbers & {
    readonly remaining: number;
    readonly owed: number;
    readonly reset_at: number | null;
  })[];
  readonly snapshot?: readonly LimitSnapshot[];
}

/** 200: all requests of a batch were granted. */
export interface BatchGranted {
  readonly status: 200;
  readonly allowed: true;
  readonly now: number;
  readonly replayed?: true;
  readonly degraded?: undefined;
  readonly results: readonly Verdict[];
}

/** 200, but the server could not decide, and all policies let requests pass in that case. */
export interface BatchDegraded {
  readonly status: 200;
  readonly allowed: true;
  readonly degraded: "overloaded" | "timeout" | "failed";
  readonly now?: undefined;
  readonly results: readonly Omit<Degraded, "status">[];
}

/** 429: a request of the batch was refused, and so none took anything. */
export interface BatchRefused extends RefusedMembers {
  readonly allowed: false;
  readonly now: number;
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
  readonly results: readonly Verdict[];
}

/**
 * A client of Tollgate's HTTP API. An answer of any status is a value; only a network failure or a response that is not
 * Tollgate's throws.
 *
 * ```js
 * const tollgate = new Client({ url: "https://tollgate.example.com", token });
 * const answer = await tollgate.consume({ policy: "api", key: "alice" });
 * if (answer.status === 429) return wait(answer.retry_after_ms);
 * ```
 */
export class Client {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  readonly consume = this.#endpoint<Request, Granted | Degraded | Refused | Problem>("consume");
  /** Returns the answer that {@link consume} would give, and takes nothing. */
  readonly peek = this.#endpoint<Request, Granted | Refused | Problem>("peek");
  /** Debits what was already used. */
  readonly charge = this.#endpoint<Request, Granted | Problem>("charge");
  /** Gives tokens back. */
  readonly refund = this.#endpoint<Request, Granted | Problem>("refund");
  /** Fills all limits. */
  readonly reset = this.#endpoint<Request, Granted | Problem>("reset");
  /** Returns the state of a budget. */
  readonly inspect = this.#endpoint<Request, Inspection | Problem>("inspect");
  /** Closes a reservation at its real cost; without a `cost`, at the reserved one. */
  readonly settle = this.#endpoint<Reserved, Granted | Problem>("settle");
  /** Closes a reservation at no cost. */
  readonly cancel = this.#endpoint<Reserved, Granted | Problem>("cancel");
  /** Consumes from several budgets: from all of them, or from none. */
  readonly batch = this.#endpoint<
    { readonly requests: readonly Request[] },
    BatchGranted | BatchDegraded | BatchRefused | Problem
  >("batch");
  readonly #options: ClientOptions;

  constructor(options: ClientOptions) {
    this.#options = options;
  }

  #endpoint<Body, Answer>(name: string): (request: Body, options?: CallOptions) => Promise<Answer> {
    return async (request, { idempotencyKey, signal } = {}) => {
      const { url, token, fetcher = globalThis } = this.#options;
      const headers: Record<string, string> = {
        authorization: `Bearer ${typeof token === "string" ? token : await token()}`,
        "content-type": "application/json",
      };
      if (idempotencyKey !== undefined) headers["idempotency-key"] = idempotencyKey;
      const response = await fetcher.fetch(`${url}/v1/${name}`, {
        method: "POST",
        headers,
        body: JSON.stringify(request),
        signal: signal ?? null,
      });
      const { status } = response;
      const text = await response.text();
      try {
        const answer = JSON.parse(text);
        if (answer.policy ?? answer.results ?? answer.type) return { ...answer, status };
      } catch {}
      throw new TollgateError("answer_malformed", `${url} answered ${status}, but not as Tollgate does`);
    };
  }
}
