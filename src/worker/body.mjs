// Reads request bodies, with a limit on their size and on the time they take.
import { Timeout, within } from "./deadline.mjs";

/**
 * The body; if it is longer than `max` bytes, its first `max + 1`. Throws {@link Timeout} if it takes too long.
 *
 * The runtime's own `readAtLeast` gathers chunks without calling JavaScript for each: a client may send every byte as a
 * separate chunk.
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

/** Enough for 16 KiB over the slowest connections still in use; slower clients only occupy memory. */
const BODY_MS = 5_000;
