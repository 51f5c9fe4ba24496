// Tollgate's HTTP API, typed. The names are those that go over the wire.
import type { Cost } from "./budget.js";
import type { Snapshot } from "./bucket.js";
import { TollgateError } from "./errors.js";

/** Where Tollgate is, and what to show it. */
export interface ClientOptions {
  /** Where it answers, as `https://tollgate.example.com`. Through a service binding, any. */
  readonly url: string;
  /** The bearer token, or what gives one. */
  readonly token: string | (() => string | Promise<string>);
  /** Who carries requests: a service binding such as `env.TOLLGATE`. If left out, the network. */
  readonly fetcher?: { fetch(url: string, init: RequestInit): Promise<Response> };
}

/** Whose budget is asked, and for what, as the README of the service says. */
export interface Request {
  readonly policy: string;
  readonly key: string;
  readonly cost?: Cost;
  readonly mode?: "take" | "reserve" | "borrow" | "up_to";
  readonly max_wait_ms?: number;
  readonly snapshot?: boolean;
}

/** Which reservation is to end. */
export interface Reserved extends Request {
  readonly reservation: string;
}

/** What goes along with a request. */
export interface CallOptions {
  /** With it the same request may be sent again, and takes only once. */
  readonly idempotencyKey?: string;
  readonly signal?: AbortSignal;
}

/** What the server says of a budget. Moments are of the server's clock. */
export interface Verdict {
  readonly policy: string;
  readonly cost: number;
  /** Tokens that moved, where that may be fewer than the cost. */
  readonly tokens?: number;
  readonly limit: number;
  readonly remaining: number;
  readonly owed?: number;
  readonly near_limit: boolean;
  readonly now: number;
  readonly reset_at: number | null;
  readonly ready_at?: number;
  readonly reservation?: string;
  readonly expires_at?: number;
  readonly replayed?: boolean;
  readonly limits?: readonly (Omit<Verdict, "limits" | "policy" | "now"> & { readonly name: string; readonly allowed: boolean; readonly retry_at?: number })[];
  /** The limits' numbers and states, if they were asked for. */
  readonly snapshot?: readonly LimitSnapshot[];
}

/** A limit of the server. */
export interface LimitNumbers {
  readonly name?: string;
  readonly kind: "token_bucket" | "fixed_window";
  readonly rate: number;
  readonly period_ms: number;
  readonly capacity: number;
  readonly max_debt: number;
}

/** A limit of the server, with the state of one key. */
export type LimitSnapshot = LimitNumbers & Snapshot;

/** 200. */
export interface Granted extends Verdict {
  readonly status: 200;
  readonly allowed: true;
  /** Why nothing could be decided, where the policy lets pass then; everything else is missing. */
  readonly degraded?: "overloaded" | "timeout" | "failed";
}

/** 429. */
export interface Refused extends Verdict {
  readonly status: 429;
  readonly allowed: false;
  readonly title: string;
  readonly detail: string;
  /** The first moment at which the same request would be granted; missing if that is never. */
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
}

/** Anything else: what is wrong, as RFC 9457 has it. */
export interface Problem {
  readonly status: 400 | 401 | 404 | 405 | 409 | 413 | 415 | 422 | 500 | 503;
  readonly allowed?: undefined;
  readonly now?: undefined;
  readonly snapshot?: undefined;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  /** 400: the largest cost that could ever be granted. */
  readonly max_cost?: number;
  /** 503. */
  readonly cause?: "overloaded" | "timeout" | "failed";
}

/** How the budgets of a key stand. */
export interface Inspection {
  readonly status: 200;
  readonly policy: string;
  readonly now: number;
  readonly open_reservations: number;
  readonly limits: readonly (LimitNumbers & { readonly remaining: number; readonly owed: number; readonly reset_at: number | null })[];
  readonly snapshot?: readonly LimitSnapshot[];
}

/** All or none of several. */
export interface Batch<Status extends 200 | 429> {
  readonly status: Status;
  readonly allowed: Status extends 200 ? true : false;
  readonly now: number;
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
  readonly results: readonly (Verdict & { readonly allowed: boolean; readonly retry_at?: number })[];
}

/**
 * Asks a Tollgate server, by the names of its HTTP API. An answer is a value, whatever its status; only the network, and what is no answer, throws.
 *
 * ```js
 * const tollgate = new Client({ url: "https://tollgate.example.com", token });
 * const answer = await tollgate.consume({ policy: "api", key: "alice" });
 * if (answer.status === 429) return wait(answer.retry_after_ms);
 * ```
 */
export class Client {
  /** Takes tokens, or reserves or borrows them, as `mode` says. */
  readonly consume = this.#asks<Request, Granted | Refused | Problem>("consume");
  /** The answer that {@link consume} would give, with nothing taken. */
  readonly peek = this.#asks<Request, Granted | Refused | Problem>("peek");
  /** Debits what has already happened. */
  readonly charge = this.#asks<Request, Granted | Problem>("charge");
  /** Gives back. */
  readonly refund = this.#asks<Request, Granted | Problem>("refund");
  /** Fills up. */
  readonly reset = this.#asks<Request, Granted | Problem>("reset");
  /** Says how the budgets of a key stand. */
  readonly inspect = this.#asks<Request, Inspection | Problem>("inspect");
  /** Ends a reservation at its real cost. */
  readonly settle = this.#asks<Reserved, Granted | Problem>("settle");
  /** Ends a reservation at no cost. */
  readonly cancel = this.#asks<Reserved, Granted | Problem>("cancel");
  /** Consumes from several budgets, all or none. */
  readonly batch = this.#asks<{ readonly requests: readonly Request[] }, Batch<200> | Batch<429> | Problem>("batch");
  readonly #options: ClientOptions;

  constructor(options: ClientOptions) {
    this.#options = options;
  }

  #asks<Asked, Answer>(endpoint: string): (request: Asked, options?: CallOptions) => Promise<Answer> {
    return async (request, { idempotencyKey, signal } = {}) => {
      const { url, token, fetcher = globalThis } = this.#options;
      const headers: Record<string, string> = {
        authorization: `Bearer ${typeof token === "string" ? token : await token()}`,
        "content-type": "application/json",
      };
      if (idempotencyKey !== undefined) headers["idempotency-key"] = idempotencyKey;
      const response = await fetcher.fetch(`${url}/v1/${endpoint}`, { method: "POST", headers, body: JSON.stringify(request), signal: signal ?? null });
      const { status } = response;
      const text = await response.text();
      try {
        return { ...(JSON.parse(text) as Answer), status };
      } catch {
        throw new TollgateError("answer_malformed", `${url} answered ${status}, and no JSON`);
      }
    };
  }
}
