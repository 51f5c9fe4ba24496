// The contents of an object's SQLite file. It may be read while the Worker runs: nothing here writes.
import { existsSync, readFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { deserialize } from "node:v8";

/** The object's rows, `[name, bytes]` sorted by name, and when its alarm fires, if it has one. */
export function contents(file) {
  const database = new DatabaseSync(file, { readOnly: true, timeout: TIMEOUT_MS });
  try {
    const tables = database
      .prepare("SELECT name FROM sqlite_master")
      .all()
      .map(({ name }) => name);
    const all = (table, query) => (tables.includes(table) ? database.prepare(query).all() : []);
    const rows = all("_cf_KV", "SELECT key, value FROM _cf_KV ORDER BY key");
    // The first of the metadata, in nanoseconds.
    const [alarm] = all(
      "_cf_METADATA",
      "SELECT value / 1000000 AS ms FROM _cf_METADATA WHERE key = 1 AND value IS NOT NULL",
    );
    return { rows: rows.map(({ key, value }) => [key, Buffer.from(deserialize(value))]), alarmAt: alarm?.ms };
  } finally {
    database.close();
  }
}

/**
 * The number of commits since the file was opened, counted in its write-ahead log by SQLite's file format. The log
 * starts over after 1 000 pages, so count before that.
 */
export function commits(file) {
  const path = `${file}-wal`;
  const log = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
  if (log.length < HEADER_LEN) return 0;
  const frameLen = FRAME_HEADER_LEN + log.readUInt32BE(8);
  const salts = log.subarray(16, 24);
  let count = 0;
  for (let at = HEADER_LEN; at + frameLen <= log.length; at += frameLen) {
    const isOfThisLog = log.subarray(at + 8, at + 16).equals(salts);
    if (isOfThisLog && log.readUInt32BE(at + 4) !== 0) count++;
  }
  return count;
}

/** The runtime locks a file for a moment when it opens or closes it. */
const TIMEOUT_MS = 5_000;
/** Of the write-ahead log, in bytes. */
const HEADER_LEN = 32;
const FRAME_HEADER_LEN = 24;
