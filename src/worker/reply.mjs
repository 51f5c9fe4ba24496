// Replies, as Rust writes them: the status, perhaps a letter for headers that need not be written or a note for the log, a line for each
// header, an empty line, the body.
import { REQUEST_ID } from "./request_id.mjs";

/** What nearly every reply has, by its letter: see `Reply::to_short_text`. */
const COMMON = { j: common("application/json"), p: common("application/problem+json") };

/** Where the body begins, and the line before it ends. */
const END_OF_HEAD = "\n\n";

export function statusOf(text) {
  return Number(text.slice(0, 3));
}

/** What the log should say of it, and the client must not know; often nothing. */
export function noteOf(text) {
  return text[3] === " " ? text.slice(4, text.indexOf("\n")) : undefined;
}

export function bodyOf(text) {
  return text.slice(text.indexOf(END_OF_HEAD) + END_OF_HEAD.length);
}

/**
 * The same for an answer inside a Worker, without CORS: which pages may read a response of an application is the application's to say.
 */
export function embeddedHeadersOf(text) {
  const headers = Object.entries(headersOf(text));
  return Object.fromEntries(headers.filter(([name]) => !name.startsWith("access-control-")));
}

/** The values of the headers by their names, which are in lower case. */
export function headersOf(text) {
  const headers = { ...COMMON[text[3]] };
  for (let at = text.indexOf("\n") + 1; text[at] !== "\n"; ) {
    const colon = text.indexOf(": ", at);
    const end = text.indexOf("\n", colon);
    headers[text.slice(at, colon)] = text.slice(colon + 2, end);
    at = end + 1;
  }
  return headers;
}

/** The response to the request with this id. */
export function responseOf(text, id) {
  return responseWith(text, { ...headersOf(text), [REQUEST_ID]: id });
}

/** The response with these headers. */
export function responseWith(text, headers) {
  return new Response(bodyOf(text) || null, { status: statusOf(text), headers });
}

function common(type) {
  return {
    "content-type": type,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id",
  };
}
