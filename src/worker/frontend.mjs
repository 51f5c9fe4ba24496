// The frontend, in JavaScript: reads requests, calls objects, waits for them and gives up waiting. What is said and what it
// means is decided in frontend.rs; texts of replies are made there and taken apart here.
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

export const frontend = {
  async fetch(request, env) {
    rust ??= lasting(() => new built.Frontend(env));
    try {
      return response(await reply(request, env));
    } catch (error) {
      console.error("the frontend failed:", error);
      return response(rust().failed());
    }
  },
};

/** One for the isolate: `env` is the same for all its requests. */
let rust;

async function reply(request, env) {
  const { method, url, headers } = request;
  rust().set_clock?.(headers);
  const [authorization, type, encoding, length] = HEADERS.map((name) => headers.get(name));
  const early = rust().head(method, url, authorization, type, encoding, length);
  if (early !== undefined) return early;
  let body;
  try {
    body = await bytes(request, length !== null);
  } catch (error) {
    return rust().unreadable(String(error));
  }
  const idempotencyKey = headers.get("idempotency-key");
  const call = rust().ask(url, idempotencyKey, body);
  if (typeof call === "string") return call;
  try {
    await (call.count === 1 ? one(call, env) : several(call, env));
    return call.reply();
  } catch (error) {
    const cause = causeOf(error);
    try {
      return call.unanswered(cause);
    } catch {
      // Another request has panicked in the meantime, and this call went with the memory it was in.
      return rust().ask(url, idempotencyKey, body).unanswered(cause);
    }
  }
}

const HEADERS = ["authorization", "content-type", "content-encoding", "content-length"];

/** The body, or as much of it as shows that it is too long. */
async function bytes(request, hasLength) {
  if (hasLength || !request.body) return new Uint8Array(await request.arrayBuffer());
  const max = rust().max_body_len;
  const body = new Uint8Array(max + 1);
  let length = 0;
  for await (const chunk of request.body) {
    const rest = chunk.subarray(0, body.length - length);
    body.set(rest, length);
    length += rest.length;
    if (length > max) break;
  }
  return body.subarray(0, length);
}

async function one(call, env) {
  call.heard(0, await askFor(call, 0, env, call.request(0)));
}

/** Two phases: whoever vanishes in between leaves tokens held, which the objects take back by themselves. */
async function several(call, env) {
  const began = Date.now();
  let isGranted = true;
  let failure;
  let index = 0;
  for (; index < call.count && isGranted && !failure; index++) {
    try {
      if (Date.now() - began > BATCH_MS) throw new Timeout(`a batch was not decided within ${BATCH_MS} ms`);
      isGranted = call.heard(index, await askFor(call, index, env, call.request(index)));
    } catch (error) {
      failure = error;
    }
  }
  if (!isGranted && !failure) {
    const rest = Array.from({ length: call.count - index }, (_, n) => index + n);
    const looks = rest.map(async (other) => call.heard(other, await askFor(call, other, env, call.look(other))));
    failure = (await Promise.allSettled(looks)).find(({ status }) => status === "rejected")?.reason;
  }
  // One after the other: what is not kept yet when one fails can still be given back.
  for (let index = 0; isGranted && !failure && index < call.count; index++) {
    const objectRequest = call.keep(index);
    try {
      if (objectRequest && !call.kept(index, await askFor(call, index, env, objectRequest)))
        failure = new Error("what was held is no more");
    } catch (error) {
      failure = error;
    }
  }
  if (isGranted && !failure) return;
  // What cannot be given back now comes back by itself.
  await Promise.allSettled(
    Array.from({ length: call.count }, async (_, index) => {
      const objectRequest = call.give_back(index);
      if (objectRequest) call.given_back(index, await askFor(call, index, env, objectRequest));
    }),
  );
  if (failure) throw failure;
}

function askFor(call, index, env, objectRequest) {
  return ask(env, call.name(index), call.policies(index), objectRequest);
}

/** The object's answer within the deadline. What the runtime calls retryable is asked once more: it is known by its id. */
async function ask(env, name, policies, objectRequest) {
  for (let isLast = false; ; isLast = true) {
    try {
      // A new stub each time: one that has failed stays broken.
      return await withinDeadline(env.KEYS.getByName(name).decide(policies, objectRequest));
    } catch (error) {
      // The name is a keyed hash, so the log tells which object without telling whose.
      console.error(`object ${name} did not answer:`, error);
      if (isLast || !error.retryable || error.overloaded) throw error;
    }
  }
}

function withinDeadline(answer) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Timeout(`no answer within ${DEADLINE_MS} ms`)), DEADLINE_MS);
    const settle = (settled) => (value) => {
      clearTimeout(timer);
      settled(value);
    };
    answer.then(settle(resolve), settle(reject));
  });
}

class Timeout extends Error {}

/** What a batch holds comes back after ten seconds: half of them, to hold it all, leaves as much to take it. */
const BATCH_MS = 5_000;

/** Longer than it takes to wake an object at the other end of the world, and no longer than a client likes to wait. */
const DEADLINE_MS = 2_000;

function causeOf(error) {
  if (error instanceof Timeout) return "timeout";
  return error.overloaded ? "overloaded" : "failed";
}

/** The status, a line for each header, an empty line, the body. */
function response(text) {
  let at = text.indexOf("\n");
  const status = Number(text.slice(0, at));
  const headers = {};
  for (at++; text[at] !== "\n"; at++) {
    const colon = text.indexOf(": ", at);
    const name = text.slice(at, colon);
    at = text.indexOf("\n", colon);
    headers[name] = text.slice(colon + 2, at);
  }
  return new Response(text.slice(at + 1) || null, { status, headers });
}
