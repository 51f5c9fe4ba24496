// `GET /v1/openapi.json`: the description of the API. It is the same for everybody, and needs no settings.
import contract from "./contract.mjs";
import { REQUEST_ID } from "./request_id.mjs";

/** The response to the request with this id. */
export function contractResponse(id) {
  bytes ??= new TextEncoder().encode(contract);
  return new Response(bytes, { headers: { ...HEADERS, [REQUEST_ID]: id } });
}

/** Encoded once for the isolate. */
let bytes;

const HEADERS = {
  "content-type": "application/json",
  "cache-control": "public, max-age=3600",
  "x-content-type-options": "nosniff",
  "access-control-allow-origin": "*",
  "access-control-expose-headers": "X-Request-Id",
};
