// Keeps a frontend up to date with the registry of policies. Rust decides when to poll and how long to wait; this does both.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { Live } from "./live.mjs";
import { log } from "./log.mjs";
import { Notices } from "./notices.mjs";
import { Points } from "./points.mjs";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/**
 * A frontend. `rust` returns its Rust half, which `make` makes again if Rust's memory was lost. Depending on its settings, it follows the
 * registry in `env`, writes its decisions to the data set there, and sends its notices to the receivers there.
 */
export class Frontend {
  #registry;
  /** The registry's last known state, for a Rust half made after a panic. */
  #known;
  /** Settles when the latest poll has been answered. */
  #asking = Promise.resolve();

  /** Writes its decisions to Analytics Engine, if configured. */
  points;
  /** Sends its decisions to live listeners. */
  live = new Live(this);
  /** Sends notices, if configured. */
  notices;

  constructor(make, env) {
    if (env.METRICS) this.points = new Points(env.METRICS, () => this.rust().point_weight(Math.random()));
    this.rust = lasting((isForgetting) => {
      const made = make();
      if (isForgetting) this.#known = undefined;
      if (this.#known !== undefined) made.restore(this.#known);
      return made;
    }, true);
    if (this.rust().has_registry) this.#registry = env.REGISTRY;
    if (this.rust().has_receivers) this.notices = new Notices(env.NOTICES, this.rust);
  }

  /** Call before answering a request. Polls the registry if a poll is due, and waits for it only if Rust requires that. */
  refreshed() {
    const due = this.#registry ? this.rust().due() : Ask.Not;
    if (due === Ask.Not) return;
    const asking = this.#ask();
    if (due === Ask.BeforeAnswer) return this.#waitFor(asking);
  }

  /** Call after a change. Polls the registry even if a poll is under way, which may have begun before the change. */
  changed() {
    return this.#waitFor(this.#asking.then(() => this.#ask()));
  }

  /** The service's only registry, if it has one. A new stub each time: a stub that has failed stays broken. */
  get registry() {
    return this.#registry?.getByName("registry");
  }

  #ask() {
    const question = this.rust().poll();
    if (question !== undefined) {
      this.#asking = this.#follow(question);
      waitUntil(this.#asking);
    }
    return this.#asking;
  }

  /** Polls, and polls again if the registry requests more. */
  async #follow(first) {
    const rust = this.rust();
    try {
      let report = rust.report();
      for (let question = first; question !== undefined; ) {
        const answer = await within(rust.poll_ms, this.registry.poll(question, report));
        if (rust !== this.rust()) return; // of an instance that has been replaced since; the new one polls from the start
        if (report !== undefined) rust.reported(report);
        report = undefined;
        question = rust.updated(answer);
      }
      this.#known = rust.news() ?? this.#known;
      this.live.onListeners();
    } catch (error) {
      log("error", "the registry of policies did not answer", { error });
      if (rust === this.rust()) rust.not_updated();
    }
  }

  async #waitFor(asking) {
    try {
      await within(this.rust().wait_ms, asking);
    } catch {} // continues with what is known
  }
}

const { Ask } = built;
