// An object per key that writes the level on every grant, as the platform's examples do: no spent token is forgotten.
import { DurableObject } from "cloudflare:workers";
import { Buckets } from "./buckets.mjs";
import { asksObjects, policiesOf } from "./worker.mjs";

export default asksObjects;

export class KeyObject extends DurableObject {
  #buckets = new Buckets((policy, level, at) => this.#save(policy, level, at));
  #sql;

  constructor(state, env) {
    super(state, env);
    this.#sql = state.storage.sql;
    // WITHOUT ROWID: the row is its own index, and one row is written, not two.
    this.#sql.exec(
      "CREATE TABLE IF NOT EXISTS bucket (policy TEXT PRIMARY KEY, level REAL NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
    );
    for (const { policy, level, at } of this.#sql.exec("SELECT policy, level, at FROM bucket"))
      this.#buckets.restore(policy, level, at);
  }

  consume(policy, cost) {
    return this.#buckets.consume(policy, policiesOf(this.env).get(policy), cost);
  }

  #save(policy, level, at) {
    const upsert =
      "INSERT INTO bucket VALUES (?, ?, ?) ON CONFLICT (policy) DO UPDATE SET level = excluded.level, at = excluded.at";
    this.#sql.exec(upsert, policy, level, at);
  }
}
