// The stored rows of objects in their files; only while the Worker is down.
import { DatabaseSync } from "node:sqlite";
import { deserialize, Serializer } from "node:v8";

/** The rows in a file by name: bytes, or any other value. */
export function readRows(file) {
  const database = new DatabaseSync(file);
  const isThere = database.prepare("SELECT 1 FROM sqlite_master WHERE name = '_cf_KV'").get();
  const rows = isThere ? database.prepare("SELECT key, value FROM _cf_KV ORDER BY key").all() : [];
  database.close();
  return Object.fromEntries(rows.map(({ key, value }) => [key, deserialize(value)]));
}

/** Puts a row into a file: any value, as the runtime would have stored it. */
export function writeRow(file, name, value) {
  execute(file, ["INSERT OR REPLACE INTO _cf_KV (key, value) VALUES (?, ?)", name, serialize(value)]);
}

/** Executes SQL on a file: statements with their parameters. */
export function execute(file, ...statements) {
  const database = new DatabaseSync(file);
  for (const [statement, ...values] of statements) database.prepare(statement).run(...values);
  database.close();
}

/** From now on only rows for which the condition holds can be written; existing ones stay. */
export function writable(file, condition) {
  execute(
    file,
    ["PRAGMA ignore_check_constraints = ON"],
    ["ALTER TABLE _cf_KV RENAME TO old"],
    [
      `CREATE TABLE _cf_KV (key TEXT PRIMARY KEY, value BLOB, CONSTRAINT "the disk is full" CHECK (${condition})) WITHOUT ROWID`,
    ],
    ["INSERT INTO _cf_KV SELECT * FROM old"],
    ["DROP TABLE old"],
  );
}

/** The parts of a bucket's row, as in src/ledger/row.rs; `rest` is for additions of a later version. */
export function parseBucket(row) {
  const bytes = Buffer.from(row);
  const recordAt = 3 + bytes.readUInt16LE(1);
  const [count, version] = [bytes[recordAt], bytes.readBigUInt64LE(recordAt + 2)];
  const statesAt = recordAt + 10;
  const states = Array.from({ length: count }, (_, i) => {
    return [bytes.readBigInt64LE(statesAt + 16 * i), bytes.readBigInt64LE(statesAt + 16 * i + 8)];
  });
  const numbers = bytes.subarray(3, recordAt).toString();
  const rest = bytes.subarray(statesAt + 16 * count);
  return { format: bytes[0], numbers, recordFormat: bytes[recordAt + 1], version, states, rest };
}

/** The row of these parts. */
export function bucketRow({ format, numbers, recordFormat, version, states, rest }) {
  const integers = Buffer.alloc(8 + 16 * states.length);
  integers.writeBigUInt64LE(version);
  for (const [i, integer] of states.flat().entries()) integers.writeBigInt64LE(integer, 8 + 8 * i);
  const text = Buffer.from(numbers);
  const head = Buffer.from([format, text.length & 255, text.length >> 8]);
  return Buffer.concat([head, text, Buffer.from([states.length, recordFormat]), integers, rest]);
}

/** Not `v8.serialize`, which writes bytes in Node's own format. */
function serialize(value) {
  const serializer = new Serializer();
  serializer._getDataCloneError = Error;
  serializer.writeHeader();
  serializer.writeValue(value instanceof Buffer ? new Uint8Array(value) : value);
  return serializer.releaseBuffer();
}
