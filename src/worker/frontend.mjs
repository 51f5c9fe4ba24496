// The frontend, in JavaScript: passes requests to Rust and replies to clients.
import { bytesOf } from "./body.mjs";
import { Timeout } from "./deadline.mjs";
import { decide } from "./decide.mjs";
import { log } from "./log.mjs";
import { contractResponse } from "./openapi.mjs";
import { Frontend } from "./policies.mjs";
import { responseOf } from "./reply.mjs";
import { requestIdOf } from "./request_id.mjs";
import * as built from "./rust/index.js";

/** The service for callers with credentials. */
export const frontend = {
  fetch(request, env) {
    service ??= new Frontend(() => new built.Frontend(env), env);
    return respond(service, request, env.KEYS);
  },
};

/** The isolate's only one: `env` is the same for all its requests. */
let service;

/** Answers a request by HTTP. `keys` is the namespace of the objects; `props` are those of the service binding, if it came through one. */
export async function respond(frontend, request, keys, props) {
  const id = requestIdOf(request);
  if (frontend.points) frontend.points.colo = request.cf?.colo ?? "";
  frontend.live.received(request);
  try {
    const [step, text] = await replied(frontend, request, keys, id, props);
    return step === Step.Contract ? contractResponse(text, id) : responseOf(text, id);
  } catch (error) {
    log("error", "the frontend failed", { request_id: id, error });
    return responseOf(frontend.rust().failed(), id);
  }
}

/** The last step of a request: a reply, or the contract. */
async function replied(frontend, request, keys, id, props) {
  const { rust } = frontend;
  const { method, url, headers } = request;
  rust().set_clock?.(headers);
  const [authorization, idempotencyKey, ...more] = HEADERS.map((name) => headers.get(name));
  const first = rust().head(method, url, authorization, props, ...more);
  if (first[0] !== Step.Read) return first;
  const [, maxLen, bodyMs, needsMore, reports] = first;
  let body;
  try {
    body = await bytesOf(request, maxLen, bodyMs);
  } catch (error) {
    return [Step.Reply, rust().unreadable(error instanceof Timeout ? undefined : String(error))];
  }
  if (reports) await frontend.changed();
  else await frontend.refreshed();
  const rest = needsMore ? [method, headers] : [];
  const ask = (newer) => rust().ask(url, authorization, props, idempotencyKey, body, newer, ...rest);
  return [Step.Reply, await decide(frontend, ask, keys, id)];
}

const { Step } = built;
const HEADERS = ["authorization", "idempotency-key", "content-type", "content-encoding", "content-length"];
