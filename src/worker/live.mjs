// Sends this isolate's decisions to the registry for live listeners. Rust decides what to send and when. No answer waits for it.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";

export class Live {
  #frontend;
  /** Whether there are listeners. While there are none, no request calls Rust for this. */
  #isOn = false;

  constructor(frontend) {
    this.#frontend = frontend;
  }

  /** Call after a poll of the registry. */
  onListeners() {
    this.#isOn = this.#frontend.rust().is_live;
  }

  /** Call before answering a request by HTTP: it says which data center of Cloudflare received it. */
  received({ cf }) {
    if (this.#isOn) this.#guarded(() => this.#frontend.rust().live_from(cf?.colo ?? ""));
  }

  /** Call after a request was decided. */
  decided() {
    if (!this.#isOn) return;
    this.#guarded(() => {
      const ms = this.#frontend.rust().live_due();
      if (ms !== undefined) waitUntil(this.#send(ms));
    });
  }

  /** A failure here must not fail an answer. */
  #guarded(step) {
    try {
      step();
    } catch (error) {
      log("error", "decisions cannot be shown", { error });
    }
  }

  /** Sends batches while there are some and Rust lets this request go on. */
  async #send(first) {
    const { live_answer_ms } = this.#frontend.rust();
    for (let ms = first; ms !== undefined; ms = this.#frontend.rust().live_due_again()) {
      await new Promise((done) => setTimeout(done, ms));
      const batch = this.#frontend.rust().live_batch();
      if (batch === undefined) return;
      try {
        const listeners = await within(live_answer_ms, this.#frontend.registry.show(batch));
        this.#frontend.rust().live_answered(listeners);
      } catch (error) {
        log("warn", "the registry did not take over decisions", { error });
        this.#frontend.rust().live_failed();
      }
      this.onListeners();
    }
  }
}
