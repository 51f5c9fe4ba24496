// `tollgate/node`: a limit in front of servers of `http`, of Express and of Fastify.
import assert from "node:assert/strict";
import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { connect as connectHttp2, constants, createServer as createHttp2Server } from "node:http2";
import { connect } from "node:net";
import { describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import fastify from "fastify";
import { Client } from "../../build/package/client.js";
import { LeasingLimiter } from "../../build/package/leases.js";
import { KeyedLimiter, rateLimit } from "../../build/package/node.js";
import { FakeClock, START } from "./clock.mjs";
import { fresh } from "./fresh.mjs";
import { listen, serve, WAYS } from "./servers.mjs";

const MINUTE = { rate: 2, periodMs: 60_000 };

/** A limiter of 2 a minute whose clock stands still. */
function keyed(limits = MINUTE, options = {}) {
  const clock = new FakeClock(START);
  return { clock, limiter: new KeyedLimiter(limits, { clock, ...options }) };
}

/** The warnings while a test runs. */
function warningsOf(t) {
  const warn = t.mock.method(console, "warn", () => {});
  return () => warn.mock.calls.map(({ arguments: [text] }) => text);
}

const PREFLIGHT = { origin: "https://app.example", "access-control-request-method": "POST" };

for (const way of WAYS) {
  describe(way, () => {
    test("each address has a limit, and every response says what is left", async () => {
      const { clock, limiter } = keyed();
      const { send } = await serve(way, rateLimit({ limiter }));
      const passed = await send("/");
      assert.deepEqual([passed.status, passed.text], [200, "passed"]);
      assert.equal(passed.headers["ratelimit-policy"], `"default";q=2;w=60;tollgate-capacity=2`);
      assert.equal(passed.headers.ratelimit, `"default";r=1;t=30`);
      assert.equal(passed.headers["retry-after"], undefined);
      assert.equal((await send("/")).headers.ratelimit, `"default";r=0;t=30`);

      await clock.advance(999);
      const refused = await send("/");
      assert.equal(refused.status, 429);
      assert.match(refused.headers["content-type"], /^application\/problem\+json/);
      assert.equal(refused.headers["cache-control"], "no-store");
      assert.equal(refused.headers["ratelimit-policy"], `"default";q=2;w=60;tollgate-capacity=2`);
      assert.equal(refused.headers.ratelimit, `"default";r=0;t=30`, "rounded up");
      assert.equal(refused.headers["retry-after"], "30");
      const { title, status, retry_at, retry_after_ms, remaining } = refused.body;
      assert.deepEqual([title, status, retry_after_ms, remaining], ["Quota exceeded", 429, 29_001, 0]);
      assert.equal(retry_at, START + 30_000);
      assert.deepEqual(
        Object.keys(refused.headers).filter((name) => name.startsWith("access-control-")),
        [],
      );

      assert.equal((await send("/", { from: "127.0.0.2" })).status, 200, "another address");
      await clock.to(START + 30_000);
      assert.equal((await send("/")).status, 200, "as promised");
    });

    test("a browser's preflight is not counted; any other OPTIONS is", async () => {
      const { send } = await serve(way, rateLimit({ limiter: keyed().limiter }));
      const options = async (headers) => {
        const { status, headers: sent } = await send("/", { method: "OPTIONS", headers });
        return [status, sent.ratelimit];
      };
      for (let i = 0; i < 3; i++) assert.deepEqual(await options(PREFLIGHT), [200, undefined]);
      for (const headers of [{}, { origin: PREFLIGHT.origin }]) assert.equal((await options(headers))[0], 200);
      assert.equal((await options({}))[0], 429);
      assert.deepEqual(await options(PREFLIGHT), [200, undefined]);
    });

    test("the functions in the options have the request, and skipped requests are not counted", async () => {
      const limit = rateLimit({
        limiter: keyed({ rate: 10, periodMs: 60_000 }).limiter,
        policy: "uploads",
        key: (request) => request.headers["x-user"],
        cost: async (request) => Number(request.headers["x-cost"] ?? 1),
        skip: (request) => request.headers["x-internal"] === "yes",
      });
      const { send } = await serve(way, limit);
      const as = (user, headers) => send("/", { headers: { "x-user": user, ...headers } });
      assert.equal((await as("alice", { "x-cost": "7" })).headers.ratelimit, `"uploads";r=3;t=6`);
      assert.equal((await as("alice", { "x-cost": "4" })).status, 429);
      assert.equal((await as("bob", { "x-cost": "4" })).headers.ratelimit, `"uploads";r=6;t=6`);
      assert.equal((await send("/")).headers.ratelimit, `"uploads";r=9;t=6`, "no user: the address");
      assert.equal((await as("alice", { "x-cost": "4", "x-internal": "yes" })).headers.ratelimit, undefined);
    });

    test("a wrong key or cost is a wrong request, and takes nothing", async () => {
      const { limiter } = keyed();
      const key = ({ headers }) => headers["x-user"];
      const cost = ({ headers }) => Number(headers["x-cost"] ?? 1);
      const { send } = await serve(way, rateLimit({ limiter, key, cost }));
      const tooLarge = await send("/", { headers: { "x-cost": "3" } });
      assert.deepEqual([tooLarge.status, tooLarge.body.max_cost], [400, 2]);
      assert.match((await send("/", { headers: { "x-cost": "0.5" } })).body.detail, /^cost must be a whole number/);
      const tooLong = await send("/", { headers: { "x-user": "k".repeat(1025) } });
      assert.deepEqual([tooLong.status, tooLong.body.detail.slice(0, 13)], [400, "key must have"]);
      for (const wrong of [["a"], { toString: 1 }, 7]) {
        const { send } = await serve(way, rateLimit({ limiter, key: () => wrong }));
        const { status, body } = await send("/");
        assert.deepEqual([status, body.detail], [400, "key must be a text or an address"]);
      }
      assert.equal(limiter.size, 0);
    });

    test("an error in a function reaches the application, and the request does not pass", async () => {
      const key = () => {
        throw Object.assign(new Error("no session"), { code: "OWN" });
      };
      const { send } = await serve(way, rateLimit({ limiter: keyed().limiter, key }));
      const { status, text } = await send("/");
      assert.deepEqual([status, text], [500, "OWN: no session"]);
    });

    test("the application's own response to a refusal has the status and the headers", async () => {
      const limit = rateLimit({
        limiter: keyed({ rate: 1, periodMs: 60_000 }).limiter,
        onRefused: ({ retry_after_ms }, _request, response) => {
          const text = `later: ${retry_after_ms}`;
          return response.end ? response.end(text) : response.send(text);
        },
      });
      const { send } = await serve(way, limit);
      await send("/");
      const { status, text, headers } = await send("/");
      assert.deepEqual([status, text, headers["retry-after"]], [429, "later: 60000", "60"]);
      assert.equal(headers.ratelimit, `"default";r=0;t=60`);
    });

    test("if only failed requests are charged, others cost nothing, however many are under way", async () => {
      const { limiter } = keyed();
      let finish;
      const held = new Promise((resolve) => {
        finish = resolve;
      });
      const handle = async ({ headers }) => {
        if (headers["x-slow"]) await held;
        return { status: Number(headers["x-status"] ?? 200), text: "passed" };
      };
      const { send } = await serve(way, rateLimit({ limiter, failedOnly: true }), { handle });
      const statusOf = async (headers) => (await send("/", { headers })).status;
      for (const status of [200, 302, 200, 399]) assert.equal(await statusOf({ "x-status": `${status}` }), status);
      const slow = [statusOf({ "x-slow": "yes" }), statusOf({ "x-slow": "yes", "x-status": "401" })];
      while (limiter.remaining({ ip: "127.0.0.1" }) > 0) await new Promise((done) => setTimeout(done, 5));
      assert.equal(await statusOf({}), 429, "both may fail");
      finish();
      assert.deepEqual(await Promise.all(slow), [200, 401]);
      assert.equal(await statusOf({}), 200);
      assert.equal(await statusOf({ "x-status": "500" }), 500);
      assert.equal(await statusOf({}), 429, "two have failed");
    });

    test("a warning says that all clients have the address of a proxy", async (t) => {
      const warnings = warningsOf(t);
      for (const name of ["X-Forwarded-For", "Forwarded", "X-Real-IP"]) {
        const { rateLimit } = await fresh("node.js");
        const { send } = await serve(way, rateLimit({ limiter: keyed().limiter }));
        await send("/");
        assert.deepEqual(warnings(), []);
        for (const address of ["192.0.2.1", "192.0.2.2"]) {
          const { status } = await send("/", { headers: { [name]: address } });
          assert.equal(status, address === "192.0.2.1" ? 200 : 429, "not believed");
        }
        const [warning, ...others] = warnings();
        assert.match(warning, /with `(.*)` has come from 127\.0\.0\.1.*share one budget.*`trust proxy`.*`key`/);
        assert.deepEqual([warning.split("`")[1], others], [name, []]);
        console.warn.mock.resetCalls();
      }
    });
  });
}

test("one warning of a proxy is enough for all limits of a process", async (t) => {
  const warnings = warningsOf(t);
  const { rateLimit } = await fresh("node.js");
  for (const way of WAYS) {
    const { send } = await serve(way, rateLimit({ limiter: keyed().limiter }));
    await send("/", { headers: { forwarded: "for=192.0.2.1" } });
  }
  assert.equal(warnings().length, 1);
});

for (const way of ["Express", "Fastify"]) {
  test(`${way} takes the address from a trusted proxy, and counts an IPv6 network as one client`, async (t) => {
    const warnings = warningsOf(t);
    const { rateLimit } = await fresh("node.js");
    const { send } = await serve(way, rateLimit({ limiter: keyed().limiter }), { trust: true });
    for (const [address, status] of [
      ["192.0.2.1", 200],
      ["::ffff:192.0.2.1", 200],
      ["192.0.2.1", 429],
      ["192.0.2.2", 200],
      ["2001:db8::1", 200],
      ["2001:db8::2", 200],
      ["2001:db8::3", 429],
      ["2001:db8:0:1::1", 200],
      ["127.0.0.1", 200], // a client on the proxy's machine
    ])
      assert.equal((await send("/", { headers: { "x-forwarded-for": address } })).status, status, address);
    assert.deepEqual(warnings(), []);
  });
}

test("an address from a proxy may have a port", async () => {
  for (const way of ["Express", "Fastify"]) {
    const { limiter } = keyed({ rate: 1, periodMs: 60_000 });
    const { send } = await serve(way, rateLimit({ limiter }), { trust: true });
    for (const [address, status] of [
      ["192.0.2.1:4711", 200],
      ["192.0.2.1:4712", 429],
      ["192.0.2.1", 429],
      ["[2001:db8::1]:4711", 200],
      ["[2001:db8::2]", 429],
      ["192.0.2.1:", 400],
      ["[192.0.2.1", 400],
      ["unknown", 400],
    ])
      assert.equal((await send("/", { headers: { "x-forwarded-for": address } })).status, status, `${way} ${address}`);
  }
});

for (const way of WAYS.filter((way) => way !== "http")) {
  test(`${way}: whatever a function throws, the request does not pass`, async () => {
    for (const thrown of [undefined, null, "", "route", "router"]) {
      const key = () => Promise.reject(thrown);
      const { send } = await serve(way, rateLimit({ limiter: keyed().limiter, key }));
      const { status, text } = await send("/");
      assert.equal(status, 500, String(thrown));
      assert.match(text, new RegExp(`: a function of the limit has thrown ${thrown}$`));
    }
  });
}

test("Fastify does not handle a refused request, though its client goes before the response has been sent", async (t) => {
  const app = fastify();
  t.after(() => app.close());
  const refused = Promise.withResolvers();
  const isSent = Promise.withResolvers();
  app.register(rateLimit({ limiter: keyed({ rate: 1, periodMs: 60_000 }).limiter }));
  // As a session's or a compression's.
  app.addHook("onSend", async (_request, reply) => {
    if (reply.statusCode !== 429) return;
    refused.resolve(reply.raw);
    await isSent.promise;
  });
  let handled = 0;
  app.get("/", async () => ++handled);
  const address = await app.listen({ port: 0, host: "127.0.0.1" });
  assert.equal(await (await fetch(address)).text(), "1");
  const request = httpRequest(address);
  request.on("error", () => {});
  request.end();
  const raw = await refused.promise;
  const closed = once(raw, "close");
  request.destroy();
  await closed;
  for (let turn = 0; turn < 3; turn++) await setImmediate();
  isSent.resolve();
  assert.equal(handled, 1);
});

test("Fastify waits for a response that onRefused sends later", async (t) => {
  const app = fastify();
  t.after(() => app.close());
  const limiter = keyed({ rate: 1, periodMs: 60_000 }).limiter;
  const onRefused = (_refusal, _request, reply) => void setTimeout(() => reply.send("later"), 20);
  app.register(rateLimit({ limiter, onRefused }));
  let handled = 0;
  app.get("/", async () => ++handled);
  const address = await app.listen({ port: 0, host: "127.0.0.1" });
  await fetch(address);
  const response = await fetch(address);
  assert.deepEqual([response.status, await response.text(), handled], [429, "later", 1]);
});

test("an error of onRefused is answered as an error, not as a refusal", async () => {
  for (const kind of ["Express", "Fastify"]) {
    const onRefused = () => {
      throw new Error("wrong");
    };
    const { send } = await serve(kind, rateLimit({ limiter: keyed({ rate: 1, periodMs: 60_000 }).limiter, onRefused }));
    assert.deepEqual([(await send("/")).status, (await send("/")).status], [200, 500], kind);
  }
});

test("Fastify reads no body before it refuses, unless a function may need it", async () => {
  const { send } = await serve("Fastify", rateLimit({ limiter: keyed().limiter, cost: 1 }));
  const wrong = { method: "POST", headers: { "content-type": "text/unknown" }, body: 1 };
  const statuses = [];
  for (let i = 0; i < 3; i++) statuses.push((await send("/", wrong)).status);
  assert.deepEqual(statuses, [500, 500, 429]); // of the server's error handler
});

test("a client that has gone before its request is read is no error, and its request does not pass", async () => {
  const limit = rateLimit({ limiter: keyed().limiter });
  const asked = Promise.withResolvers();
  const port = await listen((request, response) => {
    const { remoteAddress } = request.socket;
    asked.resolve(limit(request, response).then((isPassed) => [remoteAddress, isPassed]));
  });
  const socket = connect(port, "127.0.0.1");
  await once(socket, "connect");
  socket.write("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
  socket.resetAndDestroy();
  assert.deepEqual(await asked.promise, [undefined, false]);
});

test("over HTTP/2, only a response that was sent can give tokens back", async (t) => {
  const { limiter } = keyed();
  const limit = rateLimit({ limiter, failedOnly: true });
  const held = Promise.withResolvers();
  const server = createHttp2Server(async (request, response) => {
    if (!(await limit(request, response))) return;
    if (request.url === "/held") held.resolve({ closed: once(response, "close") });
    else response.end();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const client = connectHttp2(`http://127.0.0.1:${server.address().port}`);
  t.after(() => {
    client.destroy();
    server.close();
  });
  const left = () => limiter.remaining({ ip: "127.0.0.1" });
  const passed = client.request({ ":path": "/" });
  await once(passed.resume(), "close");
  for (let turn = 0; left() < 2 && turn < 100; turn++) await setImmediate();
  assert.equal(left(), 2, "it has not failed");
  const aborted = client.request({ ":path": "/held" });
  aborted.on("error", () => {});
  const { closed } = await held.promise;
  aborted.close(constants.NGHTTP2_CANCEL);
  await closed;
  await setImmediate();
  assert.equal(left(), 1);
});

test("a key may be in a body that Fastify has parsed", async () => {
  const { send } = await serve("Fastify", rateLimit({ limiter: keyed().limiter, key: ({ body }) => body.user }));
  const login = async (user) => (await send("/", { method: "POST", body: { user } })).status;
  assert.deepEqual([await login("a"), await login("a"), await login("a"), await login("b")], [200, 200, 429, 200]);
});

test("two limits are both in the headers, and the longer wait is the one to keep", async () => {
  const short = rateLimit({ limiter: keyed({ rate: 9, periodMs: 9_000 }).limiter, policy: "short" });
  const long = rateLimit({ limiter: keyed({ rate: 1, periodMs: 60_000 }).limiter, policy: "long" });
  const both = async (request, response) => (await short(request, response)) && (await long(request, response));
  const { send } = await serve("http", both);
  const passed = await send("/");
  assert.equal(passed.headers.ratelimit, `"short";r=8;t=1, "long";r=0;t=60`);
  assert.match(passed.headers["ratelimit-policy"], /^"short";q=9;w=9;[^,]*, "long";q=1;w=60;/);
  const refused = await send("/");
  assert.deepEqual([refused.status, refused.headers["retry-after"]], [429, "60"]);
});

test("each of several limits is in the headers by its name", async () => {
  const limits = [
    { name: "requests", rate: 10, periodMs: 10_000 },
    { name: "bytes", kind: "fixed_window", rate: 100, periodMs: 60_000, offsetMs: 1_000 },
  ];
  const cost = { requests: 1, bytes: 60 };
  const { send } = await serve("http", rateLimit({ limiter: keyed(limits).limiter, policy: "api", cost }));
  const { headers } = await send("/");
  assert.match(headers.ratelimit, /^"api\/requests";r=9;t=1, "api\/bytes";r=40;t=\d+$/);
  const refused = await send("/");
  assert.deepEqual([refused.status, refused.body["violated-policies"]], [429, ["api/bytes"]]);
});

test("a new client for whom there is no room gets a 503, not a refusal", async () => {
  const { send } = await serve("http", rateLimit({ limiter: keyed(MINUTE, { maxKeys: 1 }).limiter }));
  await send("/");
  const { status, headers, body } = await send("/", { from: "127.0.0.2" });
  assert.deepEqual([status, headers["retry-after"], headers.ratelimit], [503, "30", undefined]);
  assert.match(body.detail, /^this is not a rate-limit refusal: too many callers/);
  assert.equal((await send("/")).status, 200, "the others are served");
});

test("neither a refusal nor a wrong request is an error that lets it pass", async () => {
  const cost = ({ headers }) => Number(headers["x-cost"] ?? 1);
  const { send } = await serve("http", rateLimit({ limiter: keyed().limiter, cost, onError: () => true }));
  const statuses = [];
  for (const cost of ["3", "2", "1"]) statuses.push((await send("/", { headers: { "x-cost": cost } })).status);
  assert.deepEqual(statuses, [400, 200, 429]);
});

test("a connection without an address is an error that says what to do", async () => {
  const limit = rateLimit({ limiter: keyed().limiter });
  const request = { method: "GET", headers: {}, socket: {} };
  await assert.rejects(limit(request, {}), {
    code: "address_missing",
    message: /remoteAddress: "192\.0\.2\.1".*`key`/,
  });
});

describe("a client of a service", () => {
  const FIELDS = { "ratelimit-policy": `"api";q=2;w=60`, ratelimit: `"api";r=0;t=7` };

  /** A server that asks a service, which answers each verb so. */
  async function served(answers, options = {}) {
    const requests = [];
    const fetcher = {
      async fetch(url, init) {
        const verb = url.slice(url.lastIndexOf("/") + 1);
        requests.push([verb, JSON.parse(init.body)]);
        const answer = answers[verb];
        if (answer instanceof Error) throw answer;
        const { status = 200, headers = {}, ...body } = answer;
        return new Response(JSON.stringify(body), { status, headers });
      },
    };
    const limiter = new Client({ url: "https://tollgate.example", token: "t", fetcher });
    return { requests, ...(await serve("http", rateLimit({ limiter, policy: "api", ...options }))) };
  }

  test("its answers are passed on, and the policy's own IPv6 prefix applies", async () => {
    const granted = { policy: "api", allowed: true, headers: FIELDS };
    const { send, requests } = await served({ consume: granted }, { key: () => ({ ip: "2001:db8::1" }), cost: 3 });
    const { status, headers } = await send("/");
    assert.equal(status, 200);
    for (const [name, value] of Object.entries(FIELDS)) assert.equal(headers[name], value);
    assert.deepEqual(requests, [["consume", { policy: "api", key: { ip: "2001:db8::1" }, cost: 3 }]]);
  });

  test("a refusal is the service's own, without its CORS headers", async () => {
    const headers = { ...FIELDS, "retry-after": "7", "content-type": "application/problem+json" };
    const cors = { "access-control-allow-origin": "*" };
    const refused = { status: 429, policy: "api", allowed: false, type: "t", title: "Quota exceeded", detail: "d" };
    const { send } = await served({ consume: { ...refused, headers: { ...headers, ...cors } } });
    const answer = await send("/");
    assert.deepEqual([answer.status, answer.body.title, answer.headers["retry-after"]], [429, "Quota exceeded", "7"]);
    assert.equal(answer.headers["content-type"], "application/problem+json");
    assert.equal(answer.headers["access-control-allow-origin"], undefined);
  });

  test("no answer is a 503 that says so, and does not pass", async () => {
    const { send } = await served({ consume: new TypeError("no route") });
    const { status, headers, body } = await send("/");
    assert.deepEqual([status, headers["retry-after"], body.cause], [503, "1", "failed"]);
  });

  test("without an answer the application may let the request pass", async () => {
    const causes = [];
    const onError = ({ cause }, { headers }) => {
      causes.push(cause);
      return headers["x-user"] === "alice";
    };
    const { send } = await served({ consume: new TypeError("no route") }, { onError });
    const passed = await send("/", { headers: { "x-user": "alice" } });
    assert.deepEqual([passed.status, passed.text, passed.headers["retry-after"]], [200, "passed", undefined]);
    assert.deepEqual([(await send("/")).status, causes], [503, ["failed", "failed"]]);
  });

  test("a service that is misconfigured, or had no time to read the request, is not the application's mistake", async () => {
    for (const [status, cause] of [
      [500, "failed"],
      [408, "timeout"],
    ]) {
      const { send } = await served({ consume: { status, type: "t", title: "t", detail: "d" } });
      const answer = await send("/");
      assert.deepEqual([answer.status, answer.headers["retry-after"], answer.body?.cause], [503, "1", cause]);
    }
  });

  test("a token that could not be made is answered 503", async () => {
    const limiter = new Client({ url: "https://tollgate.example", token: () => Promise.reject(new Error("offline")) });
    const { send } = await serve("http", rateLimit({ limiter, policy: "api" }));
    const { status, headers, body } = await send("/");
    assert.deepEqual([status, headers["retry-after"], body.cause], [503, "1", "failed"]);
  });

  test("a refusal that another copy of the package has thrown is a refusal", async () => {
    const body = { status: 429, policy: "api", allowed: false, detail: "d" };
    const cause = Object.defineProperty(body, "headers", { value: new Headers({ ...FIELDS, "retry-after": "7" }) });
    const consume = () => Promise.reject(Object.assign(new Error("429: d"), { code: "refused", cause }));
    const { send } = await serve("http", rateLimit({ limiter: { consume, lease() {} }, policy: "api" }));
    const { status, headers } = await send("/");
    assert.deepEqual([status, headers["retry-after"], headers.ratelimit], [429, "7", FIELDS.ratelimit]);
  });

  test("a mistake of the application's, such as an unknown policy, is an error", async () => {
    const { send } = await served({ consume: { status: 404, type: "t", title: "t", detail: "there is no policy" } });
    assert.deepEqual((await send("/")).text, "not_granted: there is no policy");
  });

  test("so is an address for a policy with one budget for all; a wrong key is the client's", async () => {
    const said = "`key` must be left out: the policy has one budget for all";
    const problem = (detail) => ({ status: 400, type: "t", title: "t", detail });
    const { send } = await served({ consume: problem(said) });
    assert.equal((await send("/")).text, `not_granted: ${said}, so the limit needs \`key: () => []\``);
    const { send: sendWrong } = await served({ consume: problem("`key` is empty") });
    assert.equal((await sendWrong("/")).status, 400);
    const { send: sendNone, requests } = await served({ consume: { policy: "api", allowed: true } }, { key: () => [] });
    assert.equal((await sendNone("/")).status, 200);
    assert.deepEqual(requests, [["consume", { policy: "api", key: [], cost: 1 }]]);
  });

  test("tokens of requests that have not failed are given back", async () => {
    const granted = { policy: "api", allowed: true };
    const { send, requests } = await served(
      { consume: granted, refund: granted },
      { failedOnly: true, key: () => "a" },
    );
    await send("/", { headers: { "x-status": "401" } });
    await send("/");
    for (let tries = 0; tries < 100 && requests.length < 3; tries++) await new Promise((done) => setTimeout(done, 5));
    const request = { policy: "api", key: "a", cost: 1 };
    assert.deepEqual(requests, [
      ["consume", request],
      ["consume", request],
      ["refund", request],
    ]);
  });

  test("what was not taken, because nothing could be decided, is not given back", async () => {
    const degraded = { policy: "api", allowed: true, degraded: "timeout" };
    const { send, requests } = await served({ consume: degraded, refund: degraded }, { failedOnly: true });
    for (let i = 0; i < 3; i++) assert.equal((await send("/")).status, 200);
    assert.deepEqual(new Set(requests.map(([verb]) => verb)), new Set(["consume"]));
  });
});

describe("leases of a service", () => {
  const LIMIT = { kind: "token_bucket", rate: 10, period_ms: 10_000, capacity: 10, max_debt: 0 };

  /** A server that decides by leases; the service answers each request for one so. */
  async function served(answer, inspection = {}) {
    const keys = [];
    let inspected = 0;
    const clock = new FakeClock(START);
    const client = {
      async lease({ key }) {
        keys.push(key);
        return { status: 200, policy: "api", now: START, tokens: 0, headers: new Headers(), ...answer };
      },
      async inspect() {
        inspected++;
        return {
          status: 200,
          policy: "api",
          limits: [{ ...LIMIT, remaining: 0, owed: 0, reset_at: null }],
          ...inspection,
        };
      },
    };
    const limiter = new LeasingLimiter(client, { policy: "api", clock });
    const key = ({ headers }) => headers["x-address"] && { ip: headers["x-address"] };
    const { send } = await serve("http", rateLimit({ limiter, key }));
    return { keys, send, limiter, inspections: () => inspected };
  }

  test("the fields have the policy's numbers, and what is left here and at the service", async () => {
    const { send, inspections } = await served({ allowed: true, remaining: 7 });
    const { status, headers } = await send("/");
    assert.deepEqual([status, headers.ratelimit], [200, `"api";r=7;t=1`]);
    assert.equal(headers["ratelimit-policy"], `"api";q=10;w=10;tollgate-capacity=10`);
    await send("/");
    assert.equal(inspections(), 1, "the numbers are known");
  });

  test("a fixed window ends when the service says", async () => {
    const limit = { ...LIMIT, kind: "fixed_window", period_ms: 3_600_000, remaining: 9, owed: 0 };
    for (const [endsAt, t] of [
      [START + 600_000, 600],
      [START - 600_000, 3000], // it was the last one's end
      [null, 3600],
    ]) {
      const { send } = await served({ allowed: true, remaining: 7 }, { limits: [{ ...limit, reset_at: endsAt }] });
      assert.equal((await send("/")).headers.ratelimit, `"api";r=7;t=${t}`);
    }
  });

  test("what is leased is not counted twice", async () => {
    const lease = { lease: "0000000000000001", tokens: 2, from: START, until: START + 10_000 };
    const { send } = await served({ allowed: true, remaining: 7, ...lease });
    assert.equal((await send("/")).headers.ratelimit, `"api";r=7;t=1`);
  });

  test("a refusal says when to retry", async () => {
    const { send } = await served({ allowed: false, retry_at: START + 2_500, retry_after_ms: 2_500 });
    const { status, headers, body } = await send("/");
    assert.deepEqual([status, headers["retry-after"], body.retry_after_ms], [429, "3", 2_500]);
  });

  test("a key that was unlimited a moment ago is refused", async () => {
    const refused = { allowed: false, retry_at: START + 2_500, retry_after_ms: 2_500 };
    const { send } = await served(refused, { unlimited: true });
    const { status, headers } = await send("/");
    assert.deepEqual([status, headers["retry-after"]], [429, "3"]);
  });

  test("a banned key is told so, and until when", async () => {
    const until = { retry_at: START + 2_500, retry_after_ms: 2_500 };
    for (const [retry, ban, detail, state] of [
      [until, { banned: true, banned_until: START + 2_500 }, "retry in 2500 ms", `"api";r=0;t=3`],
      [{}, { banned: true }, "the ban has no end", `"api";r=0`],
    ]) {
      const { send } = await served({ allowed: false, ...retry }, ban);
      const { status, headers, body } = await send("/");
      assert.deepEqual([status, body.banned, body.limit, body.remaining], [429, true, 0, 0]);
      assert.equal(body.detail, `this key is banned from policy api; ${detail}`);
      assert.equal(headers["ratelimit-policy"], `"api";q=0;tollgate-capacity=0`);
      assert.equal(headers.ratelimit, state);
    }
    const { send } = await served({ allowed: false, ...until }, { banned: true });
    assert.equal((await send("/")).body.banned, undefined, "a ban without an end is over, if there is a moment");
  });

  test("a policy without leases is a mistake of the application's, and a wrong key the client's", async () => {
    const detail = "policy api has no `lease`: its tokens cannot be leased";
    for (const [said, expected, start] of [
      [detail, 500, "not_granted: policy api has no `lease`"],
      ["`key` is empty", 400, `{"status":400,`],
    ]) {
      const { send } = await served({ status: 400, type: "t", title: "t", detail: said });
      const { status, text } = await send("/");
      assert.deepEqual([status, text.slice(0, start.length)], [expected, start]);
    }
  });

  test("while the server stops, its requests get a 503", async () => {
    const { limiter, send } = await served({ allowed: true });
    await limiter.close();
    const { status, headers } = await send("/");
    assert.deepEqual([status, headers["retry-after"]], [503, "1"]);
  });

  test("the addresses of one IPv6 network share leases", async () => {
    const { keys, send } = await served({ allowed: true });
    for (const address of ["2001:db8::1", "2001:db8::2", "192.0.2.1"])
      await send("/", { headers: { "x-address": address } });
    assert.deepEqual(keys, [{ ip: "2001:db8:0:0::" }, { ip: "2001:db8:0:0::" }, { ip: "192.0.2.1" }]);
  });

  test("a request that passes although nothing could be decided has no fields", async () => {
    const { send } = await served({ allowed: true, degraded: "timeout" });
    const { status, headers } = await send("/");
    assert.deepEqual([status, headers.ratelimit], [200, undefined]);
  });
});

test("options that do not fit are rejected at once", () => {
  const client = new Client({ url: "https://tollgate.example", token: "t" });
  const leasing = new LeasingLimiter(client, { policy: "api" });
  const { limiter } = keyed();
  for (const [options, code, message] of [
    [{}, "limiter_unknown", /must be a KeyedLimiter, a LeasingLimiter or a Client, not undefined/],
    [{ limiter: {} }, "limiter_unknown", /not \[object Object\]/],
    [{ limiter: client }, "policy_unknown", /the name of a `policy`/],
    [{ limiter, policy: "a name" }, "policy_unknown", /a name must be 1 to 64 ASCII letters/],
    [{ limiter: leasing, failedOnly: true }, "failedOnly_unknown", /cannot give tokens back/],
  ])
    assert.throws(() => rateLimit(options), { name: "TollgateError", code, message });
});
