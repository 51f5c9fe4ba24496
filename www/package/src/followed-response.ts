// A response whose body is followed to its end.
import type { Clock } from "./clock.js";

/**
 * Returns the response with a body that calls `end` once: when it has been read, is cancelled or fails, or when it has not
 * been read from for ten seconds. Calls it at once if there is no body, or none that can be followed.
 */
export function followedResponse(response: Response, clock: Clock, end: () => void): Response {
  const { body, status, url, redirected, type } = response;
  // Some libraries have other streams, and no response can be made with such a status.
  if (!body?.getReader || body.locked || status > LAST_STATUS) {
    end();
    return response;
  }
  const reader = body.getReader();
  let isReading = false;
  let readAt = clock.now();
  let cancelTimer = () => {};
  const finish = () => {
    cancelTimer();
    end();
  };
  const watch = () => {
    cancelTimer = clock.at(readAt + UNREAD_MS, () => {
      const now = clock.now();
      if (isReading) readAt = now;
      if (now < readAt + UNREAD_MS) watch();
      else end();
    });
  };
  watch();
  const followed = new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      async pull(controller) {
        isReading = true;
        try {
          const { done, value } = await reader.read();
          if (!done) return controller.enqueue(value);
          finish();
          controller.close();
        } catch (error) {
          finish();
          throw error;
        } finally {
          isReading = false;
          readAt = clock.now();
        }
      },
      cancel(reason) {
        finish();
        return reader.cancel(reason);
      },
    },
    { highWaterMark: 0 }, // reads only when it is read
  );
  /** A response made by a program has neither a URL nor a type. */
  const withOrigin = (made: Response): Response =>
    Object.defineProperties(made, {
      url: { value: url },
      redirected: { value: redirected },
      type: { value: type },
      clone: { value: () => withOrigin(Response.prototype.clone.call(made)) },
    });
  return withOrigin(new Response(followed, response));
}

/** A body that is not read from for this long is taken for abandoned. */
const UNREAD_MS = 10_000;
/** The highest status of a response that a program can make. */
const LAST_STATUS = 599;
