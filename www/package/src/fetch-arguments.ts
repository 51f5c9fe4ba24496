// The arguments of `fetch`, when they are read or sent more than once.

/** As the caller passed them. */
export type FetchArguments = [input: string | URL | Request, init?: RequestInit | undefined];

/** The members that decide about retries and waits. */
export function readArguments([input, init]: FetchArguments) {
  const request = (input as Partial<Request>).clone && (input as Request);
  const method = (init?.method ?? request?.method ?? "GET").toUpperCase();
  return {
    signal: init?.signal === undefined ? request?.signal : init.signal,
    isIdempotent:
      /^(GET|HEAD|PUT|DELETE|OPTIONS)$/.test(method) ||
      namesIn(init?.headers ?? request?.headers).some((name) => /^idempotency-key$/i.test(name)),
    /** Whether there is a body that can be sent only once. */
    isSentOnce: init?.body ? isStream(init.body) : !!request && request.body !== null && !/^(GET|HEAD)$/.test(method),
  };
}

/** The names of the headers. They may be such as only the caller's own `fetch` accepts; an iterator is left to that. */
function namesIn(headers: RequestInit["headers"]): string[] {
  if (Array.isArray(headers)) return headers.map(([name]) => `${name}`);
  const { keys } = Object(headers) as Headers;
  return typeof keys === "function" ? Array.from((headers as Headers).keys(), String) : Object.keys(Object(headers));
}

/** Makes a copy of what can be sent only once. Returns the arguments that still send it. */
export function spareOf(args: FetchArguments): [spare: Request | Response, args: FetchArguments] {
  const [input, init] = args;
  if (!isStream(init?.body) || (init as Partial<Request>).clone) return split(args);
  const [first, second] = new Response(init!.body as ReadableStream).body!.tee();
  return [new Response(second), [input, { ...init, body: first }]];
}

/** Makes a copy of the request, to be read. Returns the arguments that still send it. */
export function split(args: FetchArguments): [copy: Request, args: FetchArguments] {
  const [input, init] = args;
  if (isStream(init?.body)) {
    // `fetch(url, request)`: a request has no members of its own that could be passed on with another body.
    if ((init as Partial<Request>).clone) return split(merged(input, init as Request));
    const [spare, rest] = spareOf(args);
    return [made(input, { ...init, body: spare.body, duplex: "half" } as RequestInit), rest];
  }
  // The class of the request may be another library's.
  const clone = init?.body ? undefined : (input as Partial<Request>).clone?.();
  return [clone && !init ? clone : made(clone ?? input, init), args];
}

/** The same arguments, without a request as the options. */
function merged(input: string | URL | Request, init: Request): FetchArguments {
  try {
    return [new Request(input, init)];
  } catch {
    const { method, headers, body, signal, credentials, redirect } = init;
    return [input, { method, headers, body, signal, credentials, redirect, duplex: "half" } as RequestInit];
  }
}

/** The request of these arguments. A relative URL may be one that only the caller's own `fetch` can resolve. */
function made(input: string | URL | Request, init: RequestInit | undefined): Request {
  try {
    return new Request(input, init);
  } catch (error) {
    if (typeof input !== "string") throw error;
    return new Request(new URL(input, "http://localhost"), init);
  }
}

/** Reads the body, until the signal aborts. Firefox has none as a stream, nor have some libraries: those are read to the end. */
export function bytesOf(request: Request | Response, signal: AbortSignal | null | undefined): Promise<ArrayBuffer> {
  const read = request.body?.pipeThrough?.(
    new TransformStream<Uint8Array, Uint8Array<ArrayBuffer>>(),
    signal ? { signal } : {},
  );
  return (read ? new Response(read) : request).arrayBuffer();
}

/** Frees what a body holds that will not be read. Those of other libraries may be no streams of the platform. */
export function discard(message: Response | Request | undefined): void {
  message?.body?.cancel?.().catch(() => {});
}

/** Whether a body can be read only once. */
function isStream(body: unknown): boolean {
  const stream = Object(body) as Partial<ReadableStream & AsyncIterable<unknown>>;
  return !!(stream.getReader ?? stream[Symbol.asyncIterator]);
}
