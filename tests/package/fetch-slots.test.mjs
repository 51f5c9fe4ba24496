// limitFetch: how long a request counts against `maxConcurrent`.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { promisify } from "node:util";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { FakeClock } from "./clock.mjs";
import { make, origin } from "./fetching.mjs";

const built = new URL("../../build/package/", import.meta.url);
const bytes = (text) => new TextEncoder().encode(text);

/** A fetch of two slots whose responses the test feeds, and `free`: how many slots are left. */
function slots(options, status = 200) {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 1000, periodMs: 1 }, { clock, maxConcurrent: 2 });
  const streams = [];
  const cancelled = [];
  const fetch = async () => {
    const number = streams.length;
    const body = new ReadableStream({
      start: (controller) => void streams.push(controller),
      cancel: (reason) => void cancelled.push([number, reason]),
    });
    return new Response(body, { status });
  };
  const api = limitFetch(limiter, { fetch, jitterMs: 0, ...options });
  const free = async () => {
    const grants = [];
    for (;;) {
      let grant;
      const abort = new AbortController();
      limiter.acquire({ signal: abort.signal }).then(
        (admitted) => (grant = admitted),
        () => {},
      );
      await setImmediate();
      abort.abort();
      if (!grant) break;
      grants.push(grant);
    }
    for (const grant of grants) limiter.release(grant);
    return grants.length;
  };
  return { clock, limiter, api, streams, cancelled, free };
}

test("a request counts until the body of its response has been read", async () => {
  const { api, limiter, streams, free, clock } = slots();
  const response = await api(origin);
  let isIdle = false;
  const idle = limiter.onIdle().then(() => (isIdle = true));
  assert.equal(await free(), 1);
  streams[0].enqueue(bytes("one "));
  const reader = response.body.getReader();
  assert.deepEqual(await reader.read(), { done: false, value: bytes("one ") });
  const second = reader.read();
  assert.deepEqual([await free(), isIdle], [1, false]);
  streams[0].enqueue(bytes("two"));
  assert.deepEqual((await second).value, bytes("two"));
  assert.equal(await free(), 1);
  streams[0].close();
  assert.equal((await reader.read()).done, true);
  assert.deepEqual([await free(), clock.timers], [2, []]);
  await idle;
});

test("every way to read a body ends it", async () => {
  for (const read of ["text", "arrayBuffer", "blob", "bytes", "json", "formData", "pipeTo", "iterate"]) {
    const { api, streams, free } = slots();
    if (!Response.prototype[read] && !["pipeTo", "iterate"].includes(read)) continue;
    const response = await api(origin);
    response.headers.set("content-type", "application/x-www-form-urlencoded");
    streams[0].enqueue(bytes("17"));
    const reading =
      read === "pipeTo"
        ? response.body.pipeTo(new WritableStream())
        : read === "iterate"
          ? Array.fromAsync(response.body)
          : response[read]();
    assert.equal(await free(), 1);
    streams[0].close();
    await reading;
    assert.equal(await free(), 2, read);
  }
});

test("a request counts until the body is cancelled or fails", async () => {
  const it = slots();
  const response = await it.api(origin);
  await response.body.cancel("enough");
  assert.deepEqual([await it.free(), it.cancelled], [2, [[0, "enough"]]]);
  const failing = await it.api(origin);
  assert.equal(await it.free(), 1);
  const error = new TypeError("terminated");
  it.streams[1].error(error);
  await assert.rejects(failing.text(), error);
  assert.deepEqual([await it.free(), it.clock.timers], [2, []]);
});

test("a body that fails while nothing reads it frees the slot at once", async () => {
  const { api, streams, free, clock } = slots();
  const response = await api(origin);
  assert.equal(await free(), 1);
  const error = new DOMException("aborted", "AbortError");
  streams[0].error(error);
  assert.deepEqual([await free(), clock.timers], [2, []]);
  await assert.rejects(response.text(), error);
});

test("a slot is freed only once", async () => {
  const clock = new FakeClock();
  let released = 0;
  const limiter = { clock, maxConcurrent: 1, acquire: async () => {}, pause() {}, release: () => released++ };
  const response = await limitFetch(limiter, { fetch: async () => new Response("late") })(origin);
  assert.equal(released, 0);
  await clock.advance(10_000);
  assert.deepEqual([released, await response.text(), released], [1, "late", 1]);
});

test("a body that has not been read from for ten seconds frees its slot, and can still be read", async () => {
  const { api, streams, free, clock } = slots();
  const unread = await api(origin);
  const half = await api(origin);
  streams[1].enqueue(bytes("a"));
  const reader = half.body.getReader();
  await clock.advance(6000);
  await reader.read();
  await clock.advance(3999);
  assert.equal(await free(), 0);
  await clock.advance(1);
  assert.equal(await free(), 1);
  await clock.advance(5999);
  assert.equal(await free(), 1);
  await clock.advance(1);
  assert.deepEqual([await free(), clock.timers], [2, []]);
  for (const stream of streams) stream.close();
  assert.deepEqual([await unread.text(), (await reader.read()).done, await free()], ["", true, 2]);
});

test("a reader that waits for a slow server keeps the slot", async () => {
  const { api, streams, free, clock } = slots();
  const response = await api(origin);
  const text = response.text();
  await clock.advance(3_600_000);
  assert.equal(await free(), 1);
  streams[0].close();
  await text;
  assert.deepEqual([await free(), clock.timers], [2, []]);
});

test("a response without a body, a failure and a refusal that is retried free the slot at once", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 1000, periodMs: 1 }, { clock, maxConcurrent: 1 });
  const answers = [
    () => new Response(null, { status: 204 }),
    () => new Response(null),
    () => Promise.reject(new TypeError("offline")),
    () => new Response("busy", { status: 429, headers: { "retry-after": "0" } }),
    () => new Response("done"),
  ];
  const api = limitFetch(limiter, { fetch: async () => answers.shift()(), jitterMs: 0 });
  assert.equal((await api(origin)).status, 204);
  assert.equal((await api(origin)).status, 200);
  await assert.rejects(api(origin), { message: "offline" });
  assert.equal(await (await api(origin)).text(), "done");
  await limiter.onIdle();
  assert.deepEqual(clock.timers, []);
});

test("a response that no program can make with a body is returned as it is, and frees the slot at once", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 1000, periodMs: 1 }, { clock, maxConcurrent: 1 });
  for (const status of [101, 199, 204, 205, 304, 600, 999]) {
    const foreign = Object.defineProperty(new Response("foreign"), "status", { value: status });
    const response = await limitFetch(limiter, { fetch: async () => foreign })(origin);
    assert.equal(response, foreign, `${status}`);
    assert.equal(await response.text(), "foreign");
    await limiter.onIdle();
  }
  assert.deepEqual(clock.timers, []);
});

test("an empty body frees the slot at once", async () => {
  const { url } = make(Array(3).fill([201, { "content-length": "0" }]));
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 1000, periodMs: 1 }, { clock, maxConcurrent: 1 });
  for (let i = 0; i < 3; i++) {
    const response = await limitFetch(limiter)(url, { method: "POST", body: "text" });
    await limiter.onIdle();
    assert.equal(await response.text(), "");
  }
  assert.deepEqual(clock.timers, []);
  const body = new ReadableStream({ start: (controller) => controller.close() });
  await limitFetch(limiter, { fetch: async () => new Response(body) })(origin);
  await limiter.onIdle();
});

test("the response stays what it was, and so do its copies", async () => {
  const { url, limiter } = make([[200, { "x-own": "1" }]]);
  const redirect = `${url}?redirected`;
  const plain = await fetch(redirect);
  const counting = new Limiter({ rate: 9, periodMs: 1 }, { maxConcurrent: 1 });
  const response = await limitFetch(counting)(redirect);
  const own = ({ url, redirected, type, status, statusText, ok }) => ({
    url,
    redirected,
    type,
    status,
    statusText,
    ok,
  });
  assert.deepEqual(own(response), own(plain));
  assert.ok(response instanceof Response && response.url === redirect);
  const copy = response.clone();
  const again = copy.clone();
  assert.deepEqual([own(copy), own(again)], [own(plain), own(plain)]);
  assert.deepEqual(await Promise.all([response.text(), copy.text(), again.text()]), Array(3).fill("answer 2"));
  await counting.onIdle();
  const fetched = new Response("x");
  assert.equal(await limitFetch(limiter, { fetch: async () => fetched })(url), fetched, "without a cap, the very same");
});

test("a status text need not be Latin-1", async () => {
  const server = createServer((socket) => {
    socket.once("data", () => socket.end("HTTP/1.1 200 Добре\r\nContent-Length: 2\r\n\r\nok"));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const counting = new Limiter({ rate: 9, periodMs: 1 }, { maxConcurrent: 1 });
  const response = await limitFetch(counting)(`http://127.0.0.1:${server.address().port}`);
  assert.deepEqual([response.statusText, response.clone().statusText], ["Добре", "Добре"]);
  assert.equal(await response.text(), "ok");
  server.close();
});

test("a response is made of all members that its platform knows", async (t) => {
  const limiter = new Limiter({ rate: 9, periodMs: 1 }, { clock: new FakeClock(), maxConcurrent: 1 });
  const inits = [];
  const own = new Response("x");
  const Made = globalThis.Response;
  t.mock.property(globalThis, "Response", function Response(body, init) {
    inits.push(init);
    return new Made(body, init);
  });
  const sent = limitFetch(limiter, { fetch: async () => own })(origin);
  assert.equal(await (await sent).text(), "x");
  assert.deepEqual(inits, [own]);
});

test("a body can be read into buffers of the caller if it could before", async () => {
  const { url } = make([]);
  const counting = new Limiter({ rate: 9, periodMs: 1 }, { maxConcurrent: 1 });
  const reader = (await limitFetch(counting)(url)).body.getReader({ mode: "byob" });
  const read = [];
  for (;;) {
    const { done, value } = await reader.read(new Uint8Array(5));
    if (done) break;
    read.push(`${Buffer.from(value)}`);
  }
  assert.equal(read.join(""), "answer 1");
  await counting.onIdle();
  const { api, streams } = slots(); // a stream of anything
  const { body } = await api(origin);
  assert.throws(() => body.getReader({ mode: "byob" }), TypeError);
  streams[0].enqueue("text");
  assert.deepEqual(await body.getReader().read(), { done: false, value: "text" });
});

test("the connection of a response that is collected unread is closed, and that of its body alone is not", async () => {
  const program = `
    import { once } from "node:events";
    import { createServer } from "node:http";
    import { setTimeout } from "node:timers/promises";
    import { Limiter, limitFetch } from ${JSON.stringify(`${built}index.js`)};
    import { FakeClock } from ${JSON.stringify(`${built}testing.js`)};
    const open = new Set();
    const server = createServer((_, response) => {
      open.add(response.on("close", () => open.delete(response)));
      response.end(Buffer.alloc(9_000_000));
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const clock = new FakeClock();
    const api = limitFetch(new Limiter({ rate: 9, periodMs: 1 }, { clock, maxConcurrent: 9 }));
    const ask = async () => (await api("http://127.0.0.1:" + server.address().port)).body;
    const wanted = await ask();
    await (async () => void (await ask()))();
    await clock.advance(10_000);
    for (let i = 0; i < 200 && open.size > 1; i++) {
      gc();
      await setTimeout(10);
    }
    console.log(open.size, (await new Response(wanted).arrayBuffer()).byteLength);
    process.exit();
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ["--expose-gc", "--input-type=module", "-e", program]);
  assert.equal(stdout, "1 9000000\n");
});

test("a redirected response says so", async () => {
  const { url } = make([[302, { location: origin }]]);
  const counting = new Limiter({ rate: 9, periodMs: 1 }, { maxConcurrent: 1 });
  const response = await limitFetch(counting)(url);
  assert.deepEqual([response.redirected, response.url, response.type], [true, `${origin}/`, "basic"]);
  await response.text();
});

test("a body that cannot be followed frees the slot at once", async () => {
  const clock = new FakeClock();
  const odd = new Response("x");
  Object.defineProperty(odd, "status", { value: 999 });
  const locked = new Response("x");
  const reader = locked.body.getReader();
  const foreign = { status: 200, headers: new Headers(), body: { on() {} } }; // as of node-fetch
  const refused = { ...foreign, status: 429 };
  for (const responses of [[odd], [locked], [foreign], [refused, foreign]]) {
    const limiter = new Limiter({ rate: 9, periodMs: 1 }, { clock, maxConcurrent: 1 });
    const api = limitFetch(limiter, { fetch: async () => responses.shift(), jitterMs: 0 });
    const expected = responses.at(-1);
    const sent = api(origin);
    await clock.advance(1000);
    assert.equal(await sent, expected);
    await limiter.onIdle();
  }
  reader.releaseLock();
});

test("a response made for a test may have only a status, or a way to get headers beside it", async () => {
  const limiter = new Limiter({ rate: 9, periodMs: 1 }, { clock: new FakeClock(), maxConcurrent: 1 });
  for (const simple of [{ status: 200, headers: { get: () => null } }, { status: 200 }])
    assert.equal(await limitFetch(limiter, { fetch: async () => simple })(origin), simple);
  await limiter.onIdle();
});

test("if asked, a request counts only until the headers are there", async () => {
  const { api, free, clock } = slots({ countUntil: "headers" });
  await api(origin);
  assert.deepEqual([await free(), clock.timers], [2, []]);
  assert.throws(() => slots({ countUntil: "end" }), {
    code: "countUntil_unknown",
    message: "countUntil must be one of headers,body, not end",
  });
});
