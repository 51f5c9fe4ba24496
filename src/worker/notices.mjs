// Notifies the operator's webhook and queue of keys that have used up a share of a limit or are refused. Rust decides who receives which notice, how many
// are sent at once, and when to try again. No answer waits for it or fails with it.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";
import * as built from "./rust/index.js";

export class Notices {
  #queue;
  #rust;

  /** `rust` returns the frontend's Rust half. */
  constructor(queue, rust) {
    this.#queue = queue;
    this.#rust = rust;
  }

  /** Sends the notices that are due after an answered call. */
  send(call) {
    try {
      const parts = call.notices();
      for (let at = 0; at < parts.length; at += 3) this.#begin(...parts.slice(at, at + 3));
    } catch (error) {
      log("error", "a notice cannot be sent", { error });
    }
  }

  #begin(receiver, id, body) {
    const rust = this.#rust();
    const number = rust.deliver(receiver);
    const attempt = () => (receiver === Receiver.Queue ? this.#put(body) : this.#post(id, body));
    if (number === undefined) this.#logLost();
    else waitUntil(this.#deliver(rust, number, attempt));
  }

  async #deliver(begunBy, number, attempt) {
    for (let attempts = 1; ; attempts++) {
      const ended = await attempt().then(
        (status) => [status],
        (error) => [undefined, reasonOf(error)],
      );
      const rust = this.#rust();
      // After a panic the new instance does not know the number.
      const pauseMs = rust.attempted(rust === begunBy ? number : undefined, attempts, ...ended);
      if (pauseMs === undefined) return this.#logLost();
      await new Promise((done) => setTimeout(done, pauseMs));
    }
  }

  /** Logs what Rust has to say of lost notices, if anything. */
  #logLost() {
    const line = this.#rust().notices_lost();
    if (line !== undefined) log("warn", line);
  }

  async #put(body) {
    await within(this.#rust().attempt_ms, this.#queue.send(JSON.parse(body), { contentType: "json" }));
  }

  /** Sends one message as specified by Standard Webhooks. Returns the status of the answer. */
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
    return response.status;
  }
}

const reasonOf = (error) => String(error?.message ?? error);
const { Receiver } = built;
