// Reads replies as Rust writes them: see `Reply::to_text` in src/api/reply.rs.
import { log } from "./log.mjs";
import { REQUEST_ID } from "./request_id.mjs";
import { Frontend } from "./rust/index.js";

/** The headers of nearly every reply, by the letter that stands for them. */
const BY_HTTP = common(true);
const EMBEDDED = common(false);

/** Ends the last line before the body. */
const END_OF_HEAD = "\n\n";

export function statusOf(text) {
  return Number(text.slice(0, 3));
}

/** Logs the reply's note, if it has one: what operators should know and the client must not. */
export function logNote(text, id) {
  const line = text.slice(0, text.indexOf("\n"));
  const at = line.indexOf(" ");
  if (at >= 0) log("warn", line.slice(at + 1), { request_id: id });
}

export function bodyOf(text) {
  return text.slice(text.indexOf(END_OF_HEAD) + END_OF_HEAD.length);
}

/** The headers of an answer inside a Worker, which has none of CORS. */
export function embeddedHeadersOf(text) {
  return headersOf(text, EMBEDDED);
}

/** The response to the request with this id. Its body is that of the reply unless another is given. */
export function responseOf(text, id, body) {
  logNote(text, id);
  return responseWith(text, { ...headersOf(text, BY_HTTP), [REQUEST_ID]: id }, body);
}

/** The reply's response, with these headers. */
export function responseWith(text, headers, body = bodyOf(text) || null) {
  return new Response(body, { status: statusOf(text), headers });
}

/** The headers' values by their names, which are in lower case. */
function headersOf(text, common) {
  const headers = { ...common[text[3]] };
  const [, ...lines] = text.slice(0, text.indexOf(END_OF_HEAD)).split("\n");
  for (const line of lines) {
    const colon = line.indexOf(": ");
    headers[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return headers;
}

function common(isHttp) {
  return Object.fromEntries(Frontend.letters(isHttp).map(([letter, pairs]) => [letter, Object.fromEntries(pairs)]));
}
