// Calls to objects. A `Call`, in Rust, decides which, when and with what timeout; this makes them and waits.
import { waitUntil } from "cloudflare:workers";
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";
import { received, sent } from "./numbers.mjs";
import * as built from "./rust/index.js";

/**
 * The reply to `call`: see `replyOf`. `keys` is the namespace of the objects, and `id` that of the request for the log. A batch may still have
 * holds to abort after its reply, and must finish even if the client disconnects: `waitUntil` covers both.
 */
export function replyTo(call, keys, id, frontend) {
  return call.count > 1 ? replyOfSeveral(call, keys, id, frontend) : replyOfOne(call, keys, id, frontend);
}

async function replyOfOne(call, keys, id, frontend) {
  for (let next = call.next(); next; next = call.next()) {
    const left = await ask(call, next, keys, id);
    if (left === Answered.Reply && !frontend.points && !frontend.notices) return call.into_reply();
    if (left === Answered.Reply || left === Answered.ReplyAndMore) break;
  }
  const reply = replyOf(call, frontend);
  renewLease(call, keys, id);
  keepLease(call, keys, id);
  return reply;
}

/** Asks for the next lease, if Rust says so. */
function renewLease(call, keys, id) {
  try {
    const renewal = call.renewal();
    if (renewal) waitUntil(tell(renewal, keys, id));
  } catch {
    // After a panic nothing is known of leases.
  }
}

/** Makes a call about leases, which nobody waits for. */
async function tell(call, keys, id) {
  try {
    for (let next = call.next(); next; next = call.next()) await ask(call, next, keys, id);
  } catch (error) {
    log("error", "a call about a lease was lost", { request_id: id, error });
  }
  keepLease(call, keys, id);
}

/** Returns the lease that came with the answer to `call` once it is idle or over. The call is not used any more. */
function keepLease(call, keys, id) {
  if (leaseMs(call) === undefined) return free(call);
  waitUntil(
    (async () => {
      try {
        let ended;
        for (let ms = leaseMs(call); ms !== undefined; ms = leaseMs(call)) {
          await new Promise((resolve) => setTimeout(resolve, ms));
          ended = call.end_lease();
        }
        if (ended) await tell(ended, keys, id);
      } catch (error) {
        log("error", "a lease was lost", { request_id: id, error });
      }
      free(call);
    })(),
  );
}

function replyOfSeveral(call, keys, id, frontend) {
  const { promise, resolve, reject } = Promise.withResolvers();
  let isDecided = false;
  const follow = async () => {
    const answers = [];
    for (let next = call.next(); next; next = call.next()) answers.push(ask(call, next, keys, id).then(follow));
    if (!isDecided && call.is_decided) {
      isDecided = true;
      resolve(replyOf(call, frontend));
    }
    await Promise.all(answers);
  };
  const end = follow().then(() => free(call));
  end.catch(reject);
  waitUntil(end.catch(() => {}));
  return promise;
}

/** In how many milliseconds to look at the lease that came with the answer to `call`; `undefined` if none did, or after a panic. */
function leaseMs(call) {
  try {
    return call.lease_ms;
  } catch {
    return undefined;
  }
}

/** After a panic the memory is another one, in which nothing may be freed: then a call throws whatever it is asked. */
function free(call) {
  try {
    void call.count;
  } catch {
    return;
  }
  call.free();
}

/**
 * The reply at last, a text, of which the frontend's data points and notices are made; `newer`, if it has to be asked again; or `after`, what
 * is to be done first (not `then`, which would make a promise of it). After that the call is not needed.
 */
function replyOf(call, { points, notices }) {
  const newer = call.newer();
  if (newer !== undefined) return { newer };
  const after = call.after();
  points?.write(call);
  notices?.send(call);
  return after === undefined ? call.reply() : { after };
}

/** The same for a call that was lost with the memory of an instance that has panicked: `call` is the same once more, and is not made. */
export function lostReplyOf(call, frontend) {
  call.lose();
  const reply = replyOf(call, frontend);
  free(call);
  return reply;
}

/** Calls one object and reports the result to `call`; returns what `Call::answered` does, or nothing if it has failed. */
async function ask(call, [index, name, policies, request, definitions, waitMs], keys, id) {
  // The name is a keyed hash, so the log identifies the object without revealing the key.
  const failed = (error) => log("error", `object ${name} did not answer`, { request_id: id, error });
  let reply;
  try {
    // A new stub each time: one that has failed stays broken.
    const stub = keys.getByName(name);
    reply = received(await within(waitMs, stub.decide(policies, sent(request), definitions)));
  } catch (error) {
    failed(error);
    return call.failed(index, causeOf(error), Boolean(error.retryable));
  }
  const left = call.answered(index, reply);
  if (left === Answered.Unreadable) failed(new Error("its answer cannot be read"));
  return left;
}

function causeOf(error) {
  if (error instanceof Timeout) return "timeout";
  return error.overloaded ? "overloaded" : "failed";
}

const { Answered } = built;
