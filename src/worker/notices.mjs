// Notifies the operator's webhook and queue of keys that come near a limit or are refused. No answer waits for it or fails with it.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";

/** Sends notices to the queue and to the settings' webhook; `undefined` if neither is there. `rust` returns the frontend's Rust half. */
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

  /** Sends the notices that are due after an answered call. */
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

  /** Limits the deliveries under way: a flood of keys must not flood the receiver. */
  #begin(underWay, attempt) {
    const now = Date.now();
    for (const one of underWay) {
      if (now - one.beganAt < LIFE_MS) break;
      underWay.delete(one); // the runtime killed it silently
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

  /** Sends one message as specified by Standard Webhooks. */
  async #post(id, body) {
    const timestamp = Math.floor(Date.now() / 1_000);
    const [url, signature] = this.#rust().signed(id, timestamp, body);
    const response = await fetch(url, {
      method: "POST",
      redirect: "manual", // the signature is meant for this address
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

/** Without the address, which may contain a secret. */
function reasonOf(error) {
  return String(error?.message ?? error).replaceAll(/https?:\S+/g, "the webhook");
}

/** When each of this isolate's deliveries under way began, the oldest first. A hung receiver does not block the other. */
const UNDER_WAY = { queue: new Set(), webhook: new Set() };

/** Notices lost in this isolate since the last log line. */
let lost = { failed: 0, dropped: 0 };
let loggedAt = -Infinity;

/** Maximum deliveries under way to each receiver. One that answers in 100 ms gets about 300 per second. */
const MOST_UNDER_WAY = 32;

/** Pauses before the attempts. With {@link ATTEMPT_MS} for each, all end within 21 seconds: the runtime stops them after 30. */
const PAUSES_MS = [0, 1_000, 5_000];
const ATTEMPT_MS = 5_000;
const LIFE_MS = 30_000;

/** Minimum interval between log lines, so that a receiver that is down for a day costs one line per minute and isolate. */
const LOG_MS = 60_000;
