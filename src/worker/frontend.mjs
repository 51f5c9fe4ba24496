// The frontend, in JavaScript: passes requests to Rust and replies to clients.
import { adminReply } from "./admin.mjs";
import { bytesOf } from "./body.mjs";
import { Timeout } from "./deadline.mjs";
import { decide } from "./decide.mjs";
import { keyReply } from "./keys.mjs";
import { log } from "./log.mjs";
import { contractResponse } from "./openapi.mjs";
import { Frontend } from "./policies.mjs";
import { noteOf, responseOf } from "./reply.mjs";
import { requestIdOf } from "./request_id.mjs";
import * as built from "./rust/index.js";
import { sessionReply } from "./session.mjs";

/** The service for callers with credentials. */
export const frontend = {
  fetch(request, env) {
    service ??= new Frontend(() => new built.Frontend(env), env.REGISTRY, env);
    return respond(service, request, env.KEYS);
  },
};

/** One for the isolate: `env` is the same for all its requests. */
let service;

/**
 * Answers a request by HTTP. `keys` is the namespace of the objects. One that came by a service binding has its rights by `binding.props`,
 * and no others: a header `Authorization` may be that of a visitor whose request the caller has passed on.
 */
export async function respond(frontend, request, keys, binding) {
  const id = requestIdOf(request);
  if (frontend.points) frontend.points.colo = request.cf?.colo ?? "";
  frontend.live.received(request);
  let text;
  try {
    text = await reply(frontend, request, keys, id, binding);
  } catch (error) {
    log("error", "the frontend failed", { request_id: id, error });
    text = frontend.rust().failed();
  }
  if (text === undefined) return contractResponse(id);
  const note = noteOf(text);
  if (note) log("warn", note, { request_id: id });
  return responseOf(text, id);
}

/**
 * The reply to a request, as a text; `undefined` for the contract, which is not Rust's. Rust reads the URL, and says by a route how to go
 * on. It looks again for what it carries out, and checks the right to that.
 */
async function reply(frontend, request, keys, id, binding) {
  const { rust } = frontend;
  const { method, url, headers } = request;
  rust().set_clock?.(headers);
  const authorization = binding ? binding.props : headers.get("authorization");
  const [type, encoding, length, idempotencyKey] = HEADERS.map((name) => headers.get(name));
  const route = rust().head(method, url, authorization, type, encoding, length);
  if (typeof route === "string") return route;
  if (route === Route.Contract) return undefined;
  let body;
  try {
    body = await bytesOf(request, rust().max_body_len(url));
  } catch (error) {
    return error instanceof Timeout ? rust().too_slow() : rust().unreadable(String(error));
  }
  switch (route) {
    case Route.Measure:
      await frontend.changed(); // so that the registry has all that has been counted here
      return adminReply(frontend, request, authorization, body, id);
    case Route.Administer:
      await frontend.refreshed(); // so that the registry has heard of this deployment's policies
      return adminReply(frontend, request, authorization, body, id);
  }
  await frontend.refreshed();
  switch (route) {
    case Route.Session:
      return sessionReply(frontend, request, body, keys, id);
    case Route.Ask:
      return decide(frontend, () => rust().ask(url, authorization, idempotencyKey, body, Date.now()), keys, id);
    default:
      return keyReply(frontend, route, { path: url, authorization, idempotencyKey }, body, keys, id);
  }
}

const { Route } = built;
const HEADERS = ["content-type", "content-encoding", "content-length", "idempotency-key"];
