// The registry of policies, in JavaScript: answers calls, and gives registry.rs its storage.
import { DurableObject } from "cloudflare:workers";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/** The service's only object of this class; its name is "registry". */
export class PolicyRegistry extends DurableObject {
  #rust;
  /** Whether an alarm is set or being looked up. */
  #isBeating = false;

  constructor(context, env) {
    super(context, env);
    const host = new Host(context.storage);
    this.#rust = lasting(() => new built.PolicyRegistry(host, env));
  }

  /** Returns what has changed: see src/protocol/registry.rs. `report` has the frontend's counts: see src/metrics/report.rs. */
  poll(question, report) {
    if (!this.#isBeating) this.#beat();
    return this.#rust().poll(question, report);
  }

  /** Registers the policies of its own deployment, even if no frontend has polled: see src/registry/deployment.rs. */
  async alarm() {
    this.#isBeating = true;
    try {
      await this.ctx.storage.setAlarm(built.PolicyRegistry.beats_at());
      this.#rust().beat(this.env);
    } catch (error) {
      this.#isBeating = false; // the next poll sets the alarm
      console.error("the registry cannot read the policies of its deployment:", error);
    }
  }

  /** Sets the first alarm. */
  async #beat() {
    this.#isBeating = true;
    try {
      const { storage } = this.ctx;
      if ((await storage.getAlarm()) === null) await storage.setAlarm(built.PolicyRegistry.beats_at());
    } catch (error) {
      this.#isBeating = false; // the next poll tries again
      console.error("the registry's alarm cannot be set:", error);
    }
  }

  /** Shows decisions to the live listeners, and returns these, if there are any: see src/metrics/live. */
  show(batch) {
    return this.#rust().show(batch);
  }

  /** Records an operator's act on a key: see src/protocol/key_act.rs. */
  record(act) {
    this.#rust().record(act);
  }

  /**
   * Answers an operator's request, which a frontend has authorized: the reply, as text, and whether it is news for the frontend. A frontend
   * of a version that does not ask for the latter gets only the reply.
   */
  administer(question, asksForNews) {
    const [reply, isNews] = this.#rust().administer(question);
    return asksForNews ? [reply, isNews] : reply;
  }
}

/** Storage for Rust: each row has a name and a text. */
class Host {
  #storage;

  constructor(storage) {
    this.#storage = storage;
  }

  /** The first `limit` rows whose names are above `startAfter`: name, text, name, text, ... */
  rows(startAfter, limit) {
    return [...this.#storage.kv.list({ startAfter, limit })].flat();
  }

  /** The rows with these names; `undefined` for each that does not exist. */
  rows_of(names) {
    return names.map((name) => this.#storage.kv.get(name));
  }

  /** Writes rows, in the form that `rows` returns, all or none. A row without a text is deleted. */
  write(rows) {
    const { kv } = this.#storage;
    this.#storage.transactionSync(() => {
      for (let at = 0; at < rows.length; at += 2)
        if (rows[at + 1] === undefined) kv.delete(rows[at]);
        else kv.put(rows[at], rows[at + 1]);
    });
  }
}
