// The admin API: Rust checks who asks; the registry, which is in one place, reads and decides.
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

export function asksForAdmin(url) {
  return PATHS.some((path) => url.includes(path)) && PATHS.some((path) => new URL(url).pathname.startsWith(path));
}

/** The reply to a request with this body, as a text. */
export async function adminReply(frontend, { method, url, headers }, body, id) {
  // So that the registry has heard of this deployment's policies, or of all that has been counted here.
  await (url.includes(METRICS) ? frontend.changed() : frontend.refreshed());
  const [authorization, ifMatch, ifNoneMatch] = HEADERS.map((name) => headers.get(name));
  const question = frontend.rust().administer(method, url, authorization, ifMatch, ifNoneMatch, body);
  if (typeof question === "string") return question;
  // So that this isolate hears of who begins to look on, too.
  const begins = url.includes(DECISIONS) && !url.includes("after=");
  return administered(frontend, question, method !== "GET" || begins, id);
}

/** The registry's reply to this question, as a text. `changes` says whether that may have changed anything. */
export async function administered(frontend, [question], changes, id) {
  let reply;
  try {
    reply = await within(ADMIN_MS, frontend.registry.administer(question));
  } catch (error) {
    log("error", "the registry of policies did not answer", { request_id: id, error });
    return frontend.rust().not_administered(error instanceof Timeout);
  }
  // The next request here sees the change.
  if (changes) await frontend.changed();
  return reply;
}

const HEADERS = ["authorization", "if-match", "if-none-match"];

const METRICS = "/v1/metrics";
const DECISIONS = "/v1/decisions";
const PATHS = ["/v1/policies", "/v1/overrides", "/v1/audit", DECISIONS, METRICS];

/** An operator waits longer than a caller. */
const ADMIN_MS = 5_000;
