// The service that an operator works on: its address, the token for it, and its answers.
import { Mistake } from "./arguments.js";
import { plain } from "./printed.js";

/** The service has refused. Printed on one line; the command then ends with 1. */
export class Refusal extends Error {
  readonly problem: Problem;

  constructor(problem: Problem, hint: string) {
    const { title, status, detail } = problem;
    super(plain(`${title} (${status}): ${detail}${hint && `; ${hint}`}`));
    this.problem = problem;
  }
}

/** A problem answered by the service. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly scope?: string;
  readonly stale_policies?: true;
}

/** An answer as received, and as JSON. */
export interface Answer<Body> {
  readonly text: string;
  readonly body: Body;
}

/** The rest of a request, beside method and path. */
export interface Sent {
  /** Sent as JSON. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** Whether it changes something, which may happen even without an answer. */
  readonly changes?: boolean;
}

export class Service {
  /** Without a slash at its end. */
  readonly address: string;
  readonly #token: string;
  readonly #from: string;

  /** The service that TOLLGATE_URL names. */
  static ofEnvironment(): Service {
    const url = process.env.TOLLGATE_URL;
    if (!url)
      throw new Mistake("TOLLGATE_URL is not in the environment: the service, such as https://limits.example.com");
    return new Service(url, "TOLLGATE_URL");
  }

  /** The service at `url`, which comes from `from`. TOLLGATE_TOKEN is the token for it. */
  constructor(url: string, from: string) {
    this.#from = from;
    this.address = addressOf(url, from);
    const token = process.env.TOLLGATE_TOKEN;
    if (!token)
      throw new Mistake("TOLLGATE_TOKEN is not in the environment: a token of the service with the scope admin");
    // The platform's error would include it.
    if (!/^[\x21-\x7e]+$/.test(token))
      throw new Mistake("TOLLGATE_TOKEN has characters that no token has, such as spaces or line breaks");
    this.#token = token;
  }

  /**
   * Sends a request, and resolves with its whole answer: JSON with this member, or it is not Tollgate's. Rejects with a
   * `Refusal`, or with a `Mistake` if there is no answer.
   */
  async ask<Body>(method: string, path: string, member: keyof Body & string, sent: Sent = {}): Promise<Answer<Body>> {
    const response = await this.open(method, path, sent, AbortSignal.timeout(PATIENCE_MS));
    const text = await this.#reached(sent.changes, response.text());
    const body = jsonOf(text);
    if (!Object.hasOwn(Object(body), member)) throw this.#foreign(response.status);
    if (Object(body).stale_policies) console.error(`tollgate: ${STALE}`);
    return { text: text.trimEnd(), body: body as Body };
  }

  /** The same, but resolves when the answer begins, however long it goes on. `signal` ends it. */
  async open(method: string, path: string, { body, headers, changes }: Sent, signal: AbortSignal): Promise<Response> {
    const response = await this.#reached(
      changes,
      fetch(`${this.address}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${this.#token}`,
          ...(body !== undefined && { "content-type": "application/json" }),
          ...headers,
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
        redirect: "error", // it might take the token elsewhere
        signal,
      }),
    );
    if (response.ok) return response;
    const problem = Object(jsonOf(await this.#reached(changes, response.text()))) as Partial<Problem>;
    if (!isProblem(problem)) throw this.#foreign(response.status);
    throw new Refusal(problem, this.#hint(problem));
  }

  async #reached<T>(changes: boolean | undefined, answering: Promise<T>): Promise<T> {
    try {
      return await answering;
    } catch (error) {
      const { name, message, cause } = error as Error;
      const why = name === "TimeoutError" ? `none in ${PATIENCE_MS / 1_000} s` : (cause as Error)?.message || message;
      const fate = changes ? "; it may have been carried out" : "";
      throw new Mistake(`no answer from ${this.address}: ${why}${fate}`);
    }
  }

  #foreign(status: number): Mistake {
    return new Mistake(`${this.address} answers ${status}, but not as Tollgate does: is ${this.#from} right?`);
  }

  /** A hint that the service cannot give. */
  #hint({ status, scope, detail, stale_policies }: Problem): string {
    if (status === 401) return `TOLLGATE_TOKEN is not a token of ${this.address}`;
    if (scope) return `TOLLGATE_TOKEN must have it: npx tollgate token ops --scopes ${scope}`;
    const names = detail.includes("there is no policy ") && !detail.includes("; there ");
    const hints = [names && "npx tollgate policies list shows those that there are", stale_policies && STALE];
    return hints.filter(Boolean).join("; ");
  }
}

/** Where requests go. Anything but an address is not repeated: it may be a secret in the wrong place. */
function addressOf(url: string, from: string): string {
  if (!URL.canParse(url) || !/^https?:\/\/./.test(url))
    throw new Mistake(`${from} is not an address such as https://limits.example.com`);
  const { protocol, hostname, origin, pathname, username, password, search, hash } = new URL(url);
  if (username || password || search || hash)
    throw new Mistake(`${from} is an address alone, without a user, a password, a query or a fragment`);
  if (protocol === "http:" && !isHere(hostname))
    throw new Mistake(`${from} must begin with https:, or the token would travel in clear; http: is for this machine`);
  return `${origin}${pathname.replace(/\/+$/, "")}`;
}

function isHere(hostname: string): boolean {
  return hostname === "[::1]" || /^(.+\.)?localhost$|^127(\.\d+){3}$/.test(hostname);
}

function isProblem(body: Partial<Problem>): body is Problem {
  const { type, title, status, detail } = body;
  return PROBLEM.test(String(type)) && [typeof title, typeof status, typeof detail].join() === "string,number,string";
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const PROBLEM = /^(urn:problem-type:tollgate:|https:\/\/iana\.org\/assignments\/http-problem-types#)/;
/** What `stale_policies` means. */
const STALE = "its policies may be out of date, for their registry does not answer";
const PATIENCE_MS = 30_000;
