// Notifies the operator's webhook and queue of keys that come near a limit or are refused. Rust decides how many at once and
// when to try again. No answer waits for it or fails with it.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";
import * as built from "./rust/index.js";

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
        if (this.#queue) this.#begin(Receiver.Queue, () => this.#put(body));
        if (this.#hasWebhook) this.#begin(Receiver.Webhook, () => this.#post(id, body));
      }
    } catch (error) {
      log("error", "a notice cannot be sent", { error });
    }
  }

  #begin(receiver, attempt) {
    const rust = this.#rust();
    const number = rust.deliver(receiver);
    if (number === undefined) this.#lost();
    else waitUntil(this.#deliver(rust, number, attempt));
  }

  async #deliver(begunBy, number, attempt) {
    for (let attempts = 1; ; attempts++) {
      const reason = await attempt().then(() => undefined, reasonOf);
      const rust = this.#rust();
      // After a panic the new instance does not know the number.
      const known = rust === begunBy ? number : undefined;
      if (reason === undefined) return rust.delivered(known);
      const pauseMs = rust.not_delivered(known, attempts, reason);
      if (pauseMs === undefined) return this.#lost();
      await new Promise((done) => setTimeout(done, pauseMs));
    }
  }

  #lost() {
    const line = this.#rust().notices_lost();
    if (line !== undefined) log("warn", line);
  }

  async #put(body) {
    await within(this.#rust().attempt_ms, this.#queue.send(JSON.parse(body), { contentType: "json" }));
  }

  /** Sends one message as specified by Standard Webhooks. */
  async #post(id, body) {
    const [url, timestamp, signature] = this.#rust().signed(id, body);
    const response = await fetch(url, {
      method: "POST",
      redirect: "manual", // the signature is meant for this address
      headers: {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature,
      },
      body,
      signal: AbortSignal.timeout(this.#rust().attempt_ms),
    });
    response.body?.cancel().catch(() => {});
    if (!response.ok) throw new Error(`the webhook answered ${response.status}`);
  }
}

const reasonOf = (error) => String(error?.message ?? error);
const { Receiver } = built;
