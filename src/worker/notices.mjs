// Tells the operator's webhook and queue of keys that come near a limit or are refused. No answer waits for that or fails by it.
import { waitUntil } from "cloudflare:workers";
import { log } from "./log.mjs";

/** Who is told, if anyone is; `rust` gives the frontend's Rust half. */
export function noticesTo({ NOTICES: queue, TOLLGATE_WEBHOOK_URL: url }, rust) {
  return queue || url ? new Notices(queue, Boolean(url), rust) : undefined;
}

class Notices {
  #queue;
  #hasWebhook;
  #rust;
  /** When each delivery that is under way began, in that order. */
  #underWay = new Set();
  /** What was lost since the log last said so. */
  #lost = { failed: 0, dropped: 0 };
  #loggedAt = -Infinity;

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
        if (this.#queue) this.#begin(async () => this.#queue.send(JSON.parse(body), { contentType: "json" }));
        if (this.#hasWebhook) this.#begin(() => this.#post(id, body));
      }
    } catch (error) {
      log("error", "a notice cannot be sent", { error });
    }
  }

  /** At most so many at once: a flood of keys must not become a flood of the receiver. */
  #begin(attempt) {
    const now = Date.now();
    for (const one of this.#underWay) {
      if (now - one.beganAt < LIFE_MS) break;
      this.#underWay.delete(one); // the runtime has ended it without a word
    }
    if (this.#underWay.size >= MOST_UNDER_WAY) return this.#ended("dropped", "too many are under way");
    const one = { beganAt: now };
    this.#underWay.add(one);
    waitUntil(this.#deliver(attempt).finally(() => this.#underWay.delete(one)));
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
    this.#lost[outcome]++;
    const now = Date.now();
    if (now - this.#loggedAt < LOG_MS) return;
    const { failed, dropped } = this.#lost;
    log("warn", `notices are lost: ${failed} failed, ${dropped} dropped; the last: ${reason}`);
    this.#lost = { failed: 0, dropped: 0 };
    this.#loggedAt = now;
  }
}

/** Without the address, which may have a secret of its own. */
function reasonOf(error) {
  return String(error?.message ?? error).replaceAll(/https?:\S+/g, "the webhook");
}

/** In each isolate. A receiver that answers in a tenth of a second so gets some three hundred a second. */
const MOST_UNDER_WAY = 32;

/** Before each attempt. With {@link ATTEMPT_MS} for each, all are over in 21 seconds: the runtime ends what goes on for 30. */
const PAUSES_MS = [0, 1_000, 5_000];
const ATTEMPT_MS = 5_000;
const LIFE_MS = 30_000;

/** A receiver that is gone for a day is one line a minute, for each isolate. */
const LOG_MS = 60_000;
