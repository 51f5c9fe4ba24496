// A request that Rust has read: a reply at once, or after calls of objects.
import { log } from "./log.mjs";
import { replyTo } from "./objects.mjs";

/** The reply to what `ask` asks. `id` is for the log; inside a Worker there is none. */
export async function decide(ask, keys, id) {
  const call = ask();
  if (typeof call === "string") return call;
  try {
    return await replyTo(call, keys, id);
  } catch (error) {
    // Another request panicked meanwhile, and this call was lost with the old instance's memory.
    log("error", "a call was lost", { request_id: id, error });
    return ask().unanswered();
  }
}
