// Operators' requests. Rust decides what to ask the registry or the objects; this asks them, and has acts recorded.
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** The registry's reply to a question, as text. The registry says whether it changes what this isolate must know. */
export async function administered(frontend, [question], id) {
  let reply;
  let isNews;
  try {
    const answer = await within(frontend.rust().operator_ms, frontend.registry.administer(question, true));
    // A registry of an older version does not say whether it is news.
    [reply, isNews] = typeof answer === "string" ? [answer, true] : answer;
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
  const { operator_ms } = rust();
  const answers = [];
  for (let at = 0; at < asked.length; at += 2)
    answers.push(within(operator_ms, keys.getByName(asked[at]).inspect(asked[at + 1])));
  try {
    return rust().inspected(await Promise.all(answers));
  } catch (error) {
    // Or an object of an older version does not know the question.
    log("error", `object ${asked[0]} did not answer`, { request_id: id, error });
    return rust().not_inspected(error instanceof Timeout);
  }
}

/** The reply about an act on a key, as text, once the registry has recorded it or has not. */
export async function recorded({ registry, rust }, [recording], id) {
  let isRecorded = false;
  try {
    await within(rust().operator_ms, registry.record(recording.act));
    isRecorded = true;
  } catch (error) {
    log("error", "the registry of policies did not answer", { request_id: id, error });
  }
  return recording.reply(isRecorded);
}
