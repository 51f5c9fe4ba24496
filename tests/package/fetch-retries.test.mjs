// limitFetch: what it retries, and what it returns.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { FakeClock } from "./clock.mjs";
import { make, origin } from "./fetching.mjs";

test("other statuses are not retried", async () => {
  for (const status of [200, 201, 202, 204, 301, 400, 403, 404, 408, 413, 500, 502, 504, 529]) {
    const { api, url, settle, seen } = make([[status, { "retry-after": "5" }]]);
    const response = await settle(api(url));
    assert.deepEqual([response.status, seen().length], [status, 1], `${status}`);
  }
});

test("a 503 is retried if the request is idempotent, and a 429 always", async () => {
  // biome-ignore format: a table
  const table = [
    // method    headers                      503 is retried
    ["GET",      {},                          true],
    ["HEAD",     {},                          true],
    ["PUT",      {},                          true],
    ["DELETE",   {},                          true],
    ["OPTIONS",  {},                          true],
    ["delete",   {},                          true],
    ["POST",     {},                          false],
    ["PATCH",    {},                          false],
    ["POST",     { "Idempotency-Key": "1" },  true],
    ["PATCH",    { "idempotency-key": "1" },  true],
  ];
  for (const [method, headers, isRepeatable] of table) {
    for (const status of [429, 503]) {
      const { api, url, settle, seen, pausedMs } = make([[status, { "retry-after": "1" }]]);
      const response = await settle(api(url, { method, headers }));
      const again = status === 429 || isRepeatable;
      assert.deepEqual([response.status, seen().length], again ? [200, 2] : [503, 1], `${method} ${status}`);
      if (!again) assert.equal(pausedMs(), 1000, "but everything waits");
      const request = make([[status, { "retry-after": "1" }]]);
      assert.equal(
        (await request.settle(request.api(new Request(request.url, { method, headers })))).status,
        again ? 200 : 503,
        `Request ${method} ${status}`,
      );
    }
  }
});

test("waits longer before each retry, and returns the last response", async () => {
  // biome-ignore format: a table
  const table = [
    // retries   sent at                    pause then
    [undefined,  [0, 1000, 3000],           4000],
    [0,          [0],                       1000],
    [1,          [0, 1000],                 2000],
    [4,          [0, 1000, 3000, 7000, 15_000], 16_000],
  ];
  for (const [retries, expected, pauseMs] of table) {
    const { api, url, settle, sentAt, pausedMs } = make(Array(9).fill([429]), { retries });
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt, pausedMs()], [429, expected, pauseMs], `${retries}`);
    assert.equal(await response.text(), `answer ${expected.length}`, "its body is readable");
  }
});

test("every attempt costs tokens", async () => {
  const { api, url, settle, sentAt, limiter } = make(
    [
      [429, { "retry-after": "1" }],
      [503, { "retry-after": "25" }],
    ],
    { cost: 2 },
    { rate: 2, periodMs: 10_000 },
  );
  assert.equal((await settle(api(url))).status, 200);
  assert.deepEqual([sentAt, limiter.remaining()], [[0, 10_000, 35_000], 0]);
});

test("a retry sends the same request, whatever the body", async () => {
  const form = () => {
    const data = new FormData();
    data.set("field", "of the form");
    data.set("file", new Blob(["of the file"]), "name.txt");
    return data;
  };
  const generated = async function* () {
    for (const text of ["of the ", "generator"]) yield new TextEncoder().encode(text);
  };
  const stream = () => ReadableStream.from(["of the ", "stream"].map((text) => new TextEncoder().encode(text)));
  const table = [
    ["text", () => "of the text", /^of the text$/],
    ["parameters", () => new URLSearchParams({ a: "of the query" }), /^a=of\+the\+query$/],
    ["bytes", () => new TextEncoder().encode("of the bytes"), /^of the bytes$/],
    ["blob", () => new Blob(["of the blob"]), /^of the blob$/],
    ["form", form, /of the form.*of the file/s],
    ["stream", stream, /^of the stream$/],
    ["iterable", generated, /^of the generator$/],
    ["nothing", () => undefined, /^$/],
  ];
  for (const [what, body, expected] of table) {
    for (const isRequest of [false, true]) {
      const { api, url, settle, seen } = make([
        [429, { "retry-after": "1" }],
        [503, { "retry-after": "1" }],
      ]);
      const init = { method: "PUT", body: body(), duplex: "half", headers: { "x-own": "1" } };
      const response = await settle(isRequest ? api(new Request(url, init)) : api(url, init));
      assert.equal(response.status, 200, what);
      assert.equal(seen().length, 3, what);
      for (const { method, body, headers } of seen()) {
        assert.match(body, expected, what);
        assert.deepEqual(
          [method, headers["x-own"], headers["content-type"]?.split(";")[0]],
          ["PUT", "1", seen()[0].headers["content-type"]?.split(";")[0]],
          what,
        );
      }
    }
  }
});

test("if no time is left for a retry, returns the last response", async () => {
  // biome-ignore format: a table
  const table = [
    // maxWaitMs  server says   sent at        status
    [2999,        "3",          [0],           429],
    [3000,        "3",          [0, 3000],     200],
    [0,           "1",          [0],           429],
    [0,           "0",          [0, 0],        200],
  ];
  for (const [maxWaitMs, after, expected, status] of table) {
    const { api, url, settle, sentAt, clock } = make([[429, { "retry-after": after }]], { maxWaitMs });
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt, clock.timers], [status, expected, []], `${maxWaitMs}`);
    assert.equal(await response.text(), `answer ${expected.length}`, "its body is readable");
  }
});

test("if the queue is full, returns the last response", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 9, periodMs: 1000 }, { clock, maxQueue: 0 });
  const { url, seen } = make([[429, { "retry-after": "3" }]]);
  assert.equal((await limitFetch(limiter)(url)).status, 429);
  await assert.rejects(limitFetch(limiter)(url), { code: "queue_full" });
  assert.equal(seen().length, 1);
});

test("a network failure is passed to the caller and not retried", async () => {
  const { limiter } = make([]);
  let sent = 0;
  const fetch = async () => {
    sent += 1;
    throw new TypeError("fetch failed");
  };
  const api = limitFetch(limiter, { fetch });
  await assert.rejects(api(origin), { message: "fetch failed" });
  assert.equal(sent, 1);
  await assert.rejects(api("no url"), TypeError);
  await assert.rejects(api(origin, { method: "GET", body: "x" }), TypeError);
  assert.equal(sent, 3, "what can be sent is up to the fetch");
});

test("a response that is not returned is cancelled", async () => {
  const it = make([]);
  const gone = [];
  let count = 0;
  const fetch = () => {
    const number = count++;
    const body = new ReadableStream({ cancel: () => void gone.push(number) });
    return Promise.resolve(new Response(body, { status: number < 2 ? 429 : 200, headers: { "retry-after": "1" } }));
  };
  const response = await it.settle(limitFetch(it.limiter, { fetch, jitterMs: 0 })(origin));
  assert.deepEqual([response.status, gone, response.bodyUsed], [200, [0, 1], false]);
});

test("a response is cancelled when a signal aborts the retry", async () => {
  const { limiter } = make([]);
  const controller = new AbortController();
  let gone = 0;
  const cancel = () => {
    gone += 1;
  };
  const body = new ReadableStream({ cancel });
  const sent = limitFetch(limiter, { fetch: () => Promise.resolve(new Response(body, { status: 429 })) })(origin, {
    signal: controller.signal,
  });
  sent.catch(() => {});
  while (limiter.waiting === 0) await setImmediate();
  controller.abort("over");
  await assert.rejects(sent);
  await setImmediate();
  assert.equal(gone, 1);
});

test("a retry does not wait for a body that fails or is aborted", { timeout: 10_000 }, async () => {
  for (const isAborted of [true, false]) {
    let source;
    const body = new ReadableStream({ start: (controller) => (source = controller) });
    const abort = new AbortController();
    let isDiscarded = false;
    // As a server that answers before it has read the request.
    const answer = new ReadableStream({ cancel: () => (isDiscarded = true) });
    const fetch = async () => new Response(answer, { status: 429, headers: { "retry-after": "0" } });
    const limiter = new Limiter({ rate: 100, periodMs: 100 });
    const api = limitFetch(limiter, { fetch, jitterMs: 0 });
    const sent = api("https://example.com/", { method: "POST", body, duplex: "half", signal: abort.signal });
    await setImmediate();
    if (isAborted) abort.abort("gone");
    else source.error("gone");
    await assert.rejects(sent, (reason) => reason === "gone");
    assert.equal(isDiscarded, true);
  }
});
