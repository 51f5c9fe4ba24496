// The id of a request: on its answer, and in the lines of the log that are about it.

export const REQUEST_ID = "x-request-id";

/** The caller's own, if it is fit for a header and a log; otherwise a random one. */
export function requestIdOf({ headers }) {
  const id = headers.get(REQUEST_ID);
  return id !== null && /^[\w.:/+=@-]{1,128}$/.test(id) ? id : crypto.randomUUID();
}
