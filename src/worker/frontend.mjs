// The frontend, in JavaScript: passes requests to Rust and replies to clients.
import { bytesOf } from "./body.mjs";
import { Timeout } from "./deadline.mjs";
import { replyTo } from "./objects.mjs";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

export const frontend = {
  async fetch(request, env, context) {
    rust ??= lasting(() => new built.Frontend(env));
    try {
      return response(await reply(request, env, context));
    } catch (error) {
      console.error("the frontend failed:", error);
      return response(rust().failed());
    }
  },
};

/** One for the isolate: `env` is the same for all its requests. */
let rust;

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
  const ask = () => rust().ask(url, authorization, idempotencyKey, body, Date.now());
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
function response(text) {
  let at = text.indexOf("\n");
  const status = Number(text.slice(0, at));
  const headers = {};
  for (at++; text[at] !== "\n"; at++) {
    const colon = text.indexOf(": ", at);
    const name = text.slice(at, colon);
    at = text.indexOf("\n", colon);
    headers[name] = text.slice(colon + 2, at);
  }
  return new Response(text.slice(at + 1) || null, { status, headers });
}
