// A request that Rust has read: a reply at once, or after calls of objects.
import { log } from "./log.mjs";
import { replyTo } from "./objects.mjs";

/** The reply to what `ask` asks. `id` is for the log; inside a Worker there is none. */
export async function decide(frontend, ask, keys, id) {
  for (let tries = 1; ; tries++) {
    const call = ask();
    if (typeof call === "string") return call;
    try {
      const reply = await replyTo(call, keys, id, frontend.points);
      if (typeof reply === "string") return reply;
      // Nothing was done: an object has been asked under newer policies than ours.
      if (tries === MAX_TRIES) return unanswered(ask);
      frontend.learn(reply);
    } catch (error) {
      // Another request panicked meanwhile, and this call was lost with the old instance's memory.
      log("error", "a call was lost", { request_id: id, error });
      return unanswered(ask);
    }
    // What was learned does not do for a request over several policies, of which others may be newer too.
    if (tries > 1) await frontend.changed();
  }
}

/** The reply when it is unknown what the objects did; or to a request that has become wrong, because its policy has changed. */
function unanswered(ask) {
  const call = ask();
  return typeof call === "string" ? call : call.unanswered();
}

/** Under what it knows, under what it has learned, and under what the registry says. */
const MAX_TRIES = 3;
