// A response whose body is followed to its end.
import type { Clock } from "./clock.js";

/**
 * Returns the response with a body that calls `end` once: when it has been read, is cancelled or fails, or when it has not
 * been read from for ten seconds. Calls it at once if there is no body, or none that can be followed.
 *
 * If `isCopied`, also returns a copy of a body that can be followed. It ends where the response's body is cancelled, and so does the
 * transfer: a mere tee would go on until both are cancelled.
 */
export function followedResponse(
  response: Response,
  clock: Clock,
  end: (() => void) | undefined,
  isCopied: boolean,
): [response: Response, copy?: Response] {
  const { body, status, statusText, headers, url, redirected, type } = response;
  // Some libraries have other streams, or bodies where no response can be made with one. Node has a stream for an empty body.
  if (!body?.getReader || body.locked || !canHaveBody(status) || headers.get("content-length") === "0") {
    end?.();
    return [response];
  }
  const isOfBytes = isByteStream(body);
  const [own, other] = isCopied ? body.tee() : [];
  let endCopy = (_reason: unknown) => {};
  let reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>> | undefined;
  let isReading = false;
  let isCopying = false;
  /** How many chunks the caller has read and the copy has not. */
  let ahead = 0;
  let isEnded = false;
  let readAt = clock.now();
  let cancelTimer = () => {};
  const finish = () => {
    cancelTimer();
    if (!isEnded) end?.();
    isEnded = true;
  };
  // Reads through the response: Node cancels an unlocked body once its response has been collected.
  const lock = () => {
    const locked = (own ?? response.body!).getReader();
    locked.closed.then(finish, finish); // also if it fails while nothing reads it
    return locked;
  };
  const watch = () => {
    cancelTimer = clock.at(readAt + UNREAD_MS, () => {
      const now = clock.now();
      if (isReading || isCopying) readAt = now;
      if (now < readAt + UNREAD_MS) return watch();
      finish();
      // Unlocked, so that it can be collected; later reads lock it again.
      reader?.releaseLock();
      reader = undefined;
    });
  };
  if (end) {
    reader = lock();
    watch();
  }
  const source: UnderlyingDefaultSource<Uint8Array<ArrayBuffer>> = {
    async pull(controller) {
      reader ??= lock();
      isReading = true;
      try {
        const { done, value } = await reader.read();
        ahead++;
        if (!done) return controller.enqueue(value);
        finish();
        controller.close();
        // A read into the caller's own buffer has to be answered, too.
        (controller as unknown as ReadableByteStreamController).byobRequest?.respond(0);
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
      endCopy(reason);
      return (reader ?? own ?? response.body!).cancel(reason);
    },
  };
  // Reads only when it is read.
  const followed = new ReadableStream({ ...source, ...(isOfBytes && { type: "bytes" }) } as typeof source, {
    highWaterMark: 0,
  });
  if (own) abandoned?.register(followed, own);
  /** A response made by a program has neither a URL nor a type, and its status text must be Latin-1. */
  const withOrigin = (made: Response): Response =>
    Object.defineProperties(made, {
      statusText: { value: statusText },
      url: { value: url },
      redirected: { value: redirected },
      type: { value: type },
      clone: { value: () => withOrigin(Response.prototype.clone.call(made)) },
    });
  // The response itself has members of its platform, such as `cf` in a Worker.
  const init = /^[ -~]*$/.test(statusText) ? response : { status, headers };
  const made = withOrigin(new Response(followed, init));
  return other ? [made, withOrigin(new Response(copied(other), init))] : [made];

  function copied(other: ReadableStream<Uint8Array<ArrayBuffer>>): ReadableStream {
    const reader = other.getReader();
    const source: UnderlyingDefaultSource<Uint8Array<ArrayBuffer>> = {
      start(controller) {
        endCopy = async (reason) => {
          try {
            for (; ahead > 0; ahead--) controller.enqueue((await reader.read()).value!);
            reader.cancel(reason).catch(() => {}); // ends a read that is waiting
            if (!isCopying) controller.close();
          } catch {} // it has been cancelled, too, or has failed
        };
      },
      async pull(controller) {
        isCopying = true;
        ahead--;
        try {
          const { done, value } = await reader.read();
          if (!done) return controller.enqueue(value);
          finish();
          controller.close();
          (controller as unknown as ReadableByteStreamController).byobRequest?.respond(0);
        } finally {
          isCopying = false;
          readAt = clock.now();
        }
      },
      cancel(reason) {
        reader.cancel(reason).catch(() => {}); // once the response's body ends, too
      },
    };
    return new ReadableStream({ ...source, ...(isOfBytes && { type: "bytes" }) } as typeof source, {
      highWaterMark: 0,
    });
  }
}

/** As Node does for bodies that have no copy: a body that nobody can read any more is cancelled. */
const abandoned =
  globalThis.FinalizationRegistry &&
  new FinalizationRegistry<ReadableStream>((body) => {
    if (!body.locked) body.cancel().catch(() => {});
  });

/** Whether a body can be read into the caller's own buffers. */
function isByteStream(body: ReadableStream): boolean {
  try {
    body.getReader({ mode: "byob" }).releaseLock();
    return true;
  } catch {
    return false;
  }
}

/** Whether a program can make a response with this status and a body. */
function canHaveBody(status: number): boolean {
  return status >= 200 && status <= 599 && ![204, 205, 304].includes(status);
}

/** A body that is not read from for this long is taken for abandoned. */
const UNREAD_MS = 10_000;
