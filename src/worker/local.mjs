// Budgets in the storage of an application's Durable Object, beside its own rows: decided at once, in its transaction.
import { Decision } from "./decision.mjs";
import { asking, SettingsError, verbs } from "./embedded.mjs";
import { lasting } from "./recovery.mjs";
import * as built from "./rust/index.js";

/**
 * A function for each verb, which decides synchronously and returns a decision. Its writes are part of the caller's transaction, so nothing
 * is kept in memory: a rollback would go unnoticed. `policies` are policies in code. The key of a request that names none is the id of the
 * object.
 */
export function tollgateIn({ storage, id }, policies) {
  const [own, text] = [String(id), JSON.stringify(policies ?? {}) ?? "null"];
  const rust = lasting(() => built.Frontend.inside(own, text));
  const wrong = rust().errors();
  if (wrong !== undefined) throw new SettingsError(wrong);
  const verb = (path) => (request, options) => {
    const ask = asking(path, request, options);
    return new Decision(decide(ask(rust()), storage));
  };
  return { ...verbs(verb), clean: () => clean(storage) };
}

/** The reply, as text, after the first step of a request. */
function decide([step, call], storage) {
  if (step === built.Step.Reply) return call;
  const reply = within(storage, (object) => {
    for (let next = call.next(); next; next = call.next()) {
      const [index, name, policies, request, definitions] = next;
      call.answered(index, object(name).decide(policies, request, definitions));
    }
    return call.reply();
  });
  call.free();
  return reply;
}

/** Deletes what is no longer needed for any key: full buckets, expired reservations. Reads the rows of one key at a time. */
function clean(storage) {
  let start = PREFIX;
  for (;;) {
    const [row] = storage.kv.list({ prefix: PREFIX, start, limit: 1 });
    if (!row) return;
    const name = row[0].slice(PREFIX.length, row[0].indexOf(":", PREFIX.length));
    within(storage, (object) => object(name).clean());
    start = `${PREFIX}${name};`; // ";" follows ":", so this is after all rows of the key
  }
}

/**
 * Calls the Rust halves of objects, which live until `work` ends. All rows are written or none, even without a transaction. If `work`
 * throws, nothing is freed: after a panic the memory is a new one, in which nothing of the old may be freed.
 */
function within(storage, work) {
  const objects = new Map();
  const object = (name) => {
    if (!objects.has(name)) {
      const host = new Host(storage.kv, `${PREFIX}${name}:`);
      objects.set(name, new built.KeyObject(name, {}, host));
    }
    return objects.get(name);
  };
  const result = storage.transactionSync(() => work(object));
  for (const one of objects.values()) one.free();
  return result;
}

/** The rows of one key. There are no timers, and the alarm belongs to the caller. */
class Host {
  #kv;
  #prefix;

  constructor(kv, prefix) {
    this.#kv = kv;
    this.#prefix = prefix;
  }

  rows() {
    return [...this.#kv.list({ prefix: this.#prefix })].flatMap(([name, row]) => [
      name.slice(this.#prefix.length),
      row,
    ]);
  }

  write(rows) {
    for (let at = 0; at < rows.length; at += 2) this.write_background(rows[at], rows[at + 1]);
  }

  write_background(name, row) {
    if (row === undefined) this.#kv.delete(this.#prefix + name);
    else this.#kv.put(this.#prefix + name, row);
  }

  clear() {
    for (const [name] of [...this.#kv.list({ prefix: this.#prefix })]) this.#kv.delete(name);
  }

  wake_at() {}

  flush_in() {}
}

/** The name of a row in storage is this, the name of the key's object, a colon, and the row's own name. */
const PREFIX = "tollgate:";
