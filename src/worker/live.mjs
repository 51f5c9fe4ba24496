// The decisions of this isolate, for operators who look on. Rust decides what to send and when; this sends it, behind the answers.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { log } from "./log.mjs";

export class Live {
  #frontend;
  /** Whether anybody looks on: otherwise no request calls Rust for this. */
  #isOn = false;

  constructor(frontend) {
    this.#frontend = frontend;
  }

  /** After a poll of the registry. */
  heard() {
    this.#isOn = this.#frontend.rust().is_live;
  }

  /** Before a request by HTTP is answered: it tells where Cloudflare has received it. */
  received({ cf }) {
    if (this.#isOn) this.#guarded(() => this.#frontend.rust().live_from(cf?.colo ?? ""));
  }

  /** After a request was decided. */
  decided() {
    if (!this.#isOn) return;
    this.#guarded(() => {
      const ms = this.#frontend.rust().live_due();
      if (ms !== undefined) waitUntil(this.#send(ms));
    });
  }

  /** An answer does not fail by what is only shown. */
  #guarded(step) {
    try {
      step();
    } catch (error) {
      log("error", "decisions cannot be shown", { error });
    }
  }

  /** Sends batches as long as there are some; later ones are left to later requests, which the runtime gives their own time. */
  async #send(first) {
    const end = Date.now() + MOST_MS;
    for (let ms = first; ms !== undefined; ms = Date.now() < end ? this.#frontend.rust().live_due() : undefined) {
      await new Promise((done) => setTimeout(done, ms));
      const batch = this.#frontend.rust().live_batch();
      if (batch === undefined) return;
      try {
        const listeners = await within(ANSWER_MS, this.#frontend.registry.hear(batch));
        this.#frontend.rust().live_answered(listeners);
      } catch (error) {
        log("warn", "the registry did not take over decisions", { error });
        this.#frontend.rust().live_failed();
      }
      this.heard();
    }
  }
}

const ANSWER_MS = 4_000;
/** The runtime ends what goes on for more than 30 seconds after an answer: with the last pause and answer, this stays below. */
const MOST_MS = 14_000;
