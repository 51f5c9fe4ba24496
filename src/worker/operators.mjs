// Operators' requests. Rust decides what to ask the registry or the objects; this asks them, and has acts recorded.
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The registry's reply to a question, as text. `isNews` says whether the question may change what this isolate must know. */
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

/** A key's state, as text. `asked` lists the names of its objects, each followed by a question. */
export async function inspected({ rust }, asked, keys, id) {
  const answers = [];
  for (let at = 0; at < asked.length; at += 2)
    answers.push(within(ANSWER_MS, keys.getByName(asked[at]).inspect(asked[at + 1])));
  try {
    return rust().inspected(await Promise.all(answers));
  } catch (error) {
    // Or an object of an older version does not know the question.
    log("error", `object ${asked[0]} did not answer`, { request_id: id, error });
    return rust().failed();
  }
}

/** Whether the registry has recorded an act, which is text. An act that cannot be recorded is logged. */
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
  log("warn", "an act on a key is recorded only in this log", { request_id: id, error, act: JSON.parse(act) });
  return false;
}

/** Maximum wait for one answer: longer than a caller's, since an operator would rather wait. */
const ANSWER_MS = 5_000;
