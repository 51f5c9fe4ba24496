// The rate-limit fields of an answer, on the response to a request that it lets pass or refuses. Also for servers without Cloudflare's runtime.

/**
 * Adds the fields among the `headers` of an answer to a response, by its `get` and `set`. Those of another policy are kept, and so is a
 * later `Retry-After`.
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

/** `response` with these fields: itself, or a copy if its headers cannot be changed. Its body is not read. */
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

/** Both are in an answer, or neither. */
const LISTS = ["ratelimit-policy", "ratelimit"];
const RETRY_AFTER = "retry-after";
