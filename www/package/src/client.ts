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

/** What the server says of one limit. Moments are of the server's clock. */
export interface LimitVerdict {
  readonly allowed: boolean;
  readonly cost: number;
  /** Tokens that moved, where that may be fewer than the cost. */
  readonly tokens?: number;
  readonly limit: number;
  readonly remaining: number;
  readonly owed?: number;
  readonly near_limit: boolean;
  readonly reset_at: number | null;
  readonly ready_at?: number;
  /** The first moment at which the same request would be granted; missing if it was, or if that is never. */
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
}

/** What the server says of a budget. */
export interface Verdict extends LimitVerdict {
  readonly policy: string;
  readonly now: number;
  readonly reservation?: string;
  readonly expires_at?: number;
  readonly replayed?: true;
  readonly degraded?: undefined;
  /** Each of the limits, where they have names; what is above is of the one that decides. */
  readonly limits?: readonly (LimitVerdict & { readonly name: string })[];
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
}

/** 200 too, where nothing could be decided and the policy lets pass then. */
export interface Degraded {
  readonly status: 200;
  readonly allowed: true;
  readonly policy: string;
  readonly degraded: "overloaded" | "timeout" | "failed";
  readonly now?: undefined;
  readonly remaining?: undefined;
  readonly snapshot?: undefined;
}

/** 429. */
export interface Refused extends Verdict, Refusing {
  readonly allowed: false;
}

/** What all that is refused has besides. */
interface Refusing {
  readonly status: 429;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly "violated-policies": readonly string[];
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
  readonly limits: readonly (LimitNumbers & {
    readonly remaining: number;
    readonly owed: number;
    readonly reset_at: number | null;
  })[];
  readonly snapshot?: readonly LimitSnapshot[];
}

/** 200: all of several. */
export interface BatchGranted {
  readonly status: 200;
  readonly allowed: true;
  readonly now: number;
  readonly replayed?: true;
  readonly degraded?: undefined;
  readonly results: readonly Verdict[];
}

/** 200 too, where nothing could be decided and all policies let pass then. */
export interface BatchDegraded {
  readonly status: 200;
  readonly allowed: true;
  readonly degraded: "overloaded" | "timeout" | "failed";
  readonly now?: undefined;
  readonly results: readonly Omit<Degraded, "status">[];
}

/** 429: none of several. */
export interface BatchRefused extends Refusing {
  readonly allowed: false;
  readonly now: number;
  readonly retry_at?: number;
  readonly retry_after_ms?: number;
  readonly results: readonly Verdict[];
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
  readonly consume = this.#asks<Request, Granted | Degraded | Refused | Problem>("consume");
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
  readonly batch = this.#asks<
    { readonly requests: readonly Request[] },
    BatchGranted | BatchDegraded | BatchRefused | Problem
  >("batch");
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
      const response = await fetcher.fetch(`${url}/v1/${endpoint}`, {
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
      throw new TollgateError("answer_malformed", `${url} answered ${status}, not as Tollgate does`);
    };
  }
}
