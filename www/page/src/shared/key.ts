// Keys as people write them: a text as it is, and as JSON what is no plain text.
import type { Key } from "tollgate/client";

/** The key that is meant: what begins like JSON is JSON, for lists, addresses, and texts that begin so. Nothing if it is malformed. */
export function keyOf(written: string): Key | undefined {
  if (!isLikeJson(written)) return written;
  try {
    return JSON.parse(written);
  } catch {
    return undefined;
  }
}

/** The same the other way round. */
export function writtenKey(key: unknown): string {
  return typeof key === "string" && !isLikeJson(key) ? key : JSON.stringify(key);
}

const isLikeJson = (text: string) => /^\s*[[{"]/.test(text);
