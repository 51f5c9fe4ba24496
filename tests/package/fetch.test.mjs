// limitFetch: which requests are sent, and when.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { FakeClock, START } from "./clock.mjs";

/** For each path: the next answers, as `[status, headers]`, then 200; and the requests that it has seen. */
const answers = new Map();
const asked = new Map();
const server = createServer(async (request, response) => {
  const chunks = await request.toArray();
  const path = request.url;
  const seen = { method: request.method, body: Buffer.concat(chunks).toString(), headers: request.headers };
  asked.set(path, [...(asked.get(path) ?? []), seen]);
  const [status, headers = {}] = answers.get(path)?.shift() ?? [200];
  response.sendDate = false;
  response.writeHead(status, headers);
  response.end(request.method === "HEAD" || status === 204 ? undefined : `answer ${asked.get(path).length}`);
});
server.listen(0, "127.0.0.1");
await once(server, "listening");
after(() => {
  server.closeAllConnections();
  server.close();
});
const origin = `http://127.0.0.1:${server.address().port}`;
let paths = 0;

/** A limiter, a `fetch` limited by it, and a path where the server gives these answers. Moments count from the start. */
function make(serves, options, limits = { rate: 100, periodMs: 100 }) {
  const path = `/${paths++}`;
  answers.set(path, serves);
  const clock = new FakeClock();
  const limiter = new Limiter(limits, { clock });
  const sentAt = [];
  let flying = 0;
  const fetch = (request) => {
    sentAt.push(clock.now() - START);
    flying += 1;
    return globalThis.fetch(request).finally(() => (flying -= 1));
  };
  const api = limitFetch(limiter, { jitterMs: 0, fetch, ...options });
  /** Advances the clock whenever no request is in flight, until the promise is settled. */
  const settle = async (promise) => {
    let isSettled = false;
    promise.then(
      () => (isSettled = true),
      () => (isSettled = true),
    );
    for (;;) {
      await setImmediate();
      if (isSettled) return promise;
      if (flying === 0 && clock.timers.length > 0) await clock.to(clock.timers[0]);
    }
  };
  const pausedMs = () => (limiter.peek(0).allowed ? 0 : limiter.peek(0).retryAt - clock.now());
  return { clock, limiter, api, url: origin + path, sentAt, settle, pausedMs, seen: () => asked.get(path) ?? [] };
}

const seconds = (ms) => new Date(ms).toUTCString();

test("requests wait in the queue and arrive unchanged", async () => {
  const { api, url, settle, sentAt, seen } = make([], {}, { rate: 1, periodMs: 1000 });
  const inputs = [
    [url],
    [new URL(url), { method: "POST", body: "text", headers: { "x-own": "1" } }],
    [new Request(url, { method: "PUT", body: "of the request" })],
    [new Request(url, { method: "PUT", body: "of the request" }), { method: "PATCH", body: "of the options" }],
  ];
  const responses = await settle(Promise.all(inputs.map((args) => api(...args))));
  assert.deepEqual(sentAt, [0, 1000, 2000, 3000]);
  assert.deepEqual(
    seen().map(({ method, body }) => [method, body]),
    [
      ["GET", ""],
      ["POST", "text"],
      ["PUT", "of the request"],
      ["PATCH", "of the options"],
    ],
  );
  assert.equal(seen()[1].headers["x-own"], "1");
  assert.deepEqual(await Promise.all(responses.map((response) => response.text())), [
    "answer 1",
    "answer 2",
    "answer 3",
    "answer 4",
  ]);
});

test("by default sends with the global fetch of the moment", async (t) => {
  const { limiter, url } = make([]);
  const api = limitFetch(limiter);
  assert.equal(await (await api(url)).text(), "answer 1");
  t.mock.method(globalThis, "fetch", () => new Response("mine"));
  assert.equal(await (await api(url)).text(), "mine");
});

test("a refused request is retried when the server said", async () => {
  const server = START - 86_400_000; // whose clock is a day behind
  // biome-ignore format: a table
  const table = [
    // status  headers                                                          retried after
    [429, { "retry-after": "3" },                                               3000],
    [503, { "retry-after": "3" },                                               3000],
    [429, { "retry-after": "0" },                                               0],
    [429, { "retry-after": "007" },                                             7000],
    [429, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [503, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [429, { "retry-after": seconds(server), date: seconds(server) },            0],
    [429, { "retry-after": seconds(server - 1000), date: seconds(server) },     1000], // in the past, so ignored
    [429, { "retry-after": seconds(START + 5000) },                             5000], // by our clock, for want of a Date
    [429, { "retry-after": seconds(START + 5000), date: "yesterday" },          5000],
    [429, {},                                                                   1000],
    [503, {},                                                                   1000],
    [429, { ratelimit: '"api";r=0;t=4' },                                       4000],
    [429, { ratelimit: '"api";r=0;t=4', "retry-after": "3" },                   3000],
    [429, { ratelimit: '"api";r=0;t=4', "retry-after": "soon" },                4000],
    [503, { ratelimit: '"api";r=0;t=4' },                                       4000],
    [429, { ratelimit: '"api";r=5;t=4' },                                       1000],
    [429, { ratelimit: '"api";r=0' },                                           1000],
    [429, { ratelimit: "r=0;t=4, nonsense" },                                   1000],
  ];
  for (const text of ["soon", "", "-5", "1.5", "5, 5", "1e3", "Infinity", "NaN", "0x10", "5s", "٣"]) {
    table.push([429, { "retry-after": Buffer.from(text).toString("latin1") }, 1000]);
  }
  for (const [status, headers, after] of table) {
    const row = `${status} ${JSON.stringify(headers)}`;
    const { api, url, settle, sentAt } = make([[status, headers]]);
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt], [200, [0, after]], row);
  }
});

test("a granted response that reports nothing left pauses the limiter", async () => {
  // biome-ignore format: a table
  const table = [
    // RateLimit                                  pause
    ['"api";r=0;t=4',                             4000],
    ['"api"; r=0; t=4',                           4000],
    ['"api";t=4;r=0',                             4000],
    ['"api";pk=:a2V5:;r=0;t=4;w=9',               4000],
    ['"api";r=0;t=0',                             0],
    ['"api";r=0',                                 0],
    ['"api";r=1;t=4',                             0],
    ['"api";r=10;t=4',                            0],
    ['"api";r=01;t=4',                            0],
    ['"api";t=4',                                 0],
    ['"a";r=5;t=9, "b";r=0;t=2',                  2000],
    ['"a";r=0;t=2,"b";r=0;t=9,"c";r=0;t=5',       9000],
    ['"a, b";r=0;t=2',                            2000],
    ['"a;r=0;t=99, b";r=3;t=2',                   0],
    ['"a\\", \\"b;r=0;t=99";r=3;t=2',             0],
    ['"a\\\\";r=0;t=2, "b";r=3;t=9',              2000],
    ['"api";xr=0;t=4',                            0],
    ['"api";r=0;xt=4',                            0],
    ['"api";r=0;t=soon',                          0],
    ['"api";r=none;t=4',                          0],
    ["",                                          0],
    [",;,;=\"",                                   0],
    ["limit=100, remaining=0, reset=50",          0], // the syntax of earlier drafts
  ];
  for (const [ratelimit, pauseMs] of table) {
    const { api, url, settle, pausedMs } = make([[200, { ratelimit }]]);
    assert.equal((await settle(api(url))).status, 200);
    assert.equal(pausedMs(), pauseMs, ratelimit);
  }
});

test("repeated header fields all count", async () => {
  const { api, url, settle, pausedMs } = make([[200, { ratelimit: ['"a";r=0;t=2', '"b";r=0;t=5'] }]]);
  await settle(api(url));
  assert.equal(pausedMs(), 5000);
});

test("other statuses are not retried, and their Retry-After is ignored", async () => {
  for (const status of [200, 201, 204, 301, 400, 403, 404, 408, 413, 500, 502, 504]) {
    const { api, url, settle, seen, pausedMs } = make([[status, { "retry-after": "5" }]]);
    const response = await settle(api(url));
    assert.deepEqual([response.status, seen().length, pausedMs()], [status, 1, 0], `${status}`);
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
      if (!again) assert.equal(pausedMs(), 1000, "and all wait nevertheless");
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
    assert.equal(await response.text(), `answer ${expected.length}`, "it can be read");
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

test("the cost is a number, a number for each name, or a function of the request", async () => {
  const limits = [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "bytes", rate: 100, periodMs: 1000 },
  ];
  const table = [
    [undefined, [9, 99]],
    [3, [7, 97]],
    [{ requests: 1, bytes: 50 }, [9, 50]],
    [
      ({ method, headers }) => ({ requests: method === "POST" ? 2 : 1, bytes: Number(headers.get("x-bytes")) }),
      [8, 93],
    ],
  ];
  for (const [cost, left] of table) {
    const { api, url, settle, limiter } = make([], { cost }, limits);
    await settle(api(url, { method: "POST", headers: { "x-bytes": "7" }, body: "x" }));
    assert.deepEqual(
      limiter.save().map(({ tokens }) => tokens),
      left,
    );
  }
  const { api, url, seen } = make([], { cost: 101 });
  await assert.rejects(api(url), { code: "cost_never_granted", maxCost: 100 });
  assert.deepEqual(seen(), []);
});

test("a pause holds for everything that uses the limiter, with jitter added", async (t) => {
  // biome-ignore format: a table
  const table = [
    // random  jitterMs   longer by
    [0,        1000,      0],
    [0.5,      1000,      500],
    [0.9999,   1000,      1000],
    [0.5,      undefined, 500],
    [0.5,      0,         0],
    [0.5,      7,         4],
  ];
  for (const [random, jitterMs, longerMs] of table) {
    t.mock.method(Math, "random", () => random);
    const { api, url, limiter, settle, sentAt } = make([[429, { "retry-after": "3" }]], { jitterMs });
    const first = api(url);
    while (sentAt.length === 0 || limiter.peek().allowed) await setImmediate();
    assert.deepEqual(limiter.consume(), { allowed: false, retryAt: START + 3000 + longerMs }, `${random} ${jitterMs}`);
    const { allowed, readyAt } = await settle(limiter.acquire());
    assert.deepEqual([allowed, readyAt], [true, START + 3000 + longerMs]);
    assert.equal((await settle(first)).status, 200);
    assert.deepEqual(sentAt, [0, 3000 + longerMs]);
    t.mock.restoreAll();
  }
  const waits = new Set();
  for (let i = 0; i < 20; i++) {
    const { api, url, settle, sentAt } = make([[429, { "retry-after": "3" }]], { jitterMs: undefined });
    await settle(api(url));
    assert.ok(sentAt[1] >= 3000 && sentAt[1] <= 4000, `${sentAt}`);
    waits.add(sentAt[1]);
  }
  assert.ok(waits.size > 5, "not all at once");
});

test("a retry sends the same request, whatever the body", async () => {
  const form = () => {
    const data = new FormData();
    data.set("field", "of the form");
    data.set("file", new Blob(["of the file"]), "name.txt");
    return data;
  };
  const stream = () => ReadableStream.from(["of the ", "stream"].map((text) => new TextEncoder().encode(text)));
  const table = [
    ["text", () => "of the text", /^of the text$/],
    ["parameters", () => new URLSearchParams({ a: "of the query" }), /^a=of\+the\+query$/],
    ["bytes", () => new TextEncoder().encode("of the bytes"), /^of the bytes$/],
    ["blob", () => new Blob(["of the blob"]), /^of the blob$/],
    ["form", form, /of the form.*of the file/s],
    ["stream", stream, /^of the stream$/],
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
          [method, headers["x-own"], headers["content-type"]],
          ["PUT", "1", seen()[0].headers["content-type"]],
          what,
        );
      }
    }
  }
});

test("a signal aborts the first wait and the wait before a retry", async () => {
  for (const isRequest of [false, true]) {
    const { api, url, limiter, settle, sentAt, seen } = make(
      [[429, { "retry-after": "5" }]],
      {},
      { rate: 1, periodMs: 1000 },
    );
    const reason = new Error("not any more");
    const send = (signal) => (isRequest ? api(new Request(url, { signal })) : api(url, { signal }));
    await assert.rejects(send(AbortSignal.abort(reason)), (error) => error === reason, "before");
    limiter.consume();
    const first = new AbortController();
    const queued = send(first.signal);
    queued.catch(() => {});
    await setImmediate();
    assert.equal(limiter.waiting, 1);
    first.abort(reason);
    await assert.rejects(queued, (error) => error === reason, "queued");
    assert.deepEqual([limiter.waiting, seen()], [0, []]);
    limiter.reset();
    const second = new AbortController();
    const again = send(second.signal);
    again.catch(() => {});
    while (limiter.waiting === 0) await setImmediate();
    assert.deepEqual(sentAt, [0]);
    second.abort(reason);
    await assert.rejects(again, (error) => error === reason, "before it is sent again");
    assert.deepEqual([limiter.waiting, seen().length], [0, 1]);
    await settle(setImmediate());
  }
});

test("a request can be aborted in flight", async () => {
  const { limiter } = make([]);
  const controller = new AbortController();
  const api = limitFetch(limiter, {
    fetch: (request) =>
      new Promise((_, reject) => request.signal.addEventListener("abort", () => reject(request.signal.reason))),
  });
  const sent = api(origin, { signal: controller.signal });
  await setImmediate();
  controller.abort("on its way");
  await assert.rejects(sent, (reason) => reason === "on its way");
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
    assert.equal(await response.text(), `answer ${expected.length}`, "it can be read");
  }
});

test("rejects a request that cannot be sent in time at all", async () => {
  const { api, url, limiter, seen } = make([], { maxWaitMs: 99 }, { rate: 1, periodMs: 100 });
  limiter.consume();
  await assert.rejects(api(url), { name: "TollgateError", code: "wait_too_long", retryAt: START + 100 });
  assert.deepEqual(seen(), []);
});

test("if the queue is full, returns the last response", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 9, periodMs: 1000 }, { clock, maxQueue: 0 });
  const { url, seen } = make([[429, { "retry-after": "3" }]]);
  assert.equal((await limitFetch(limiter)(url)).status, 429);
  await assert.rejects(limitFetch(limiter)(url), { code: "queue_full" });
  assert.equal(seen().length, 1);
});

test("a request may have a priority", async () => {
  const { api, url, limiter, clock, sentAt, settle } = make([], { priority: 1 }, { rate: 1, periodMs: 1000 });
  limiter.consume();
  const other = clock.follow(limiter.acquire());
  await settle(api(url));
  assert.deepEqual([sentAt, other], [[1000], {}]);
});

test("a network failure goes to the caller and is not retried", async () => {
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
  assert.deepEqual([sent, limiter.remaining()], [1, 99], "what is no request costs nothing");
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

test("absurd headers do not break the limiter", async () => {
  for (const headers of [
    { "retry-after": "9".repeat(20) },
    { "retry-after": "9".repeat(400) },
    { ratelimit: `"api";r=0;t=${"9".repeat(20)}` },
  ]) {
    const { api, url, settle, limiter } = make([[429, headers]], { maxWaitMs: 1000 });
    assert.equal((await settle(api(url))).status, 429);
    await assert.rejects(limiter.acquire({ maxWaitMs: 1000 }), { code: "wait_too_long" });
    assert.equal(limiter.peek().allowed, false);
    assert.equal(limiter.waiting, 0);
  }
});

test("rejects options that are not whole numbers", async () => {
  const { limiter } = make([]);
  for (const options of [
    { retries: NaN },
    { retries: -1 },
    { retries: 0.5 },
    { retries: "2" },
    { jitterMs: NaN },
    { jitterMs: -1 },
    { jitterMs: "1000" },
  ]) {
    assert.throws(() => limitFetch(limiter, options), { name: "TollgateError" }, JSON.stringify(options));
  }
});
