// Credentials for tests: tokens as `npx tollgate token` makes them, grant keys, and grants with one flaw.
import { createHmac, randomBytes } from "node:crypto";
import { entryOf } from "./runtime.mjs";
import { NOW } from "./workerd.mjs";

/** A new token: its `text`, and its `entry` in TOLLGATE_TOKENS. */
export function newToken(...scopes) {
  const text = `tg_${randomBytes(32).toString("base64url")}`;
  return { text, entry: entryOf(text, ...scopes) };
}

/** The headers of an allowed request. */
export const bearer = (credential) => ({ headers: { authorization: `Bearer ${credential}` } });

/** The moment of {@link NOW} in seconds. */
export const NOW_S = NOW / 1_000;

/** The claims of a valid grant. */
export const CLAIMS = {
  aud: "tollgate",
  exp: NOW_S + 60,
  key: "alice",
  policies: ["api"],
  verbs: ["consume", "peek", "inspect", "settle", "cancel", "extend", "batch"],
};

const encoded = (part) => Buffer.from(typeof part === "object" ? JSON.stringify(part) : part).toString("base64url");

/** A JWT by hand, as no library would make it. `header` and `payload` are objects or texts. */
export function jwt(key, header, payload, hash = "sha256") {
  const signed = `${encoded(header)}.${encoded(payload)}`;
  return `${signed}.${createHmac(hash, key).update(signed).digest("base64url")}`;
}
