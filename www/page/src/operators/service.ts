// The admin API of this service, called with a token that is only in memory. Its answers are those of docs/admin.md.

export class Service {
  /** The refusal of the token, if any: it is not sent again. */
  refusal: Error | undefined;
  readonly #token: string;

  constructor(token: string) {
    this.#token = token;
  }

  /** The answer's body. Throws an Error with the service's message if it refuses, and after ten seconds. */
  async ask<Body>(path: string, { method = "GET", body, match }: Ask = {}): Promise<Body & { readonly etag: string }> {
    const { answer } = await this.#send(path, method, body, match);
    return answer as Body & { readonly etag: string };
  }

  /** The counters in Prometheus's text: their values by labels, as written. */
  async metrics(): Promise<Counts> {
    const { text } = await this.#send("/v1/metrics", "GET");
    const lines = text.matchAll(/^(\w+)(?:\{(.*)\})? ([\d.]+)$/gm);
    return new Map(Array.from(lines, ([, name, labels = "", value]) => [`${name}{${labels}}`, Number(value)]));
  }

  async #send(path: string, method: string, body?: unknown, match?: string) {
    if (this.refusal) throw this.refusal;
    const response = await fetch(path, {
      method,
      headers: {
        authorization: `Bearer ${this.#token}`,
        ...(body !== undefined && { "content-type": "application/json" }),
        ...(match !== undefined && { "if-match": match }),
      },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
      signal: AbortSignal.timeout(10_000),
    });
    const text = await response.text();
    const isJson = /json/.test(response.headers.get("content-type") ?? "");
    const answer = isJson ? JSON.parse(text) : {};
    if (!response.ok) {
      const error = new Error(`${response.status}: ${answer.detail ?? answer.title ?? response.statusText}`);
      if (response.status === 401) this.refusal = error;
      throw error;
    }
    return { text, answer: { ...answer, etag: response.headers.get("etag") ?? "" } };
  }
}

interface Ask {
  readonly method?: "GET" | "POST" | "PUT";
  /** Text is sent unchanged. */
  readonly body?: unknown;
  /** The version that this change replaces. */
  readonly match?: string;
}

export type Counts = ReadonlyMap<string, number>;

export interface Policies {
  readonly policies: readonly {
    readonly name: string;
    readonly version: number;
    readonly source: string;
    readonly fixed: boolean;
    readonly lint: readonly string[];
  }[];
}

export interface Top {
  /** Since when they are counted. */
  readonly since: number;
  readonly now: number;
  readonly policies: readonly {
    readonly policy: string;
    readonly keys: readonly {
      readonly object: string;
      readonly prefix?: string;
      readonly at_least: number;
      readonly at_most: number;
    }[];
  }[];
}

export interface Audit {
  readonly acts: readonly Act[];
  readonly next: number | null;
}

export interface Act {
  readonly number: number;
  readonly at: number;
  readonly by: string;
  readonly act: string;
  readonly policy?: string;
  readonly key?: string;
  readonly carry?: string;
  /** An earlier attempt of the same request did it. */
  readonly replayed?: true;
  readonly before: unknown;
  readonly after: unknown;
}

export interface Overrides {
  readonly overrides: readonly { readonly since: number; readonly override: Override }[];
  readonly next: string | null;
}

export interface Override {
  readonly policy: string;
  readonly key?: unknown;
  readonly prefix?: string;
  readonly until?: number;
  readonly multiple?: number;
  readonly banned?: true;
  readonly unlimited?: true;
}
