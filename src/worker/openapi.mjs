// `GET /v1/openapi.json`: the description of the API. It is the same for all callers, and needs no settings.
import contract from "./contract.mjs";
import { responseOf } from "./reply.mjs";

/** The response to the request with this id; `head` is a reply without a body, as text. */
export function contractResponse(head, id) {
  bytes ??= new TextEncoder().encode(contract);
  return responseOf(head, id, bytes);
}

/** Encoded once per isolate. */
let bytes;
