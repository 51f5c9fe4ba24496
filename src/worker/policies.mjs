// What a frontend knows of the registry of policies. Rust decides when to ask; this asks, and waits no longer than it says.
import { waitUntil } from "cloudflare:workers";
import { within } from "./deadline.mjs";
import { Live } from "./live.mjs";
import { log } from "./log.mjs";
import { noticesTo } from "./notices.mjs";
import { Points } from "./points.mjs";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/**
 * A frontend that `make` makes in Rust's memory, whatever becomes of that: `rust` gives it. It follows the registry in `env`, if its
 * settings say so, writes its decisions to the data set there, and sends its notices to the receivers there.
 */
export class Frontend {
  #registry;
  /** What it last knew of the registry, for the frontend of a new memory. */
  #known;
  /** The latest question to the registry, until it is answered. */
  #asking = Promise.resolve();

  /** Writes its decisions, if there is where to. */
  points;
  /** Shows them to operators who look on. */
  live = new Live(this);
  /** Sends notices, if there is where to. */
  notices;

  constructor(make, env) {
    if (env.METRICS) this.points = new Points(env.METRICS, () => this.rust().sample);
    this.rust = lasting((isForgetting) => {
      const made = make();
      if (isForgetting) this.#known = undefined;
      if (this.#known !== undefined) made.restore(this.#known);
      return made;
    }, true);
    if (this.rust().has_registry) this.#registry = env.REGISTRY;
    this.notices = noticesTo(env.NOTICES, this.rust);
  }

  /** Before a request is answered: asks the registry if it is time, and waits only if Rust says so. */
  refreshed() {
    const due = this.#registry ? this.rust().due() : Ask.Not;
    if (due === Ask.Not) return;
    const asking = this.#ask();
    if (due === Ask.BeforeAnswer) return this.#waitFor(asking);
  }

  /** After a change: asks the registry, also if it is being asked, for that may have been before. */
  changed() {
    return this.#waitFor(this.#asking.then(() => this.#ask()));
  }

  /** The registry, if there is one: then one in the world. A new stub each time: one that has failed stays broken. */
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

  /** Asks, and again if the registry wants to know more. */
  async #follow(first) {
    const rust = this.rust();
    try {
      let report = rust.report();
      for (let question = first; question !== undefined; ) {
        const answer = await within(rust.poll_ms, this.registry.poll(question, report));
        if (report !== undefined) this.rust().reported(report);
        report = undefined;
        question = this.rust().updated(answer);
      }
      this.#known = this.rust().news() ?? this.#known;
      this.live.heard();
    } catch (error) {
      log("error", "the registry of policies did not answer", { error });
      this.rust().not_updated();
    }
  }

  async #waitFor(asking) {
    try {
      await within(this.rust().wait_ms, asking);
    } catch {} // it goes on with what it knows
  }
}

const { Ask } = built;
