// Complete expected answers: every test compares the status, all headers of the Worker's own, and the whole body.
import assert from "node:assert/strict";

/** The endpoints. */
export const PATHS = [
  "/v1/consume",
  "/v1/peek",
  "/v1/charge",
  "/v1/refund",
  "/v1/reset",
  "/v1/inspect",
  "/v1/settle",
  "/v1/cancel",
  "/v1/extend",
  "/v1/batch",
  "/v1/lease",
];

/**
 * Compares an answer with `{ status, body, headers, rateLimit, rateLimitPolicy }`. `headers` are those that not every
 * answer has; the two last are structured fields, as {@link parseList} reads them.
 */
export function assertAnswer(answer, expected, message = "") {
  const { ratelimit, "ratelimit-policy": ratelimitPolicy, ...headers } = ownHeaders(answer);
  const actual = { status: answer.status, headers, body: answer.body };
  if (ratelimit !== undefined) actual.rateLimit = parseList(ratelimit);
  if (ratelimitPolicy !== undefined) actual.rateLimitPolicy = parseList(ratelimitPolicy);
  const { headers: more, ...rest } = expected;
  const where = message && `${message}\n${answer.text}`;
  assert.deepEqual(actual, { ...rest, headers: { ...ALWAYS, ...more } }, where);
  if (typeof answer.body === "object")
    assert.equal(answer.text, `${JSON.stringify(answer.body)}\n`, "no member twice, no spaces, one line");
}

/** 200 for `{ policy, cost, limit, remaining, now, reset_at }`; `t` is the seconds until more than `remaining` is available, if ever. */
export function allowed(verdict, rateLimitPolicy, t) {
  return {
    status: 200,
    headers: { "content-type": "application/json" },
    body: { allowed: true, ...verdict, near_limit: isNear(verdict) },
    ...rateLimitFields(verdict, rateLimitPolicy, t),
  };
}

/** 429 for the same and the moment to retry at; without one, for a budget that never refills. */
export function refused(verdict, rateLimitPolicy, retryAfter, t = retryAfter) {
  const { policy, cost, limit, remaining, owed, now, retry_at } = verdict;
  const again = retry_at === undefined ? {} : { retry_at, retry_after_ms: retry_at - now };
  const has = owed ? `owes ${owed} tokens and` : `has ${remaining} of ${limit} tokens left and`;
  const when = retry_at === undefined ? "this budget never refills" : `retry in ${retry_at - now} ms`;
  if (retryAfter !== undefined)
    assert.match(String(retryAfter), /^[1-9]\d*$/, "Retry-After is whole seconds, at least one");
  return {
    status: 429,
    headers: {
      "content-type": "application/problem+json",
      ...(retryAfter === undefined ? {} : { "retry-after": String(retryAfter) }),
    },
    body: {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota exceeded",
      status: 429,
      detail: `policy ${policy} ${has} the cost is ${cost}; ${when}`,
      "violated-policies": [policy],
      allowed: false,
      ...verdict,
      near_limit: isNear(verdict),
      ...again,
    },
    ...rateLimitFields(verdict, rateLimitPolicy, t),
  };
}

/** Any other answer: `kind` is the last part of the problem's type. */
export function problem(status, kind, title, detail, { headers, ...members } = {}) {
  return {
    status,
    headers: { "content-type": "application/problem+json", ...headers },
    body: { type: `urn:problem-type:tollgate:${kind}`, title, status, detail, ...members },
  };
}

const isNear = ({ remaining, limit }) => remaining * 5 < limit;

function rateLimitFields({ policy, remaining }, rateLimitPolicy, t) {
  return {
    rateLimit: [[policy, { r: remaining, ...(t === undefined ? {} : { t }) }]],
    rateLimitPolicy: [[policy, rateLimitPolicy]],
  };
}

/** The headers that the Worker sets, without those of the connection and the request's id, which is random. */
export function ownHeaders({ headers }) {
  const own = { ...headers };
  for (const name of ["connection", "content-length", "transfer-encoding", "x-request-id"]) delete own[name];
  return own;
}

const ALWAYS = {
  "access-control-allow-origin": "*",
  "access-control-expose-headers": "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
};

/**
 * Reads a list of strings with whole numbers as parameters, RFC 9651: `"api";r=9;t=1` is `[["api", { r: 9, t: 1 }]]`.
 * Throws for anything else.
 */
export function parseList(field) {
  const items = [];
  let rest = field;
  const take = (pattern, what) => {
    const found = pattern.exec(rest);
    if (!found) throw new Error(`${field}: expected ${what} at ${JSON.stringify(rest)}`);
    rest = rest.slice(found[0].length);
    return found[1];
  };
  do {
    const item = take(/^"((?:[ !#-[\]-~]|\\["\\])*)"/, "a string").replaceAll(/\\(["\\])/g, "$1");
    const parameters = {};
    while (rest.startsWith(";")) {
      const name = take(/^; *([a-z*][a-z0-9_.*-]*)=/, "a parameter's name");
      parameters[name] = Number(take(/^(-?\d{1,15})(?![\d.])/, "an integer of 15 digits at most"));
    }
    items.push([item, parameters]);
  } while (rest && take(/^([ \t]*,[ \t]*)/, "a comma"));
  return items;
}
