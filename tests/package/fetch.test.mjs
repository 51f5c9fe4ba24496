// limitFetch: which requests are sent, and what they cost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { START } from "./clock.mjs";
import { make, origin } from "./fetching.mjs";

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

test("the caller's own arguments reach fetch in every attempt, and no Request is made", async (t) => {
  const { limiter, settle } = make([]);
  const made = t.mock.method(globalThis, "Request", globalThis.Request);
  const next = { revalidate: 60 };
  const inputs = [
    [origin],
    [new URL(origin)],
    [origin, undefined],
    [origin, { next, dispatcher: {}, unix: "/run/a.sock", client: {} }],
    [origin, { method: "POST", body: "text", next }],
    [origin, { method: "POST", body: new Blob(["blob"]), next }],
    [origin, { method: "POST", body: new FormData(), next }],
    [new Request(origin, { headers: { "x-own": "1" } })],
    [new Request(origin), { next }],
    [new Request(origin, { method: "POST" }), { next }],
    ["/relative", { next }],
  ];
  for (const input of inputs) {
    const sent = [];
    const fetch = async (...args) => {
      sent.push(args);
      return new Response("", { status: sent.length < 3 ? 429 : 200 });
    };
    const before = made.mock.callCount();
    await settle(limitFetch(limiter, { fetch, jitterMs: 0 })(...input));
    assert.equal(sent.length, 3);
    for (const args of sent) {
      assert.equal(args.length, input.length);
      for (const [i, arg] of args.entries()) assert.equal(arg, input[i]);
    }
    assert.equal(made.mock.callCount(), before);
  }
});

test("a body that can be sent only once is sent in every attempt, with the caller's other options", async () => {
  const { limiter, settle } = make([]);
  const next = { revalidate: 60 };
  const init = () => ({ method: "POST", body: ReadableStream.from([Buffer.from("stream")]), duplex: "half" });
  const table = [
    [origin, { ...init(), next }],
    [new Request(origin, init()), { next }],
    [new Request(origin, init()), { next, body: null }],
    [new Request(origin, init()), { next, body: "of the options" }],
  ];
  for (const [input, options] of table) {
    const sent = [];
    const fetch = async (input, init) => {
      sent.push([input, init.next, await new Request(input, init).text()]);
      return new Response("", { status: sent.length < 3 ? 429 : 200 });
    };
    await settle(limitFetch(limiter, { fetch, jitterMs: 0 })(input, options));
    assert.deepEqual(sent, Array(3).fill([input, next, options.body === "of the options" ? options.body : "stream"]));
  }
});

test("a URL that only the caller's fetch can resolve has a cost, and a body that is sent again", async () => {
  const { limiter, settle } = make([]);
  const urls = [];
  const cost = async (request) => {
    urls.push(request.url);
    return (await request.text()).length;
  };
  const table = [
    [{}, undefined],
    [{ cost }, undefined],
    [{ cost }, { method: "POST", body: "text" }],
    [{ cost }, { method: "POST", body: ReadableStream.from([Buffer.from("text")]), duplex: "half" }],
    [{}, { method: "POST", body: ReadableStream.from([Buffer.from("text")]), duplex: "half" }],
    [{ cost }, new Request("https://example.com", { method: "POST", body: "text" })],
    [{}, new Request("https://example.com", { method: "POST", body: "text" })],
  ];
  for (const [options, init] of table) {
    const sent = [];
    const fetch = async (input, init) => {
      assert.equal(init?.method ?? "GET", init ? "POST" : "GET");
      sent.push([input, await new Response(init?.body).text()]);
      return new Response("", { status: sent.length < 3 ? 429 : 200 });
    };
    await settle(limitFetch(limiter, { fetch, jitterMs: 0, ...options })("/relative?q", init));
    assert.deepEqual(sent, Array(3).fill(["/relative?q", init ? "text" : ""]));
  }
  assert.deepEqual(urls, Array(4).fill("http://localhost/relative?q"));
});

test("the caller's own fetch may take what the platform's would not", async () => {
  const { limiter, settle } = make([]);
  const iterator = () => new Map([["authorization", "s"]]).entries();
  const stream = () => ReadableStream.from([Buffer.from("text")]);
  const table = [
    [{ method: "POST", headers: iterator() }, (sent) => assert.deepEqual([...sent.headers], [["authorization", "s"]])],
    [
      { method: "POST", headers: { ":authority": "a" } },
      (sent) => assert.deepEqual(sent.headers, { ":authority": "a" }),
    ],
    [{ method: "POST", body: stream() }, async (sent) => assert.equal(await new Response(sent.body).text(), "text")],
  ];
  for (const [init, check] of table) {
    let sent;
    const fetch = async (_, init) => {
      sent ??= init;
      return new Response("");
    };
    await settle(limitFetch(limiter, { fetch })(origin, init));
    await check(sent);
  }
  const json = { ok: true, status: 200, json: async () => 7 };
  assert.equal(await settle(limitFetch(limiter, { fetch: async () => json })(origin)), json);
});

test("a 503 is retried if the request has an idempotency key, however its headers are given", async () => {
  for (const headers of [
    { "Idempotency-Key": "k" },
    [["idempotency-key", "k"]],
    new Headers({ "idempotency-key": "k" }),
    new Map([["Idempotency-Key", "k"]]),
  ]) {
    const { api, url, settle, seen } = make([[503]]);
    assert.equal((await settle(api(url, { method: "POST", headers }))).status, 200);
    assert.deepEqual(
      seen().map((request) => request.headers["idempotency-key"]),
      ["k", "k"],
    );
  }
  const { api, url, settle } = make([[503]]);
  assert.equal((await settle(api(url, { method: "POST", headers: { keys: "k" } }))).status, 503);
});

test("a request may be given as the options, as a proxy does", async () => {
  const made = (url) => new Request(url, { method: "PUT", body: "text", headers: { "x-own": "1" } });
  for (const cost of [1, async (request) => (await request.text()).length]) {
    const { api, url, settle, seen } = make([[429]], { cost });
    await settle(api(url, made("https://example.com")));
    assert.deepEqual(
      seen().map(({ method, body, headers }) => [method, body, headers["x-own"]]),
      Array(2).fill(["PUT", "text", "1"]),
    );
  }
});

test("a request may be of another library's class, as undici's", async () => {
  class Foreign {
    url = "https://example.com/";
    method = "POST";
    headers = new Headers();
    body = new Response("hello").body;
    clone() {
      const copy = new Foreign();
      [this.body, copy.body] = this.body.tee();
      return copy;
    }
    text = () => new Response(this.body).text();
    arrayBuffer = () => new Response(this.body).arrayBuffer();
  }
  const sent = [];
  const fetch = async (request, init) => {
    sent.push(await new Response(init?.body ?? request.body).text());
    return new Response(null, { status: sent.length < 2 ? 429 : 200, headers: { "retry-after": "0" } });
  };
  const limiter = new Limiter({ rate: 100, periodMs: 1000 });
  const cost = async (request) => (await request.text()).length;
  const api = limitFetch(limiter, { fetch, cost, jitterMs: 0 });
  assert.equal((await api(new Foreign())).status, 200);
  assert.deepEqual(sent, ["hello", "hello"]);
});

test("a call that is rejected before it is sent leaves the body to the caller", async () => {
  const { limiter, api } = make([], { maxWaitMs: 0 });
  const body = ReadableStream.from([Buffer.from("stream")]);
  limiter.charge(100);
  await assert.rejects(api(origin, { method: "POST", body, duplex: "half" }), { code: "wait_too_long" });
  assert.equal(await new Response(body).text(), "stream");
});

test("a body that fetch cancels is cancelled", async () => {
  const { limiter } = make([]);
  const error = new TypeError("offline");
  for (const answer of [() => new Response(), () => Promise.reject(error)]) {
    for (const options of [{}, { cost: () => 1 }, { cost: () => 1, retries: 0 }]) {
      const cancelled = [];
      const body = new ReadableStream({ cancel: (reason) => void cancelled.push(reason) });
      const fetch = async (_, { body }) => {
        body.cancel(error);
        return answer();
      };
      const api = limitFetch(limiter, { fetch, ...options });
      await api(origin, { method: "POST", body, duplex: "half" }).catch((reason) => assert.equal(reason, error));
      assert.equal(cancelled.length, 1);
    }
  }
});

test("undici's dispatcher is that of the caller in every attempt", async () => {
  await fetch(origin); // makes the global one
  const global = globalThis[Symbol.for("undici.globalDispatcher.1")];
  const body = () => ({ method: "PUT", body: "text" });
  for (const asRequest of [false, true]) {
    for (const options of [
      () => ({}),
      body,
      () => ({ ...body(), body: ReadableStream.from([Buffer.from("x")]), duplex: "half" }),
    ]) {
      let dispatched = 0;
      const dispatcher = {
        dispatch: (...args) => {
          dispatched++;
          return global.dispatch(...args);
        },
      };
      const { api, url, settle, seen } = make([[429], [503]]);
      const init = { ...options(), dispatcher };
      await settle(asRequest ? api(new Request(url, init)) : api(url, init));
      assert.deepEqual([seen().length, dispatched], [3, 3], `${asRequest} ${options}`);
    }
  }
});

test("by default sends with whatever the global fetch is at that time", async (t) => {
  const { limiter, url } = make([]);
  const api = limitFetch(limiter);
  assert.equal(await (await api(url)).text(), "answer 1");
  t.mock.method(globalThis, "fetch", () => new Response("mine"));
  assert.equal(await (await api(url)).text(), "mine");
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

test("a function for the cost may wait, and read a request that is sent all the same", async () => {
  const limits = [
    { name: "requests", rate: 10, periodMs: 1000 },
    { name: "tokens", rate: 100, periodMs: 1000 },
  ];
  const init = () => ({ method: "POST", duplex: "half", headers: { "x-own": "1" } });
  const stream = () => ReadableStream.from([Buffer.from("of the "), Buffer.from("stream")]);
  const table = [
    [(url) => [url, { ...init(), body: "of the stream" }]],
    [(url) => [url, { ...init(), body: stream() }]],
    [(url) => [new Request(url, { ...init(), body: stream() })]],
    [(url) => [new Request(url, init()), { body: stream(), duplex: "half" }]],
  ];
  for (const [input] of table) {
    for (const reads of [true, false]) {
      const asked = [];
      const cost = async (request) => {
        asked.push([request.method, request.headers.get("x-own")]);
        return { requests: 1, tokens: reads ? (await request.text()).length : 13 };
      };
      const { api, url, settle, limiter, seen } = make([[429]], { cost }, limits);
      await settle(api(...input(url)));
      assert.deepEqual(
        seen().map(({ method, body }) => [method, body]),
        Array(2).fill(["POST", "of the stream"]),
      );
      assert.deepEqual(asked, [["POST", "1"]]);
      assert.deepEqual(
        limiter.save().map(({ tokens }) => tokens),
        [9, 87],
      );
    }
  }
  const error = new Error("no tokenizer");
  const { api, url, seen, limiter } = make([], {
    cost: async () => {
      throw error;
    },
  });
  await assert.rejects(api(url), error);
  assert.deepEqual([seen().length, limiter.remaining()], [0, 100]);
});

test("a request may have a priority", async () => {
  const { api, url, limiter, clock, sentAt, settle } = make([], { priority: 1 }, { rate: 1, periodMs: 1000 });
  limiter.tryConsume();
  const other = clock.follow(limiter.acquire());
  await settle(api(url));
  assert.deepEqual([sentAt, other], [[1000], {}]);
});

test("rejects a request that cannot be sent in time at all", async () => {
  const { api, url, limiter, seen } = make([], { maxWaitMs: 99 }, { rate: 1, periodMs: 100 });
  limiter.tryConsume();
  await assert.rejects(api(url), { name: "TollgateError", code: "wait_too_long", retryAt: START + 100 });
  assert.deepEqual(seen(), []);
});

test("a request can be aborted in flight", async () => {
  const { limiter } = make([]);
  const controller = new AbortController();
  const api = limitFetch(limiter, {
    fetch: (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  });
  const sent = api(origin, { signal: controller.signal });
  await setImmediate();
  controller.abort("on its way");
  await assert.rejects(sent, (reason) => reason === "on its way");
});

test("a request that is aborted before it is sent takes nothing", async () => {
  const limiter = new Limiter({ rate: 5, periodMs: 60_000 }, { maxConcurrent: 2 });
  let sent = 0;
  const api = limitFetch(limiter, { fetch: async () => new Response(`${++sent}`) });
  for (let i = 0; i < 3; i++) {
    const controller = new AbortController();
    const call = api(origin, { signal: controller.signal });
    controller.abort("at once");
    await assert.rejects(call, (reason) => reason === "at once");
  }
  assert.deepEqual([sent, limiter.remaining()], [0, 5]);
  await limiter.onIdle();
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
    limiter.tryConsume();
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
    await assert.rejects(again, (error) => error === reason, "before the retry");
    assert.deepEqual([limiter.waiting, seen().length], [0, 1]);
    await settle(setImmediate());
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
    { maxPauseMs: NaN },
    { maxPauseMs: -1 },
  ]) {
    assert.throws(() => limitFetch(limiter, options), { name: "TollgateError" }, JSON.stringify(options));
  }
});
