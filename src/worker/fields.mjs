// Copies the rate-limit fields of an answer to the response that a client gets. Used on Cloudflare's runtime and on others.

/**
 * Adds the rate-limit fields in an answer's `headers` to a response through its `get` and `set`. Fields of other policies are kept, and so
 * is a later `Retry-After`.
 */
export function addFields(headers, get, set) {
  if (headers.ratelimit === undefined) return;
  for (const name of LISTS) {
    const before = get(name);
    set(name, before ? `${before}, ${headers[name]}` : headers[name]);
  }
  const seconds = headers[RETRY_AFTER];
  if (seconds && !(Number(get(RETRY_AFTER)) > Number(seconds))) set(RETRY_AFTER, seconds);
}

/** `response` with these fields, or a copy of it if its headers cannot be changed. Its body is not read. */
export function applied(headers, response) {
  const add = (to) =>
    addFields(
      headers,
      (name) => to.headers.get(name),
      (name, value) => to.headers.set(name, value),
    );
  try {
    add(response);
    return response;
  } catch {
    const copy = new Response(response.body, response);
    add(copy);
    return copy;
  }
}

/** An answer has both or neither. */
const LISTS = ["ratelimit-policy", "ratelimit"];
const RETRY_AFTER = "retry-after";
