// The registry of policies, in JavaScript: answers calls, and gives registry.rs its storage.
import { DurableObject } from "cloudflare:workers";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/** One object for a service: its name is "registry". */
export class PolicyRegistry extends DurableObject {
  #rust;
  /** Whether there is an alarm, or whether that is being looked up. */
  #isBeating = false;

  constructor(context, env) {
    super(context, env);
    const host = new Host(context.storage);
    this.#rust = lasting(() => new built.PolicyRegistry(host, env));
  }

  /** What has changed since: see src/protocol/registry.rs. `report` says what the frontend has counted: see src/metrics/report.rs. */
  poll(question, report) {
    if (!this.#isBeating) this.#beat();
    return this.#rust().poll(question, report);
  }

  /** Looks at the policies of its own deployment, which no frontend may have asked for: see src/registry/deployment.rs. */
  async alarm() {
    this.#isBeating = true;
    try {
      await this.ctx.storage.setAlarm(built.PolicyRegistry.beats_at());
      this.#rust().beat(this.env);
    } catch (error) {
      this.#isBeating = false; // the next frontend that asks sees to the alarm
      console.error("the registry cannot look at the policies of its deployment:", error);
    }
  }

  /** Sets the first alarm. */
  async #beat() {
    this.#isBeating = true;
    try {
      const { storage } = this.ctx;
      if ((await storage.getAlarm()) === null) await storage.setAlarm(built.PolicyRegistry.beats_at());
    } catch (error) {
      this.#isBeating = false; // the next frontend that asks sees to it
      console.error("the registry's alarm cannot be set:", error);
    }
  }

  /** Decisions for operators who look on: see src/metrics/live. Returns who does, if anybody. */
  hear(batch) {
    return this.#rust().hear(batch);
  }

  /** What an operator has done to a key: see src/protocol/key_act.rs. */
  record(act) {
    this.#rust().record(act);
  }

  /** An operator's request, which a frontend has let pass; the reply is a text. */
  administer(question) {
    return this.#rust().administer(question);
  }
}

/** Rows are texts by name. */
class Host {
  #storage;

  constructor(storage) {
    this.#storage = storage;
  }

  /** The first `limit` rows whose names are above `startAfter`: name, text, name, text, ... */
  rows(startAfter, limit) {
    return [...this.#storage.kv.list({ startAfter, limit })].flat();
  }

  /** The rows of these names, `undefined` for one that is not there. */
  rows_of(names) {
    return names.map((name) => this.#storage.kv.get(name));
  }

  /** Writes rows given as in `rows`, all or none; without a text a row is deleted. */
  write(rows) {
    const { kv } = this.#storage;
    this.#storage.transactionSync(() => {
      for (let at = 0; at < rows.length; at += 2)
        if (rows[at + 1] === undefined) kv.delete(rows[at]);
        else kv.put(rows[at], rows[at + 1]);
    });
  }
}
