// Tells the operator's webhook and queue of keys that come near a limit or are refused. No answer waits for that or fails by it.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** Who is told, if anyone is: the queue, if there is one, and the webhook that the settings name. `rust` gives the frontend's Rust half. */
export function noticesTo(queue, rust) {
  const { has_webhook } = rust();
  return queue || has_webhook ? new Notices(queue, has_webhook, rust) : undefined;
}

class Notices {
  #queue;
  #hasWebhook;
  #rust;

  constructor(queue, hasWebhook, rust) {
    this.#queue = queue;
    this.#hasWebhook = hasWebhook;
    this.#rust = rust;
  }

  /** Sends what an answered call says is due. */
  send(call) {
    try {
      const parts = call.notices();
      for (let at = 0; at < parts.length; at += 2) {
        const [id, body] = parts.slice(at, at + 2);
        if (this.#queue) this.#begin(UNDER_WAY.queue, () => this.#put(body));
        if (this.#hasWebhook) this.#begin(UNDER_WAY.webhook, () => this.#post(id, body));
      }
    } catch (error) {
      log("error", "a notice cannot be sent", { error });
    }
  }

  /** At most so many at once: a flood of keys must not become a flood of the receiver. */
  #begin(underWay, attempt) {
    const now = Date.now();
    for (const one of underWay) {
      if (now - one.beganAt < LIFE_MS) break;
      underWay.delete(one); // the runtime has ended it without a word
    }
    if (underWay.size >= MOST_UNDER_WAY) return this.#ended("dropped", "too many are under way");
    const one = { beganAt: now };
    underWay.add(one);
    waitUntil(this.#deliver(attempt).finally(() => underWay.delete(one)));
  }

  async #deliver(attempt) {
    let reason;
    for (const pauseMs of PAUSES_MS) {
      if (pauseMs > 0) await new Promise((done) => setTimeout(done, pauseMs));
      reason = await attempt().then(() => undefined, reasonOf);
      if (reason === undefined) break;
    }
    this.#ended(reason === undefined ? "delivered" : "failed", reason);
  }

  async #put(body) {
    await within(ATTEMPT_MS, this.#queue.send(JSON.parse(body), { contentType: "json" }));
  }

  /** One message, as Standard Webhooks has it. */
  async #post(id, body) {
    const timestamp = Math.floor(Date.now() / 1_000);
    const [url, signature] = this.#rust().signed(id, timestamp, body);
    const response = await fetch(url, {
      method: "POST",
      redirect: "manual", // what is signed is for this address
      headers: {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": String(timestamp),
        "webhook-signature": signature,
      },
      body,
      signal: AbortSignal.timeout(ATTEMPT_MS),
    });
    response.body?.cancel().catch(() => {});
    if (!response.ok) throw new Error(`the webhook answered ${response.status}`);
  }

  #ended(outcome, reason) {
    this.#rust().noticed(outcome);
    if (reason === undefined) return;
    lost[outcome]++;
    const now = Date.now();
    if (now - loggedAt < LOG_MS) return;
    log("warn", `notices are lost: ${lost.failed} failed, ${lost.dropped} dropped; the last: ${reason}`);
    lost = { failed: 0, dropped: 0 };
    loggedAt = now;
  }
}

/** Without the address, which may have a secret of its own. */
function reasonOf(error) {
  return String(error?.message ?? error).replaceAll(/https?:\S+/g, "the webhook");
}

/** When each delivery of this isolate that is under way began, in that order. One receiver that hangs is in no way of the other. */
const UNDER_WAY = { queue: new Set(), webhook: new Set() };

/** What this isolate has lost since the log last said so. */
let lost = { failed: 0, dropped: 0 };
let loggedAt = -Infinity;

/** To each receiver. One that answers in a tenth of a second so gets some three hundred a second. */
const MOST_UNDER_WAY = 32;

/** Before each attempt. With {@link ATTEMPT_MS} for each, all are over in 21 seconds: the runtime ends what goes on for 30. */
const PAUSES_MS = [0, 1_000, 5_000];
const ATTEMPT_MS = 5_000;
const LIFE_MS = 30_000;

/** A receiver that is gone for a day is one line a minute, for each isolate. */
const LOG_MS = 60_000;
