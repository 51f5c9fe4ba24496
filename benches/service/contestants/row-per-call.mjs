// Writes the level on every grant, as the platform's examples do: nothing that was spent is forgotten.
import * as memory from "./token-bucket.mjs";

export default memory.default;

export class KeyObject extends memory.KeyObject {
  #sql;

  constructor(state, env) {
    super(state, env);
    this.#sql = state.storage.sql;
    // WITHOUT ROWID: the row is its own index, and one row is written, not two.
    this.#sql.exec(
      "CREATE TABLE IF NOT EXISTS bucket (policy TEXT PRIMARY KEY, level REAL NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
    );
    for (const { policy, level, at } of this.#sql.exec("SELECT policy, level, at FROM bucket"))
      this.buckets.set(policy, { level, at });
  }

  save(policy, level, at) {
    const upsert =
      "INSERT INTO bucket VALUES (?, ?, ?) ON CONFLICT (policy) DO UPDATE SET level = excluded.level, at = excluded.at";
    this.#sql.exec(upsert, policy, level, at);
  }
}
