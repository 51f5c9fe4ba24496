// The frontend, in JavaScript: passes requests to Rust and replies to clients.
import { adminReply, asksForAdmin } from "./admin.mjs";
import { bytesOf } from "./body.mjs";
import { Timeout } from "./deadline.mjs";
import { decide } from "./decide.mjs";
import { asksAboutKey, keyReply } from "./keys.mjs";
import { log } from "./log.mjs";
import { asksForContract, contractResponse } from "./openapi.mjs";
import { Frontend } from "./policies.mjs";
import { noteOf, responseOf } from "./reply.mjs";
import { requestIdOf } from "./request_id.mjs";
import * as built from "./rust/index.js";
import { asksForSession, sessionReply } from "./session.mjs";

/** The service for callers with credentials. */
export const frontend = {
  fetch(request, env) {
    service ??= new Frontend(() => new built.Frontend(env), env.REGISTRY, env);
    return respond(service, request, env.KEYS);
  },
};

/** One for the isolate: `env` is the same for all its requests. */
let service;

/** Answers a request by HTTP. `keys` is the namespace of the objects. */
export async function respond(frontend, request, keys) {
  const id = requestIdOf(request);
  if (frontend.points) frontend.points.colo = request.cf?.colo ?? "";
  frontend.live.received(request);
  if (asksForContract(request)) return contractResponse(id);
  let text;
  try {
    text = await reply(frontend, request, keys, id);
  } catch (error) {
    log("error", "the frontend failed", { request_id: id, error });
    text = frontend.rust().failed();
  }
  const note = noteOf(text);
  if (note) log("warn", note, { request_id: id });
  return responseOf(text, id);
}

/** The reply to a request, as a text. */
async function reply(frontend, request, keys, id) {
  const { rust } = frontend;
  const { method, url, headers } = request;
  rust().set_clock?.(headers);
  const [authorization, type, encoding, length, idempotencyKey] = HEADERS.map((name) => headers.get(name));
  const early = rust().head(method, url, authorization, type, encoding, length);
  if (early !== undefined) return early;
  let body;
  try {
    body = await bytesOf(request, rust().max_body_len(url));
  } catch (error) {
    return error instanceof Timeout ? rust().too_slow() : rust().unreadable(String(error));
  }
  if (asksForAdmin(url)) return adminReply(frontend, request, body, id);
  await frontend.refreshed();
  if (asksAboutKey(url)) {
    const asked = { path: new URL(url).pathname, authorization, idempotencyKey };
    return keyReply(frontend, asked, body, keys, id);
  }
  if (asksForSession(url)) return sessionReply(frontend, request, body, keys, id);
  return decide(frontend, () => rust().ask(url, authorization, idempotencyKey, body, Date.now()), keys, id);
}

const HEADERS = ["authorization", "content-type", "content-encoding", "content-length", "idempotency-key"];
