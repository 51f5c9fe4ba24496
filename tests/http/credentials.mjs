// Credentials for tests: tokens as `npx tollgate token` makes them, keys of grants, and grants that are wrong in one way.
import { createHmac, randomBytes } from "node:crypto";
import { entryOf } from "./runtime.mjs";
import { NOW } from "./workerd.mjs";

/** A new token: its `text`, and the `entry` of it in TOLLGATE_TOKENS. */
export function newToken(...scopes) {
  const text = `tg_${randomBytes(32).toString("base64url")}`;
  return { text, entry: entryOf(text, ...scopes) };
}

/** What a request sends to be allowed. */
export const bearer = (credential) => ({ headers: { authorization: `Bearer ${credential}` } });

/** The moment of {@link NOW} in seconds. */
export const NOW_S = NOW / 1_000;

/** The claims of a grant that is right in every way. */
export const CLAIMS = {
  aud: "tollgate",
  exp: NOW_S + 60,
  key: "alice",
  policies: ["api"],
  verbs: ["consume", "peek", "inspect", "settle", "cancel", "extend", "batch"],
};

const encoded = (part) => Buffer.from(typeof part === "object" ? JSON.stringify(part) : part).toString("base64url");

/** A JWT by hand: what no library would make. `header` and `payload` are objects or texts. */
export function jwt(key, header, payload, hash = "sha256") {
  const signed = `${encoded(header)}.${encoded(payload)}`;
  return `${signed}.${createHmac(hash, key).update(signed).digest("base64url")}`;
}
