// Calls to objects. A `Call`, in Rust, decides which to make, when and with what timeout; this makes them and waits.
import { waitUntil } from "cloudflare:workers";
import { Timeout, within } from "./deadline.mjs";
import { log } from "./log.mjs";
import * as built from "./rust/index.js";

/**
 * Makes the calls of `call` to one object at a time, and returns its last step: see `Call.end` in call.rs. `keys` is the namespace of the
 * objects; `id` is the request's, for the log.
 */
export async function endOfOne(call, keys, id, frontend) {
  for (let next = call.next(); next; next = call.next()) {
    const left = await ask(call, next, keys, id);
    if (left === Answered.Reply) return call.into_end();
    if (left === Answered.ReplyAndMore) break;
  }
  const end = ended(call, frontend);
  renewLease(call, keys, id);
  keepLease(call, keys, id);
  return end;
}

/** Requests the next lease, if Rust requires one. */
function renewLease(call, keys, id) {
  try {
    const renewal = call.renewal();
    if (renewal) waitUntil(callInBackground(renewal, keys, id));
  } catch {
    // After a panic no leases are known.
  }
}

/** Makes a call about leases, for which no request waits. */
async function callInBackground(call, keys, id) {
  try {
    for (let next = call.next(); next; next = call.next()) await ask(call, next, keys, id);
  } catch (error) {
    log("error", "a call about a lease was lost", { request_id: id, error });
  }
  keepLease(call, keys, id);
}

/** Returns the lease that came with the answer to `call` once it is idle or over. The caller must not use `call` afterwards. */
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
        if (ended) await callInBackground(ended, keys, id);
      } catch (error) {
        log("error", "a lease was lost", { request_id: id, error });
      }
      free(call);
    })(),
  );
}

/**
 * The same for calls to several at once. There may be holds to abort after the reply, and these must finish even if the client disconnects:
 * `waitUntil` covers both.
 */
export function endOfSeveral(call, keys, id, frontend) {
  const { promise, resolve, reject } = Promise.withResolvers();
  let isDecided = false;
  const follow = async () => {
    const answers = [];
    for (let next = call.next(); next; next = call.next()) answers.push(ask(call, next, keys, id).then(follow));
    if (!isDecided && call.is_decided) {
      isDecided = true;
      resolve(ended(call, frontend));
    }
    await Promise.all(answers);
  };
  const end = follow().then(() => free(call));
  end.catch(reject);
  waitUntil(end.catch(() => {}));
  return promise;
}

/** Milliseconds until the lease that came with the answer to `call` must be checked; `undefined` if none came, or after a panic. */
function leaseMs(call) {
  try {
    return call.lease_ms;
  } catch {
    return undefined;
  }
}

/** After a panic the memory is a new one, in which nothing of the old may be freed: then every use of a call throws. */
function free(call) {
  try {
    void call.count;
  } catch {
    return;
  }
  call.free();
}

/** The last step, after its data points and notices. The call is not needed afterwards. */
function ended(call, { points, notices }) {
  const end = call.end();
  if (end[0] === Step.Again) return end; // nothing was decided
  points?.write(call);
  notices?.send(call);
  return end;
}

/** The same for a call lost with the memory of an instance that panicked. `call` only ends it. */
export function lostEnd(call, frontend) {
  const end = ended(call, frontend);
  free(call);
  return end;
}

/** Calls one object and reports the result to `call`. Returns the result of `Call::answered`, or nothing if it failed. */
async function ask(call, [index, name, policies, request, definitions, waitMs], keys, id) {
  // The name is a keyed hash: the log identifies the object without revealing the key.
  const failed = (error) => log("error", `object ${name} did not answer`, { request_id: id, error });
  let reply;
  try {
    // A new stub each time: one that has failed stays broken.
    const stub = keys.getByName(name);
    reply = await within(waitMs, stub.decide(policies, request, definitions));
  } catch (error) {
    failed(error);
    return call.failed(index, error instanceof Timeout, Boolean(error.overloaded), Boolean(error.retryable));
  }
  const left = call.answered(index, reply);
  if (left === Answered.Unreadable) failed(new Error("its answer cannot be read"));
  return left;
}

const { Answered, Step } = built;
