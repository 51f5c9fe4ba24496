// What operators ask: Rust decides whom to ask what; this asks, and has acts recorded.
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The registry's reply to a question, as a text. `isNews` says whether that may be news for this isolate. */
export async function administered(frontend, [question, isNews], id) {
  let reply;
  try {
    reply = await within(ANSWER_MS, frontend.registry.administer(question));
  } catch (error) {
    log("error", "the registry of policies did not answer", { request_id: id, error });
    return frontend.rust().not_administered(error instanceof Timeout);
  }
  // The next request here sees the change.
  if (isNews) await frontend.changed();
  return reply;
}

/** How a key stands, as a text. `asked` are the names of its objects, each followed by a question. */
export async function inspected({ rust }, asked, keys, id) {
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

/** Whether the registry has recorded an act, a text. What cannot be recorded is at least in the log. */
export async function isRecorded({ registry }, act, id) {
  let error;
  try {
    if (registry) {
      await within(ANSWER_MS, registry.record(act));
      return true;
    }
  } catch (thrown) {
    error = thrown;
  }
  log("warn", "an act on a key is recorded here alone", { request_id: id, error, act: JSON.parse(act) });
  return false;
}

/** An operator waits longer than a caller. */
const ANSWER_MS = 5_000;
