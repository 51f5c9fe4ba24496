// What the log says of requests: a line of JSON each. None has a key, a token or any text of a body.

/** `level` is a method of `console`; `request_id` may be missing, and so may `error`, what was thrown, and `act`, what an operator did. */
export function log(level, message, { request_id, error, act } = {}) {
  const stack = error === undefined ? undefined : String(error?.stack ?? error);
  console[level](JSON.stringify({ level, message, request_id, error: stack, act }));
}
