// Log lines about requests: one line of JSON each, without keys, API tokens or text from bodies.

/** `level` is a method of `console`. Optional: `request_id`; `error`, the thrown value. */
export function log(level, message, { request_id, error } = {}) {
  const stack = error === undefined ? undefined : String(error?.stack ?? error);
  console[level](JSON.stringify({ level, message, request_id, error: stack }));
}
