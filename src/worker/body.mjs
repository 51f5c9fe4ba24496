// The bodies of requests: how much of one is read, and for how long.
import { Timeout, within } from "./deadline.mjs";

/**
 * The body, or as many of its bytes as show that it is longer than `max`. Throws {@link Timeout} if it takes too long.
 *
 * `readAtLeast` is the runtime's own. It gathers chunks without calling JavaScript for each; a client may send every byte in
 * one of its own.
 */
export async function bytesOf(request, max) {
  if (!request.body) return new Uint8Array();
  const reader = request.body.getReader({ mode: "byob" });
  const most = new Uint8Array(max + 1);
  try {
    return (await within(BODY_MS, reader.readAtLeast(most.length, most))).value;
  } catch (error) {
    if (error instanceof Timeout) reader.cancel(error).catch(() => {});
    throw error;
  }
}

/** Some 16 KiB at the slowest connection that people still use; clients that take longer hold memory for nothing. */
const BODY_MS = 5_000;
