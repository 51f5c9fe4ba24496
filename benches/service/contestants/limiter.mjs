// A rate limiter written by hand, whatever decides and wherever it runs: its requests and answers.
// Its answers match Tollgate's in everything a client acts on, as far as the decision provides it.
//
// Omitted: old levels are simply read under a policy's new numbers, and the settings are not checked.

export class Limiter {
  #token;
  #policies;
  #isSame;
  #decide;

  /**
   * `policies` are those of {@link policiesFrom}. `isSame` compares bytes in a time that depends only on their lengths. `decide(keyBytes, policy, cost)` returns whether it is
   * `allowed`, and of `remaining`, `now`, `resetAt`, `nextAt` and `retryAt` what it knows.
   */
  constructor({ token, policies, isSame, decide }) {
    this.#token = encoder.encode(`Bearer ${token}`);
    this.#policies = policies;
    this.#isSame = isSame;
    this.#decide = decide;
  }

  /** The answer to a request, with `header` returning a header by name and `json` the body. */
  async answer({ method, pathname, header, json }) {
    if (!this.#isAuthorized(header("authorization"))) return problem(401, "Unauthorized");
    if (pathname !== "/v1/consume") return problem(404, "Not found");
    if (method !== "POST") return problem(405, "Method not allowed");
    if (!/^application\/json\b/i.test(header("content-type") ?? "")) return problem(415, "Unsupported media type");
    if (!(Number(header("content-length") ?? Infinity) <= MAX_BODY_LEN)) return problem(413, "Body too large");
    let ask;
    try {
      ask = await json();
    } catch {
      return problem(400, "Bad request");
    }
    const { policy: name, key, cost = 1 } = ask ?? {};
    if (typeof name !== "string" || typeof key !== "string" || key === "") return problem(400, "Bad request");
    const keyBytes = encoder.encode(key);
    if (keyBytes.length > MAX_KEY_LEN || !Number.isSafeInteger(cost) || cost < 0) return problem(400, "Bad request");
    const policy = this.#policies.get(name);
    if (!policy) return problem(404, "Unknown policy");
    if (cost > policy.capacity) return problem(400, "Cost too large");
    try {
      return answer(policy, cost, await this.#decide(keyBytes, policy, cost));
    } catch (error) {
      console.error(`it could not be decided: ${error}`);
      return problem(503, "Unavailable");
    }
  }

  #isAuthorized(authorization) {
    const sent = encoder.encode(authorization ?? "");
    return sent.length === this.#token.length && this.#isSame(sent, this.#token);
  }
}

/** Policies by name, from the settings. */
export function policiesFrom(settings) {
  return new Map(Object.entries(settings).map(([name, policy]) => [name, policyOf(name, policy)]));
}

function answer(policy, cost, { allowed, remaining, now, resetAt, nextAt, retryAt }) {
  const { name, capacity, field } = policy;
  const near = remaining === undefined ? undefined : remaining * 5 < capacity;
  const verdict = { allowed, policy: name, cost, limit: capacity, remaining, near_limit: near, now, reset_at: resetAt };
  const seconds = (moment) => Math.ceil((moment - now) / 1_000);
  const headers = { ...HEADERS, "content-type": "application/json", "ratelimit-policy": field };
  if (nextAt !== undefined) headers.ratelimit = `"${name}";r=${remaining};t=${seconds(nextAt)}`;
  if (allowed) return { status: 200, headers, body: JSON.stringify(verdict) };
  const body = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota exceeded",
    status: 429,
    "violated-policies": [name],
    ...verdict,
  };
  if (retryAt !== undefined) {
    const ms = retryAt - now;
    Object.assign(body, { retry_at: retryAt, retry_after_ms: ms });
    if (remaining !== undefined)
      body.detail = `policy ${name} has ${remaining} of ${capacity} tokens left and the cost is ${cost}; retry in ${ms} ms`;
    headers["retry-after"] = String(seconds(retryAt));
  }
  headers["content-type"] = "application/problem+json";
  return { status: 429, headers, body: JSON.stringify(body) };
}

function problem(status, title) {
  const headers = { ...HEADERS, "content-type": "application/problem+json" };
  return { status, headers, body: JSON.stringify({ title, status }) };
}

function policyOf(name, { rate, period, capacity = rate }) {
  const [, count, unit] = period.match(/^(\d+)([a-z]+)$/);
  const periodMs = Number(count) * UNITS_MS[unit];
  const field = `"${name}";q=${rate};w=${periodMs / 1_000};tollgate-capacity=${capacity}`;
  return { name, rate, periodMs, capacity, field };
}

const HEADERS = {
  "cache-control": "no-store",
  "access-control-allow-origin": "*",
  "access-control-expose-headers": "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id",
};
const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, day: 86_400_000 };
const MAX_BODY_LEN = 16 * 1024;
const MAX_KEY_LEN = 512;
const encoder = new TextEncoder();
