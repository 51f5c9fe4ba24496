// The Worker in front of a limiter written by hand.
import { Limiter, policiesFrom } from "./limiter.mjs";

/** A Worker that decides by what `make(env)` returns: see {@link Limiter}. */
export function decides(make) {
  let limiter;
  return {
    async fetch(request, env) {
      limiter ??= new Limiter({
        token: env.TOKEN,
        policies: policiesOf(env),
        isSame: crypto.subtle.timingSafeEqual.bind(crypto.subtle),
        decide: make(env),
      });
      const { body, ...init } = await limiter.answer({
        method: request.method,
        pathname: new URL(request.url).pathname,
        header: (name) => request.headers.get(name),
        json: () => request.json(),
      });
      return new Response(body, init);
    },
  };
}

/** A Worker that asks an object per key. */
export const asksObjects = decides((env) => async (keyBytes, { name }, cost) => {
  return env.KEYS.getByName(await objectName(keyBytes, env)).consume(name, cost);
});

/** Read once for each isolate. */
export function policiesOf(env) {
  policies ??= policiesFrom(env.POLICIES);
  return policies;
}
let policies;

/** HMAC-SHA-256 of the key, so that no raw key is stored. */
async function objectName(keyBytes, env) {
  const hmac = { name: "HMAC", hash: "SHA-256" };
  hmacKey ??= await crypto.subtle.importKey("raw", encoder.encode(env.TOLLGATE_KEY_SECRET), hmac, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", hmacKey, keyBytes)).toHex();
}
let hmacKey;

const encoder = new TextEncoder();
