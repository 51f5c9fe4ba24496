// What operators do with one key: Rust decides whom to ask what; this asks, and has acts recorded.
import { waitUntil } from "cloudflare:workers";
import { administered } from "./admin.mjs";
import { within } from "./deadline.mjs";
import { decide } from "./decide.mjs";
import { log } from "./log.mjs";
import * as built from "./rust/index.js";

/** A function for each of what operators do with one key: what `verb` makes of its path. */
export function keyVerbs(verb) {
  return Object.fromEntries(VERBS.map((name) => [name, verb(PATH + name)]));
}

/**
 * The reply to a request, as a text: it came to `path`, which Rust has given this `route`, with `authorization` and `idempotencyKey`, if
 * it has them. `keys` is the namespace of the objects, and `id` that of the request for the log.
 */
export function keyReply(frontend, route, asked, body, keys, id) {
  if (route === Route.InspectKey) return inspect(frontend, asked.authorization, body, keys, id);
  if (route === Route.BlockKey) return block(frontend, asked.authorization, body, id);
  // It is recorded even if the client disconnects.
  const acting = act(frontend, asked, body, keys, id);
  waitUntil(acting.catch(() => {}));
  return acting;
}

async function inspect({ rust }, authorization, body, keys, id) {
  const asked = rust().inspect_key(authorization, body);
  if (typeof asked === "string") return asked;
  const answers = [];
  for (let at = 0; at < asked.length; at += 2)
    answers.push(within(ANSWER_MS, keys.getByName(asked[at]).inspect(asked[at + 1])));
  try {
    return rust().inspected(await Promise.all(answers));
  } catch (error) {
    // Also an object of an older version, which does not know the question.
    log("error", `object ${asked[0]} did not answer`, { request_id: id, error });
    return rust().failed();
  }
}

function block(frontend, authorization, body, id) {
  const asked = frontend.rust().block_key(authorization, body);
  return typeof asked === "string" ? asked : administered(frontend, asked, id);
}

async function act(frontend, { path, authorization, idempotencyKey }, body, keys, id) {
  const { rust } = frontend;
  let object = "";
  const ask = () => {
    const call = rust().ask(path, authorization, idempotencyKey, body, Date.now());
    if (typeof call !== "string") object = call.object;
    return call;
  };
  const reply = await decide(frontend, ask, keys, id);
  const done = rust().key_act(path, authorization, object, reply);
  return done === undefined ? reply : rust().recorded(reply, await isRecorded(frontend, done, id));
}

/** What cannot be recorded is at least in the log. */
async function isRecorded(frontend, act, id) {
  let error;
  try {
    if (frontend.registry) {
      await within(ANSWER_MS, frontend.registry.record(act));
      return true;
    }
  } catch (thrown) {
    error = thrown;
  }
  log("warn", "an act on a key is recorded here alone", { request_id: id, error, act: JSON.parse(act) });
  return false;
}

const { Route } = built;
const PATH = "/v1/keys/";
const VERBS = ["inspect", "explain", "reset", "credit", "block"];

/** An operator waits longer than a caller. */
const ANSWER_MS = 5_000;
