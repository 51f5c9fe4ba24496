// A rate limiter for Workers as it is written by hand: JavaScript, an object per key, in it a level for each policy.
// Its answers match Tollgate's in everything a client acts on. Each contestant adds only what it keeps on disk.
//
// What it leaves out: a level is a float, which drifts; new numbers of a policy are put over old levels as they are; a clock
// that steps back far locks a key out; the settings are not checked.
import { DurableObject } from "cloudflare:workers";

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (!isAuthorized(request.headers.get("authorization"), env)) return problem(401, "Unauthorized");
    if (pathname !== "/v1/consume") return problem(404, "Not found");
    if (request.method !== "POST") return problem(405, "Method not allowed");
    if (!/^application\/json\b/i.test(request.headers.get("content-type") ?? ""))
      return problem(415, "Unsupported media type");
    if (!(Number(request.headers.get("content-length") ?? Infinity) <= MAX_BODY_LEN))
      return problem(413, "Body too large");
    let ask;
    try {
      ask = await request.json();
    } catch {
      return problem(400, "Bad request");
    }
    const { policy: name, key, cost = 1 } = ask ?? {};
    if (typeof name !== "string" || typeof key !== "string" || key === "") return problem(400, "Bad request");
    const keyBytes = encoder.encode(key);
    if (keyBytes.length > MAX_KEY_LEN || !Number.isSafeInteger(cost) || cost < 0) return problem(400, "Bad request");
    const policy = policiesOf(env).get(name);
    if (!policy) return problem(404, "Unknown policy");
    if (cost > policy.capacity) return problem(400, "Cost too large");
    let verdict;
    try {
      verdict = await env.KEYS.getByName(await objectName(keyBytes, env)).consume(name, cost);
    } catch (error) {
      console.error(`an object did not answer: ${error}`);
      return problem(503, "Unavailable");
    }
    return answer(policy, cost, verdict);
  },
};

/** The object of a key. What a contestant keeps on disk, it loads into `buckets` and writes in `save`. */
export class KeyObject extends DurableObject {
  /** By policy: its level in tokens, and the moment at which it had it. */
  buckets = new Map();

  consume(name, cost) {
    const { rate, periodMs, capacity } = policiesOf(this.env).get(name);
    const now = Date.now();
    const { level: before, at } = this.buckets.get(name) ?? { level: capacity, at: now };
    const level = Math.min(capacity, before + (Math.max(0, now - at) * rate) / periodMs);
    const allowed = cost <= level;
    const left = allowed ? level - cost : level;
    const risesAt = (target) => now + Math.ceil(((target - left) * periodMs) / rate);
    const remaining = Math.floor(left);
    const answer = { allowed, remaining, now, resetAt: risesAt(capacity), nextAt: risesAt(remaining + 1) };
    if (!allowed) return { ...answer, retryAt: risesAt(cost) };
    this.save(name, left, now);
    this.buckets.set(name, { level: left, at: now });
    return answer;
  }

  save() {}
}

function answer(policy, cost, { allowed, remaining, now, resetAt, nextAt, retryAt }) {
  const { name, capacity, field } = policy;
  const near = remaining * 5 < capacity;
  const verdict = { allowed, policy: name, cost, limit: capacity, remaining, near_limit: near, now, reset_at: resetAt };
  const seconds = (moment) => Math.ceil((moment - now) / 1_000);
  const headers = {
    ...HEADERS,
    "content-type": "application/json",
    "ratelimit-policy": field,
    ratelimit: `"${name}";r=${remaining};t=${seconds(nextAt)}`,
  };
  if (allowed) return new Response(JSON.stringify(verdict), { headers });
  const ms = retryAt - now;
  const body = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota exceeded",
    status: 429,
    detail: `policy ${name} has ${remaining} of ${capacity} tokens left and the cost is ${cost}; retry in ${ms} ms`,
    "violated-policies": [name],
    ...verdict,
    retry_at: retryAt,
    retry_after_ms: ms,
  };
  headers["content-type"] = "application/problem+json";
  headers["retry-after"] = String(seconds(retryAt));
  return new Response(JSON.stringify(body), { status: 429, headers });
}

function problem(status, title) {
  const headers = { ...HEADERS, "content-type": "application/problem+json" };
  return new Response(JSON.stringify({ title, status }), { status, headers });
}

/** Compares with the bearer token, in a time that depends only on the lengths. */
function isAuthorized(authorization, env) {
  rightAuthorization ??= encoder.encode(`Bearer ${env.TOLLGATE_TOKEN}`);
  const sent = encoder.encode(authorization ?? "");
  return sent.length === rightAuthorization.length && crypto.subtle.timingSafeEqual(sent, rightAuthorization);
}
let rightAuthorization;

/** HMAC-SHA-256 of the key, so that no raw key is stored. */
async function objectName(keyBytes, env) {
  const hmac = { name: "HMAC", hash: "SHA-256" };
  hmacKey ??= await crypto.subtle.importKey("raw", encoder.encode(env.TOLLGATE_KEY_SECRET), hmac, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", hmacKey, keyBytes)).toHex();
}
let hmacKey;

/** The policies by name, read once for each isolate. */
function policiesOf(env) {
  policies ??= new Map(Object.entries(env.POLICIES).map(([name, policy]) => [name, policyOf(name, policy)]));
  return policies;
}
let policies;

function policyOf(name, { rate, period, capacity = rate }) {
  const [, count, unit] = period.match(/^(\d+)([a-z]+)$/);
  const periodMs = Number(count) * UNITS_MS[unit];
  return {
    name,
    rate,
    periodMs,
    capacity,
    field: `"${name}";q=${rate};w=${periodMs / 1_000};tollgate-capacity=${capacity}`,
  };
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
