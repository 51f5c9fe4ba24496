// The object, in JavaScript: answers calls, and gives key_object.rs what it needs of the runtime: storage, alarms, timers.
import { DurableObject } from "cloudflare:workers";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/** Only a class that extends `DurableObject` may answer RPC, and what Rust exports cannot. */
export class KeyObject extends DurableObject {
  #rust;

  constructor(context, env) {
    super(context, env);
    // Weakly: WebAssembly keeps the host until the Rust half is freed, and that is not before this object is.
    const self = new WeakRef(this);
    const host = new Host(context.storage, () => self.deref()?.#rust());
    this.#rust = lasting(() => new built.KeyObject(String(context.id), env, host));
  }

  decide(policies, request) {
    return this.#rust().decide(policies, request);
  }

  alarm() {
    try {
      this.#rust().clean();
    } catch (error) {
      // The runtime would try again for some minutes and then never more.
      console.error("not cleaned up:", error);
      this.ctx.storage.setAlarm(Date.now() + RETRY_MS);
    }
  }
}

/** An hour: whoever mends the settings or the storage needs some time. */
const RETRY_MS = 3_600_000;

/** Rows are values of the key-value interface, not of SQL: only there can a write go on while nobody waits for it. */
class Host {
  #storage;
  #rust;

  constructor(storage, rust) {
    this.#storage = storage;
    this.#rust = rust;
  }

  rows() {
    return [...this.#storage.kv.list()].flat();
  }

  write(rows) {
    const { kv } = this.#storage;
    const put = (at) => (rows[at + 1] === undefined ? kv.delete(rows[at]) : kv.put(rows[at], rows[at + 1]));
    if (rows.length === 2) return void put(0);
    this.#storage.transactionSync(() => {
      for (let at = 0; at < rows.length; at += 2) put(at);
    });
  }

  write_background(name, row, ledger, ticket) {
    this.#storage.put(name, row, { allowUnconfirmed: true });
    if (ticket !== 0) this.#storage.sync().then(() => this.#rust()?.confirm(name, ledger, ticket));
  }

  clear() {
    this.#storage.deleteAll();
  }

  wake_at(at) {
    this.#storage.setAlarm(at);
  }

  flush_in(ms) {
    setTimeout(() => this.#rust()?.flush_idle(), ms);
  }
}
