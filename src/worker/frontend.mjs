// The frontend, in JavaScript: passes requests to Rust and replies to clients.
import { bytesOf } from "./body.mjs";
import contract from "./contract.mjs";
import { Timeout } from "./deadline.mjs";
import { replyTo } from "./objects.mjs";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

export const frontend = {
  async fetch(request, env, context) {
    const id = requestId(request.headers);
    if (asksForContract(request)) return contractResponse(id);
    rust ??= lasting(() => new built.Frontend(env));
    try {
      return response(await reply(request, env, context), id);
    } catch (error) {
      console.error("the frontend failed:", error);
      return response(rust().failed(), id);
    }
  },
};

/** One for the isolate: `env` is the same for all its requests. */
let rust;

/** The caller's own, if it is fit for a log; otherwise a random one. */
function requestId(headers) {
  const id = headers.get(REQUEST_ID);
  return id !== null && /^[\w.:/+=@-]{1,128}$/.test(id) ? id : crypto.randomUUID();
}

const REQUEST_ID = "x-request-id";

/** Whether it is for the description of the API, which is the same for everybody and needs no settings. */
function asksForContract({ method, url }) {
  return (method === "GET" || method === "HEAD") && new URL(url).pathname === "/v1/openapi.json";
}

function contractResponse(id) {
  contractBytes ??= new TextEncoder().encode(contract);
  return new Response(contractBytes, { headers: { ...CONTRACT_HEADERS, [REQUEST_ID]: id } });
}

let contractBytes;

const CONTRACT_HEADERS = {
  "content-type": "application/json",
  "cache-control": "public, max-age=3600",
  "access-control-allow-origin": "*",
  "access-control-expose-headers": "X-Request-Id",
};

/** The reply to a request, as a text: see {@link response}. */
async function reply(request, env, context) {
  const { method, url, headers } = request;
  rust().set_clock?.(headers);
  const [authorization, type, encoding, length, idempotencyKey] = HEADERS.map((name) => headers.get(name));
  const early = rust().head(method, url, authorization, type, encoding, length);
  if (early !== undefined) return early;
  let body;
  try {
    body = await bytesOf(request, rust().max_body_len);
  } catch (error) {
    return error instanceof Timeout ? rust().too_slow() : rust().unreadable(String(error));
  }
  const ask = () => rust().ask(url, idempotencyKey, body, Date.now());
  const call = ask();
  if (typeof call === "string") return call;
  try {
    return await replyTo(call, env, context);
  } catch (error) {
    // Another request panicked meanwhile, and this call was lost with the old instance's memory.
    console.error("a call was lost:", error);
    return ask().unanswered();
  }
}

const HEADERS = ["authorization", "content-type", "content-encoding", "content-length", "idempotency-key"];

/** The status, a line for each header, an empty line, the body. */
function response(text, id) {
  let at = text.indexOf("\n");
  const status = Number(text.slice(0, at));
  const headers = { [REQUEST_ID]: id };
  for (at++; text[at] !== "\n"; at++) {
    const colon = text.indexOf(": ", at);
    const name = text.slice(at, colon);
    at = text.indexOf("\n", colon);
    headers[name] = text.slice(colon + 2, at);
  }
  return new Response(text.slice(at + 1) || null, { status, headers });
}
