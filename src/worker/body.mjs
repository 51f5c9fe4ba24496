// Reads request bodies, with a limit on their size and on the time they take.
import { Timeout, within } from "./deadline.mjs";

/**
 * The body; if it is longer than `max` bytes, its first `max + 1`. Throws {@link Timeout} if it takes longer than `ms` milliseconds.
 *
 * The runtime's own `readAtLeast` gathers chunks without calling JavaScript for each: a client may send every byte as a
 * separate chunk.
 */
export async function bytesOf(request, max, ms) {
  if (!request.body) return new Uint8Array();
  const reader = request.body.getReader({ mode: "byob" });
  const most = new Uint8Array(max + 1);
  try {
    return (await within(ms, reader.readAtLeast(most.length, most))).value;
  } catch (error) {
    if (error instanceof Timeout) reader.cancel(error).catch(() => {});
    throw error;
  }
}
