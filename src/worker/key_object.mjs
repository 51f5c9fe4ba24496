// The object, in JavaScript: answers calls, and gives key_object.rs what it needs from the runtime: storage, alarms, timers.
import { DurableObject } from "cloudflare:workers";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/** Only a class that extends `DurableObject` may answer RPC, and a class exported from Rust cannot. */
export class KeyObject extends DurableObject {
  #rust;
  #host;

  constructor(context, env) {
    super(context, env);
    // A weak reference, because WebAssembly keeps the host until the Rust half is freed, which happens only after this
    // object is. Closures of one scope keep alive whatever any of them captures, so neither of these may use `this`.
    const self = new WeakRef(this);
    const host = new Host(context.storage, () => self.deref()?.#rust());
    this.#rust = lasting(() => new built.KeyObject(String(context.id), env, host));
    this.#host = host;
  }

  decide(policies, request, definitions) {
    return this.#rust().decide(policies, request, definitions);
  }

  /** The key's state: see src/api/keys/question.rs. */
  inspect(question) {
    return this.#rust().inspect(question);
  }

  /**
   * Does not throw when cleaning fails: the runtime would retry for some minutes, and then give up for good. It throws only if
   * storage fails, which is what the runtime's retries are for.
   */
  alarm() {
    this.#host.alarmed();
    try {
      this.#rust().clean();
      this.#host.cleaned();
    } catch (error) {
      console.error("not cleaned up:", error);
      this.#host.not_cleaned();
    }
  }
}

/**
 * Storage, alarms and timers. Rows are values of the key-value interface, not of SQL: only there can a write go on in the
 * background.
 */
class Host {
  #storage;
  #rust;
  /** Whether an alarm is set or being looked up. */
  #isAlarmKnown = false;

  constructor(storage, rust) {
    this.#storage = storage;
    this.#rust = rust;
  }

  rows() {
    const rows = [...this.#storage.kv.list()].filter(([name]) => name !== FAILURES);
    if (rows.length > 0 && !this.#isAlarmKnown) this.#ensureAlarm();
    return rows.flat();
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
    this.#storage.sync().then(() => this.#rust()?.confirm(name, ledger, ticket));
  }

  clear() {
    this.#storage.deleteAll();
  }

  wake_at(at) {
    this.#isAlarmKnown = true;
    this.#storage.setAlarm(at);
  }

  flush_in(ms) {
    setTimeout(() => this.#rust()?.flush_idle(), ms);
  }

  /** Call when the alarm fires. There is none now, until this call has set the next. */
  alarmed() {
    this.#isAlarmKnown = true;
  }

  cleaned() {
    const { kv } = this.#storage;
    if (kv.get(FAILURES) !== undefined) kv.delete(FAILURES);
  }

  not_cleaned() {
    const { kv } = this.#storage;
    const failures = built.KeyObject.failed_again(kv.get(FAILURES) ?? new Uint8Array());
    kv.put(FAILURES, Uint8Array.of(failures));
    this.#storage.setAlarm(built.KeyObject.retry_at(failures));
  }

  /**
   * Sets the alarm if it is missing: the runtime drops one that has failed for some minutes, and rows without an alarm would stay.
   * No answer waits for this.
   */
  async #ensureAlarm() {
    this.#isAlarmKnown = true;
    try {
      if ((await this.#storage.getAlarm()) !== null) return;
    } catch (error) {
      this.#isAlarmKnown = false; // tried again when the rows are next loaded
      return console.error("cannot tell whether there is an alarm:", error);
    }
    const at = this.#rust()?.alarm_is_missing();
    if (at !== undefined) this.#storage.setAlarm(at, { allowUnconfirmed: true });
  }
}

/** Name of the row that counts successive failures: one byte. Rust does not see it. */
const FAILURES = "alarm-failures";
