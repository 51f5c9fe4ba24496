// The id of a request, which is in its response and in its log lines.
import { Frontend } from "./rust/index.js";

export const REQUEST_ID = "x-request-id";

/** The caller's id if it is safe in headers and logs, otherwise a random one. */
export function requestIdOf({ headers }) {
  const id = headers.get(REQUEST_ID);
  return id !== null && Frontend.is_request_id(id) ? id : crypto.randomUUID();
}
