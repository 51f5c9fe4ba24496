// Keys as typed: literal text, or JSON for anything else.
import type { Key } from "tollgate/client";

/** The key meant: text that begins like JSON is JSON, for lists, addresses, and texts that begin so. Nothing if malformed. */
export function keyOf(written: string): Key | undefined {
  if (!isLikeJson(written)) return written;
  try {
    return JSON.parse(written);
  } catch {
    return undefined;
  }
}

/** The reverse. */
export function writtenKey(key: unknown): string {
  return typeof key === "string" && !isLikeJson(key) ? key : JSON.stringify(key);
}

const isLikeJson = (text: string) => /^\s*[[{"]/.test(text);
