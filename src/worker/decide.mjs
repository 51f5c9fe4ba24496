// A request that Rust has read: a reply at once, or after calls of objects.
import { log } from "./log.mjs";
import { replyTo } from "./objects.mjs";

/** The reply to what `ask` asks. `id` is for the log; inside a Worker there is none. */
export async function decide(frontend, ask, keys, id) {
  const reply = await decided(frontend, ask, keys, id);
  frontend.live.decided();
  return reply;
}

async function decided(frontend, ask, keys, id) {
  let newer;
  for (let tries = 1; ; tries++) {
    const call = newer === undefined ? ask() : frontend.asking(newer, ask);
    if (typeof call === "string") return call;
    try {
      const reply = await replyTo(call, keys, id, frontend);
      if (typeof reply === "string") return reply;
      newer = reply; // nothing was done: an object has been asked under newer policies than ours
    } catch (error) {
      // Another request panicked meanwhile, and this call was lost with the old instance's memory.
      log("error", "a call was lost", { request_id: id, error });
      const again = ask(); // a reply, if the request has become wrong because its policy has changed
      if (typeof again === "string") return again;
      const unanswered = again.unanswered();
      again.free();
      return unanswered;
    }
    // Not one that fails open: what is newer may be a ban.
    if (tries === MAX_TRIES) return frontend.rust().failed();
    // What was learned does not do for a key with overrides, nor for a request over several keys, of which others may be newer too.
    if (tries > 1) await frontend.changed();
  }
}

/** Under what it knows, under what it has learned, and under what the registry says. */
const MAX_TRIES = 3;
