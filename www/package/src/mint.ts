// Grants: the rights of a browser or an app, signed by a backend that holds the key.
import type { Key } from "./client.js";
import { TollgateError } from "./errors.js";

/** What a grant allows. */
export interface GrantOptions {
  readonly key: Key;
  /** The names of one or more policies. */
  readonly policies: readonly string[];
  /** Default: `["consume", "peek"]`. */
  readonly verbs?: readonly GrantVerb[];
  /** For how many seconds from now: 1 to 86 400, a day. Default: 3600. */
  readonly expiresInS?: number;
  /** The service: the value of its `TOLLGATE_AUDIENCE`. Default: `tollgate`. */
  readonly audience?: string;
}

/**
 * The verbs that a grant may allow. `consume` includes reserving and borrowing; `extend` may take as much, and can keep a reservation open as long as the
 * grant lasts. With `settle` and `cancel` its holder is trusted to report what
 * the work has cost: reserving and then cancelling gives everything back.
 */
export type GrantVerb = (typeof GRANT_VERBS)[number];
export const GRANT_VERBS = ["consume", "peek", "inspect", "settle", "cancel", "extend", "batch"] as const;

/**
 * Makes a grant: a JWT signed with HMAC-SHA-256. `keys` is the service's `TOLLGATE_GRANT_KEYS`: JSON with a
 * base64url secret of 32 bytes or more for each key id. The first signs; the service accepts all, so that keys can be
 * rotated. Rejects with a {@link TollgateError} if a key or an option is wrong.
 *
 * ```js
 * const grant = await mintGrant(env.TOLLGATE_GRANT_KEYS, { key: user.id, policies: ["api"] });
 * ```
 */
export async function mintGrant(keys: string, options: GrantOptions): Promise<string> {
  const { key, policies, verbs = ["consume", "peek"], expiresInS = 3600, audience = "tollgate" } = options;
  const isText = (value: unknown) => typeof value === "string" && value !== "";
  const isTexts = (value: unknown) => Array.isArray(value) && value.length > 0 && value.every(isText);
  const isKey = isText(key) || isTexts(key) || isText(Object(key).ip);
  check(isKey, `the key must be a text, a list of texts or {"ip": "..."}, not ${JSON.stringify(key)}`);
  const bytes = [key].flat().reduce((sum: number, part) => sum + utf8(String(part)).length, 0);
  check(bytes <= 512 && [key].flat().length <= 8, "a key has at most 512 bytes, and a list at most 8 texts");
  check(isTexts(policies), "a grant names one or more policies, in a list");
  check(isTexts(verbs), "a grant has one or more verbs, in a list");
  check(isText(audience), "the audience must be a text");
  for (const verb of verbs)
    check(
      GRANT_VERBS.includes(verb),
      `a grant cannot have the verb ${verb}; those it can have are ${GRANT_VERBS.join(", ")}`,
    );
  const isDuration = Number.isSafeInteger(expiresInS) && expiresInS >= 1 && expiresInS <= LONGEST_S;
  check(isDuration, `a grant lasts 1 to ${LONGEST_S} seconds, not ${expiresInS}`);
  const [kid, secret] = firstOf(keys);
  const exp = Math.floor(Date.now() / 1000) + expiresInS;
  const claims = { aud: audience, exp, key, policies, verbs };
  const text = [{ alg: "HS256", typ: "JWT", kid }, claims]
    .map((part) => base64url(utf8(JSON.stringify(part))))
    .join(".");
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const signing = await crypto.subtle.importKey("raw", secret, algorithm, false, ["sign"]);
  const grant = `${text}.${base64url(new Uint8Array(await crypto.subtle.sign(algorithm.name, signing, utf8(text))))}`;
  check(grant.length <= LONGEST, `a grant has at most ${LONGEST} bytes, not ${grant.length}: name fewer policies`);
  return grant;
}

/** 32 random bytes as base64url, for a token or a signing key. */
export function randomText(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** The id and the secret of the signing key. Messages do not show the text: it is secret. */
function firstOf(keys: string): [kid: string, secret: Uint8Array<ArrayBuffer>] {
  let first: [string, unknown] | undefined;
  try {
    [first] = Object.entries<unknown>(JSON.parse(keys));
  } catch {} // reported below
  check(first !== undefined, `the keys must be JSON such as {"2026-11": "<43 characters of base64url>"}`);
  const [kid, secret] = first!;
  // A longer one may be a secret in the wrong place. The service rejects it, too.
  check(/^[\w.-]{1,40}$/.test(kid), "the first key's id must be 1 to 40 letters, digits, '_', '-' or '.'");
  // JavaScript moves such members to the front, so it may not be the first as written.
  check(!/^\d+$/.test(kid), "a key's id must not be a number");
  const is32Bytes = typeof secret === "string" && /^[\w-]{43,}$/.test(secret) && secret.length % 4 !== 1;
  check(is32Bytes, `the key ${JSON.stringify(kid)} must be base64url of 32 bytes or more, which is 43 characters`);
  const bytes = atob((secret as string).replaceAll("-", "+").replaceAll("_", "/"));
  return [kid, Uint8Array.from(bytes, (byte) => byte.charCodeAt(0))];
}

function check(isRight: boolean, message: string): void {
  if (!isRight) throw new TollgateError("grant_invalid", message);
}

const utf8 = (text: string) => new TextEncoder().encode(text);

const base64url = (bytes: Uint8Array) =>
  btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");

/** A day. */
const LONGEST_S = 86_400;
/** The service rejects longer ones. */
const LONGEST = 4096;
