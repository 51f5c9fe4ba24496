// The admin API: Rust checks who asks; the registry, which is in one place, reads and decides.
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The reply to a request with this body, as a text. */
export function adminReply(frontend, { method, url, headers }, authorization, body, id) {
  const [ifMatch, ifNoneMatch] = HEADERS.map((name) => headers.get(name));
  const asked = frontend.rust().administer(method, url, authorization, ifMatch, ifNoneMatch, body);
  return typeof asked === "string" ? asked : administered(frontend, asked, id);
}

/** The registry's reply to a question, as a text. `isNews` says whether that may be news for this isolate. */
export async function administered(frontend, [question, isNews], id) {
  let reply;
  try {
    reply = await within(ADMIN_MS, frontend.registry.administer(question));
  } catch (error) {
    log("error", "the registry of policies did not answer", { request_id: id, error });
    return frontend.rust().not_administered(error instanceof Timeout);
  }
  // The next request here sees the change.
  if (isNews) await frontend.changed();
  return reply;
}

const HEADERS = ["if-match", "if-none-match"];

/** An operator waits longer than a caller. */
const ADMIN_MS = 5_000;
