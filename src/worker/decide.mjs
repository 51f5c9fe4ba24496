// Answers a request that Rust has parsed: at once, after calls to objects, or by the registry's reply.
import { waitUntil } from "cloudflare:workers";
import { log } from "./log.mjs";
import { lostReplyOf, replyTo } from "./objects.mjs";
import { administered, inspected, isRecorded } from "./operators.mjs";
import * as built from "./rust/index.js";
import { verified } from "./session.mjs";

/**
 * The reply, as text, to the request that `ask` makes: see `Frontend.ask` in frontend.rs. If an object has newer policies, the request is
 * made again with them. `id` is for the log; there is none inside a Worker.
 */
export async function decide(frontend, ask, keys, id) {
  const reply = await decided(frontend, ask, keys, id);
  frontend.live.decided();
  return typeof reply === "string" ? reply : finished(frontend, reply.after, id);
}

/** A reply, or what must be done before it. */
async function decided(frontend, ask, keys, id) {
  for (let newer; ; ) {
    const step = ask(newer);
    if (typeof step === "string") return step;
    if (Array.isArray(step)) return goneOn(frontend, step, keys, id);
    try {
      const reply = await begun(step, keys, id, frontend);
      if (reply.newer === undefined) return reply;
      newer = reply.newer;
    } catch (error) {
      // Another request panicked meanwhile, and this call was lost with the old instance's memory.
      log("error", "a call was lost", { request_id: id, error });
      const again = ask(); // a reply if the request became invalid because its policy has changed
      return typeof again === "string" ? again : lostReplyOf(again, frontend);
    }
    const [, , , needsRegistry] = newer;
    if (needsRegistry) await frontend.changed();
  }
}

function begun(call, keys, id, frontend) {
  const { must_finish } = call;
  const replying = replyTo(call, keys, id, frontend);
  if (must_finish) waitUntil(replying.catch(() => {}));
  return replying;
}

function finished(frontend, [then, ...asked], id) {
  if (then === Then.Verify) return verified(frontend, asked, id);
  const [act, recorded, unrecorded] = asked;
  const recording = isRecorded(frontend, act, id).then((is) => (is ? recorded : unrecorded));
  waitUntil(recording); // even if the client disconnects
  return recording;
}

function goneOn(frontend, [go, ...asked], keys, id) {
  return go === Go.Administer ? administered(frontend, asked, id) : inspected(frontend, asked, keys, id);
}

const { Go, Then } = built;
