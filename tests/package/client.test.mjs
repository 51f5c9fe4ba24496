// Client: each method against the real Worker, and each answer against its declared type.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Client, TollgateError } from "../../build/package/index.js";
import { newToken } from "../http/credentials.mjs";
import { NOW, start, TOKEN } from "../http/workerd.mjs";

const POLICIES = {
  api: { rate: 10, period: "10s", max_debt: 5 },
  one: { rate: 1, period: "1h" },
  open: { rate: 1, period: "1h", on_error: "open" },
  debt: { rate: 1, period: "1h", capacity: 10, max_debt: 2_000 },
  llm: {
    limits: [
      { name: "requests", rate: 10, period: "10s", max_debt: 5 },
      { name: "tokens", rate: 100, period: "1m", kind: "fixed_window", offset: "0s", max_debt: 50 },
    ],
  },
  monthly: { rate: 5, kind: "fixed_window", calendar: "month", starts: 15, zone: "America/Sao_Paulo" },
};
const backend = newToken("consume");
const tollgate = await start({
  policies: POLICIES,
  tokens: { backend: backend.entry },
  around: fileURLToPath(new URL("../http/faulty.mjs", import.meta.url)),
});
const url = `http://127.0.0.1:${tollgate.port}`;

/**
 * Every answer in these tests, with the method that returned it. The last test compares them with the declarations.
 */
const answers = [];

/** A client that sends additional `headers` and records its answers. */
function clientOf({ headers: more = {}, method, body = (text) => text, ...options } = {}) {
  const fetcher = {
    fetch: (url, init) =>
      fetch(url, {
        ...init,
        ...(method ? { method, body: null } : { body: body(init.body), duplex: "half" }),
        headers: { ...init.headers, "x-tollgate-test-now": NOW, ...more },
      }),
  };
  const client = new Client({ url, token: TOKEN, fetcher, ...options });
  for (const [name, ask] of Object.entries(client)) {
    client[name] = async (...args) => {
      const answer = await ask(...args);
      answers.push({ name, args, answer });
      return answer;
    };
  }
  return client;
}

/** A body that begins with `text` and does not end. */
const unfinished = (text) => new ReadableStream({ start: (out) => out.enqueue(new TextEncoder().encode(text)) });

const client = clientOf();
const broken = (fault = "throws") => clientOf({ headers: { "x-fault": JSON.stringify({ fault }) } });

/** An answer without the members common to its kind. */
const brief = ({ policy, cost, limit, near_limit, now, reset_at, ...rest }) => rest;

test("each method calls the endpoint of its name", async () => {
  const ask = { policy: "api", key: "alice" };
  const { reservation, ...reserved } = await client.consume({ ...ask, mode: "reserve", cost: 2, max_wait_ms: 0 });
  assert.match(reservation, /^[0-9a-f]+$/);
  assert.deepEqual(brief(reserved), {
    status: 200,
    allowed: true,
    remaining: 8,
    ready_at: NOW,
    expires_at: NOW + 600_000,
  });
  const other = await client.consume({ ...ask, mode: "reserve" });
  const kept = { reservation: other.reservation, expires_at: NOW + 600_000 };
  for (const [method, more, expected] of [
    ["consume", { cost: 2 }, { remaining: 5 }],
    ["consume", {}, { remaining: 4 }],
    ["consume", { cost: 9, mode: "up_to" }, { remaining: 0, tokens: 4 }],
    ["consume", { mode: "borrow" }, { remaining: 0, owed: 1, ready_at: NOW }],
    ["charge", { cost: 9 }, { remaining: 0, owed: 5, tokens: 4, unpaid: 5 }],
    ["refund", { cost: 6 }, { remaining: 1, tokens: 6 }],
    ["peek", {}, { remaining: 1 }],
    ["settle", { reservation, cost: 1 }, { remaining: 2, tokens: 1 }],
    ["extend", { reservation: kept.reservation }, { remaining: 2, ...kept }],
    ["extend", { reservation: kept.reservation, cost: 2 }, { remaining: 0, ...kept }],
    ["cancel", { reservation: other.reservation }, { remaining: 3, tokens: 3 }],
    ["reset", {}, { remaining: 10, tokens: 7 }],
  ]) {
    const answer = await client[method]({ ...ask, ...more });
    assert.deepEqual(brief(answer), { status: 200, allowed: true, ...expected }, `${method} ${JSON.stringify(more)}`);
  }
  const { reservation: last } = await client.consume({ ...ask, mode: "reserve", cost: 3 });
  const settled = await client.settle({ ...ask, reservation: last });
  assert.deepEqual([settled.status, settled.remaining], [200, 7], "without a cost, at the reserved one");
  await client.reset(ask);
  const { now, limits, ...stands } = await client.inspect(ask);
  assert.deepEqual(stands, { status: 200, policy: "api", open_reservations: 0 });
  assert.deepEqual([now, limits.map(({ remaining, owed }) => [remaining, owed])], [NOW, [[10, 0]]]);
  const batch = await client.batch({ requests: [ask, { policy: "one", key: "alice" }] });
  assert.deepEqual([batch.status, batch.allowed, batch.results.map(({ remaining }) => remaining)], [200, true, [9, 0]]);
});

test("reports that a settlement was late, and what exceeds the largest debt", async () => {
  const ask = { policy: "api", key: "late" };
  const { reservation, expires_at } = await client.consume({ ...ask, mode: "reserve", cost: 3, max_wait_ms: 0 });
  const later = clientOf({ headers: { "x-tollgate-test-now": expires_at } });
  const { status, late, tokens } = await later.settle({ ...ask, reservation, cost: 2 });
  assert.deepEqual([status, late, tokens], [200, true, 2]);
  const { limits } = await client.charge({ policy: "llm", key: "late", cost: { requests: 1, tokens: 200 } });
  assert.deepEqual(
    limits.map(({ name, tokens, unpaid }) => [name, tokens, unpaid]),
    [
      ["requests", 1, undefined],
      ["tokens", 150, 50],
    ],
  );
});

test("a refusal is a value", async () => {
  const ask = { policy: "api", key: "bob", cost: 4 };
  await client.consume({ ...ask, cost: 8 });
  const again = { remaining: 2, retry_at: NOW + 2_000, retry_after_ms: 2_000 };
  for (const method of ["consume", "peek"]) {
    const { type, title, detail, ...rest } = brief(await client[method](ask));
    assert.deepEqual(rest, { status: 429, allowed: false, "violated-policies": ["api"], ...again });
    assert.deepEqual(
      [type, title].map((text) => typeof text),
      ["string", "string"],
    );
    assert.match(detail, /2 of 10 tokens left and the cost is 4/);
  }
  const batch = await client.batch({ requests: [{ policy: "one", key: "bob" }, ask] });
  assert.deepEqual(
    [batch.status, batch.allowed, batch.retry_at, batch.retry_after_ms],
    [429, false, NOW + 2_000, 2_000],
  );
  assert.deepEqual(
    batch.results.map(({ allowed, remaining }) => [allowed, remaining]),
    [
      [true, 1],
      [false, 2],
    ],
  );
});

test("a problem is a value, whatever its status", async () => {
  const ask = { policy: "api", key: "carol" };
  const settle = { ...ask, reservation: "0".repeat(13) };
  const idempotencyKey = "one for both";
  await client.consume(ask, { idempotencyKey });
  const many = { policy: "debt", key: "carol", mode: "reserve" };
  await Promise.all(Array.from({ length: 1_000 }, () => tollgate.consume(many)));
  const misconfigured = await start({ policies: { api: { rate: -1 } } });
  const problems = [
    [400, await client.consume({ ...ask, cost: 11 }), { max_cost: 10 }],
    [400, await client.consume({ ...ask, cost: -1 })],
    [400, await client.batch({ requests: [] })],
    [401, await clientOf({ token: "a wrong one of some length" }).consume(ask)],
    [403, await clientOf({ token: backend.text }).reset(ask), { scope: "adjust" }],
    [404, await client.consume({ ...ask, policy: "unknown" })],
    [404, await client.settle({ ...settle, cost: 1 })],
    [404, await client.cancel(settle)],
    [404, await clientOf({ url: `${url}/elsewhere` }).reset(ask)],
    [405, await clientOf({ method: "GET" }).inspect(ask)],
    [408, await clientOf({ body: unfinished }).consume(ask)],
    [409, await client.consume(many)],
    [413, await client.consume({ ...ask, key: "x".repeat(20_000) })],
    [415, await clientOf({ headers: { "content-type": "text/plain" } }).refund(ask)],
    [422, await client.consume({ ...ask, cost: 2 }, { idempotencyKey })],
    [500, await clientOf({ url: `http://127.0.0.1:${misconfigured.port}` }).charge(ask)],
    [503, await broken().consume(ask), { cause: "failed" }],
    [503, await broken("overloaded").peek(ask), { cause: "overloaded" }],
    [503, await broken().batch({ requests: [ask] }), { cause: "failed" }],
  ];
  for (const [status, { type, title, detail, ...rest }, more] of problems) {
    assert.deepEqual(rest, { status, ...more }, detail);
    for (const text of [type, title, detail]) assert.ok(typeof text === "string" && text !== "");
  }
  await misconfigured.stop();
});

test("a degraded answer says so, and nothing else", async () => {
  const ask = { policy: "open", key: "dave" };
  const degraded = { status: 200, allowed: true, degraded: "failed" };
  assert.deepEqual(await broken().consume(ask), { ...degraded, policy: "open" });
  const requests = [ask, { ...ask, key: "erin" }];
  const results = [
    { allowed: true, policy: "open", degraded: "failed" },
    { allowed: true, policy: "open", degraded: "failed" },
  ];
  assert.deepEqual(await broken().batch({ requests }), { ...degraded, results });
});

test("named limits are all reported, and so are snapshots on request", async () => {
  const ask = { policy: "llm", key: "frank", snapshot: true };
  const names = (answer) => [answer.limits, answer.snapshot].map((limits) => limits.map(({ name }) => name));
  const each = ["requests", "tokens"];
  for (const [method, more, status] of [
    ["consume", { cost: { requests: 1, tokens: 90 } }, 200],
    ["consume", { cost: { requests: 1, tokens: 90 } }, 429],
    ["consume", { cost: { requests: 16, tokens: 0 }, mode: "reserve" }, 400],
    ["consume", { cost: { requests: 2, tokens: 20 }, mode: "reserve" }, 200],
    ["charge", { cost: 4 }, 200],
    ["consume", {}, 429],
    ["inspect", {}, 200],
  ]) {
    const answer = await client[method]({ ...ask, ...more });
    assert.equal(answer.status, status, JSON.stringify(answer));
    if (status !== 400) assert.deepEqual(names(answer), [each, each]);
  }
});

test("answers about windows of a calendar say of which", async () => {
  const ask = { policy: "monthly", key: "frank" };
  const { snapshot } = await client.consume({ ...ask, snapshot: true });
  const { limits } = await client.inspect(ask);
  const [{ calendar, tokens }] = snapshot;
  const [{ calendar: inspected, remaining }] = limits;
  assert.deepEqual([calendar, tokens, inspected, remaining], ["month 15 America/Sao_Paulo", 4, calendar, tokens]);
});

test("a request repeated with its idempotency key is a replay, and takes nothing", async () => {
  const ask = { policy: "one", key: "grace" };
  const first = await client.consume(ask, { idempotencyKey: "k" });
  assert.deepEqual(await client.consume(ask, { idempotencyKey: "k" }), { ...first, replayed: true });
  assert.equal((await client.consume(ask, { idempotencyKey: "another" })).status, 429);
  const requests = {
    requests: [
      { policy: "api", key: "grace" },
      { policy: "api", key: "henry" },
    ],
  };
  const batch = await client.batch(requests, { idempotencyKey: "b" });
  assert.deepEqual(await client.batch(requests, { idempotencyKey: "b" }), { ...batch, replayed: true });
});

test("a token may be a function, which is called for each request", async () => {
  const tokens = [];
  const give = (when) => {
    tokens.push(when);
    return TOKEN;
  };
  for (const token of [TOKEN, () => give("now"), async () => give("later")]) {
    const client = clientOf({ token });
    for (let times = 0; times < 2; times++)
      assert.equal((await client.peek({ policy: "api", key: "irene" })).status, 200);
  }
  assert.deepEqual(tokens, ["now", "now", "later", "later"]);
  const error = new Error("signed out");
  const failing = [
    () => Promise.reject(error),
    () => {
      throw error;
    },
  ];
  for (const token of failing) {
    await assert.rejects(clientOf({ token }).peek({ policy: "api", key: "irene" }), {
      name: "TollgateError",
      code: "token_missing",
      cause: error,
    });
  }
});

test("a signal aborts the wait", async () => {
  const ask = { policy: "api", key: "jack" };
  await assert.rejects(client.consume(ask, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal((await client.peek(ask)).remaining, 10);
  const reason = new Error("no longer wanted");
  const abort = new AbortController();
  const waiting = broken("hangs").consume(ask, { signal: abort.signal });
  setTimeout(() => abort.abort(reason), 20);
  await assert.rejects(waiting, reason);
});

test("throws for a response that is not Tollgate's, and without a server", async () => {
  const bodies = [
    "",
    "<h1>502 Bad gateway</h1>",
    '{"allowed":tru',
    "null",
    "17",
    '"fine"',
    "[]",
    "{}",
    '{"error":"no upstream"}',
  ];
  const server = createServer((request, response) => {
    response.statusCode = Number(request.url.split("/")[1]);
    response.end(bodies[Number(request.url.split("/")[2])]);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  server.unref();
  const base = `http://127.0.0.1:${server.address().port}`;
  for (const status of [200, 429, 502]) {
    for (const [i, body] of bodies.entries()) {
      const url = `${base}/${status}/${i}`;
      await assert.rejects(new Client({ url, token: TOKEN }).consume({ policy: "api", key: "karl" }), (error) => {
        assert.ok(error instanceof TollgateError, body);
        assert.deepEqual([error.code, error.message], ["answer_malformed", `${url}/v1/consume`], body);
        assert.ok(error.cause instanceof Error, body);
        return true;
      });
    }
  }
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
  await assert.rejects(new Client({ url: base, token: TOKEN }).consume({ policy: "api", key: "karl" }), (error) => {
    const { name, code, message, cause } = error;
    assert.deepEqual([name, code, message], ["TollgateError", "network_failed", `${base}/v1/consume`]);
    assert.ok(cause instanceof TypeError);
    return true;
  });
});

test("trailing slashes in the address change nothing", async () => {
  for (const slashes of ["", "/", "//"]) {
    const answer = await clientOf({ url: `${url}${slashes}` }).peek({ policy: "api", key: "slash" });
    assert.deepEqual([answer.status, answer.remaining], [200, 10], slashes);
  }
});

test("an undefined token is an error at once, and null means none", async () => {
  for (const token of [undefined, ""]) {
    assert.throws(() => new Client({ url, token }), { name: "TollgateError", code: "token_missing" });
  }
  const sent = [];
  const fetcher = { fetch: async (_, init) => sent.push(init.headers) && Response.json({ policy: "api" }) };
  await new Client({ url, token: null, fetcher }).peek({ policy: "api", key: "mary" });
  assert.deepEqual(sent, [{ "content-type": "application/json" }]);
  assert.equal((await clientOf({ token: null }).peek({ policy: "api", key: "mary" })).status, 401);
});

test("a string token in a page causes one warning", (t) => {
  const warn = t.mock.method(console, "warn", () => {});
  t.after(() => delete globalThis.document);
  new Client({ url, token: TOKEN });
  assert.equal(warn.mock.callCount(), 0, "on a server");
  globalThis.document = {};
  for (const token of [null, () => TOKEN]) new Client({ url, token });
  assert.equal(warn.mock.callCount(), 0, "without a string");
  for (let i = 0; i < 2; i++) new Client({ url, token: TOKEN });
  assert.deepEqual(
    warn.mock.calls.map(({ arguments: [text] }) => text),
    ["tollgate: public token"],
  );
});

test("a call has a time limit, to the last byte of its answer", async () => {
  const server = createServer((_, response) => {
    response.write('{"policy":'); // and no more
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  server.unref();
  const unfinished = clientOf({ url: `http://127.0.0.1:${server.address().port}`, timeoutMs: 30 });
  const hangs = clientOf({ headers: { "x-fault": JSON.stringify({ fault: "hangs" }) }, timeoutMs: 30 });
  for (const client of [unfinished, hangs]) {
    await assert.rejects(client.consume({ policy: "api", key: "nora" }), (error) => {
      assert.ok(error instanceof TollgateError);
      assert.deepEqual([error.code, error.cause.name], ["timeout", "TimeoutError"]);
      return true;
    });
  }
  server.closeAllConnections();
  server.close();
});

test("a time limit beyond any timer is an error at once", () => {
  for (const timeoutMs of [NaN, "soon", "10", null, 0.5, -1, 2 ** 31, Infinity]) {
    assert.throws(() => new Client({ url, token: TOKEN, timeoutMs }), {
      name: "TollgateError",
      code: "timeoutMs_not_whole",
      message: `timeoutMs: 0 to 2147483647, not ${timeoutMs}`,
    });
  }
  for (const timeoutMs of [0, 2 ** 31 - 1, undefined]) new Client({ url, token: TOKEN, timeoutMs });
});

test("a call waits no longer for the token than for the answer, and a signal ends that wait", async () => {
  const sent = [];
  const fetcher = { fetch: (url) => sent.push(url) };
  const ask = { policy: "api", key: "nora" };
  const hangs = (timeoutMs) => new Client({ url, token: () => new Promise(() => {}), fetcher, timeoutMs });
  const alive = setInterval(() => {}, 1000); // timers of signals keep no process alive
  await assert.rejects(hangs(30).consume(ask), (error) => {
    assert.deepEqual([error.name, error.code, error.cause.name], ["TollgateError", "timeout", "TimeoutError"]);
    return true;
  });
  clearInterval(alive);
  const reason = new Error("no longer wanted");
  const abort = new AbortController();
  const waiting = hangs(10_000).consume(ask, { signal: abort.signal });
  abort.abort(reason);
  await assert.rejects(waiting, reason);
  await assert.rejects(hangs(10_000).consume(ask, { signal: abort.signal }), reason);
  assert.deepEqual(sent, []);
});

test("a token function that returns nothing is an error of its own, and nothing is sent", async () => {
  const sent = [];
  const fetcher = { fetch: (url) => sent.push(url) };
  for (const token of [() => {}, () => "", async () => undefined]) {
    const client = new Client({ url, token, fetcher });
    await assert.rejects(client.peek({ policy: "api", key: "mary" }), { name: "TollgateError", code: "token_missing" });
  }
  assert.deepEqual(sent, []);
});

test("an answer has the headers of the response, and JSON leaves them out", async () => {
  const ask = { policy: "one", key: "olga" };
  const granted = await client.consume(ask);
  const refused = await client.consume(ask);
  assert.equal(granted.headers.get("retry-after"), null);
  assert.match(granted.headers.get("ratelimit"), /^"one";r=0;t=/);
  assert.equal(refused.headers.get("retry-after"), "3600");
  assert.equal("headers" in JSON.parse(JSON.stringify(refused)), false);
  const problem = await client.consume({ ...ask, policy: "unknown" });
  assert.equal(problem.headers.get("content-type"), "application/problem+json");
});

test("a batch that is refused reports what was not decided", async () => {
  const requests = [
    { policy: "one", key: "paula" },
    { policy: "api", key: "peter" },
  ];
  await client.consume(requests[0]);
  const second = clientOf({ headers: { "x-fault": JSON.stringify({ fault: "throws", skip: 1 }) } });
  const { status, results } = await second.batch({ requests });
  assert.equal(status, 429);
  assert.deepEqual([results[0].allowed, results[1]], [false, { policy: "api", undecided: "failed" }]);
});

describe("spend", () => {
  const llm = (key, more) => ({ policy: "llm", key, cost: { requests: 1, tokens: 50 }, ...more });
  const left = async (key) => {
    const { limits, open_reservations: open } = await client.inspect({ policy: "llm", key });
    return [...limits.map(({ remaining, owed }) => remaining - owed), open];
  };

  test("reserves, calls the work and settles at the cost it reports", async () => {
    const during = [];
    const spent = await client.spend(llm("quinn"), async (report) => {
      during.push(await left("quinn"));
      report({ requests: 1, tokens: 20 });
      return "done";
    });
    assert.deepEqual(during, [[9, 50, 1]]);
    assert.deepEqual([spent.status, spent.result, spent.settled.status], [200, "done", 200]);
    assert.deepEqual(await left("quinn"), [9, 80, 0]);
  });

  test("without a report, the reserved cost stays", async () => {
    const { result } = await client.spend(llm("rita"), () => 17);
    assert.deepEqual([result, await left("rita")], [17, [9, 50, 0]]);
  });

  test("says that it was late if the reservation had expired", async () => {
    const slow = clientOf();
    const later = clientOf({ headers: { "x-tollgate-test-now": NOW + 600_000 } });
    slow.settle = (request) => later.settle(request);
    const { settled } = await slow.spend(llm("ruth"), (report) => report({ requests: 1, tokens: 20 }));
    assert.deepEqual([settled.status, settled.late, settled.limits[1].tokens], [200, true, 20]);
  });

  test("if the work throws, what it has reported is settled, and else all of it cancelled", async () => {
    const error = new Error("of the work");
    const fail = () => {
      throw error;
    };
    for (const work of [fail, async () => fail()]) await assert.rejects(client.spend(llm("sara"), work), error);
    assert.deepEqual(await left("sara"), [10, 100, 0]);
    const late = async (report) => {
      report({ requests: 1, tokens: 20 });
      fail();
    };
    await assert.rejects(client.spend(llm("sara"), late), error);
    assert.deepEqual(await left("sara"), [9, 80, 0]);
  });

  test("returns a refusal or a problem, without calling the work", async () => {
    const never = () => assert.fail("it was called");
    assert.equal((await client.spend(llm("tom", { policy: "unknown" }), never)).status, 404);
    await client.consume(llm("tom", { cost: { requests: 1, tokens: 100 } }));
    assert.equal((await client.spend(llm("tom", { max_wait_ms: 0 }), never)).status, 429);
  });

  test("waits until the tokens may be used, and an abort during the wait cancels", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    let elapsed = performance.now();
    t.mock.method(performance, "now", () => elapsed);
    const pass = (ms) => {
      elapsed += ms;
      t.mock.timers.tick(ms);
    };
    await client.consume(llm("uma", { cost: { requests: 0, tokens: 100 } }));
    const began = [];
    const spend = (signal) =>
      client.spend(llm("uma", { cost: { requests: 1, tokens: 10 } }), () => began.push("x"), { signal });
    const reserved = async (open) => {
      while ((await left("uma"))[2] !== open) await setImmediate();
    };
    const abort = new AbortController();
    const aborted = spend(abort.signal);
    await reserved(1);
    const waiting = spend();
    await reserved(2);
    const reason = new Error("no longer wanted");
    abort.abort(reason);
    await assert.rejects(aborted, reason);
    assert.deepEqual([began, await left("uma")], [[], [9, -10, 1]]);
    const untilMs = 60_000 - (NOW % 60_000); // the next window
    pass(untilMs - 1);
    await setImmediate();
    assert.deepEqual(began, []);
    pass(1);
    assert.equal((await waiting).result, 1);
  });

  test("keeps the result if it cannot settle", async () => {
    const cut = clientOf();
    cut.settle = () => new Client({ url: "http://127.0.0.1:1", token: TOKEN }).settle({});
    const { status, result, settled } = await cut.spend(llm("vera"), () => "done");
    assert.deepEqual([status, result, settled.code], [200, "done", "network_failed"]);
  });
});

test("a Worker asks through a service binding", async () => {
  const built = fileURLToPath(new URL("../../build/package/", import.meta.url));
  const files = readdirSync(built).filter((name) => /\.(js|wasm)$/.test(name) && name !== "react.js");
  const modules = {
    "before.mjs": fileURLToPath(new URL("before.mjs", import.meta.url)),
    ...Object.fromEntries(files.map((name) => [name, join(built, name)])),
  };
  const bindings = { TOLLGATE: `service = "main"`, TOKEN: `text = "${TOKEN}"` };
  const worker = await start({ policies: POLICIES, build: "deployed", before: { modules, bindings } });
  const post = async (body) => (await worker.send({ path: "/before", body: JSON.stringify(body) })).body;
  const ask = { policy: "one", key: "lisa" };
  const seen = [];
  for (const [verb, more, options] of [
    ["consume", {}, { idempotencyKey: "k" }],
    ["consume", {}, { idempotencyKey: "k" }],
    ["peek"],
    ["reset"],
    ["inspect", { snapshot: true }],
  ]) {
    const { status, replayed, remaining, snapshot } = await post({ verb, ask: { ...ask, ...more }, options });
    seen.push([verb, status, replayed, remaining, snapshot?.[0].tokens]);
  }
  assert.deepEqual(seen, [
    ["consume", 200, undefined, 0, undefined],
    ["consume", 200, true, 0, undefined],
    ["peek", 429, undefined, 0, undefined],
    ["reset", 200, undefined, 1, undefined],
    ["inspect", 200, undefined, undefined, 1],
  ]);
  await worker.stop();
});

/** Members for shadow and soft limits and a registry, which this server lacks: see tests/http, where each answer must fit the contract. */
const ELSEWHERE = ["shadow", "over", "soft", "off", "stale_policies", "source", "banned", "banned_until", "unlimited"];

test("the declared types have exactly the members that the server sends", async () => {
  const isProblem = ({ status }) => status !== 200 && status !== 429;
  const all = answers.map(({ answer }) => answer);
  const decided = all.filter((answer) => !isProblem(answer));
  const batches = decided.filter(({ results }) => results);
  const inspections = decided.filter(({ results, allowed }) => !results && allowed === undefined);
  const verdicts = decided.filter((answer) => !batches.includes(answer) && !inspections.includes(answer));
  const members = {
    "Granted | Degraded | Refused": verdicts,
    Problem: all.filter(isProblem),
    Inspection: inspections,
    'Inspection["limits"][number]': inspections.flatMap(({ limits }) => limits),
    "BatchGranted | BatchDegraded | BatchRefused": batches,
    'BatchDegraded["results"][number]': batches.filter(({ degraded }) => degraded).flatMap(({ results }) => results),
    'NonNullable<Verdict["limits"]>[number]': verdicts.flatMap(({ limits = [] }) => limits),
    Undecided: batches.flatMap(({ results }) => results.filter(({ undecided }) => undecided)),
    LimitSnapshot: verdicts.flatMap(({ snapshot = [] }) => snapshot),
  };
  const literal = (answer) => JSON.stringify(answer).replace(/\}$/, ",headers}"); // no spread: it would hide extra members
  const unseen = (type, values) => {
    const names = [...new Set(["headers", ...ELSEWHERE, ...values.flatMap(Object.keys)])].map((name) =>
      JSON.stringify(name),
    );
    return `{ const unseen: NameOfNone<Exclude<Members<${type}>, ${names.join(" | ")}>> = "none"; }`;
  };
  const statuses = [...new Set(members.Problem.map(({ status }) => status))].join(" | ");
  const lines = [
    'import type { BatchDegraded, BatchGranted, BatchRefused, Client, Degraded, Granted } from "../package/index.js";',
    'import type { Inspection, LimitSnapshot, Problem, Refused, Reserved, Undecided, Verdict } from "../package/index.js";',
    "type Answer<Method extends keyof Client> = Awaited<ReturnType<Client[Method]>>;", // of the last overload
    "type Reserving = Reserved | Refused | Problem;",
    "type NameOf<T, K extends keyof T> = [Exclude<T[K], undefined>] extends [never] ? never : K;",
    "type Members<T> = T extends unknown ? { [K in keyof T]-?: NameOf<T, K> }[keyof T] : never;",
    `type NameOfNone<Names> = [Names] extends [never] ? "none" : Names;`,
    "declare const headers: Headers;",
    ...answers.map(({ name, args, answer }) => {
      const of = args[0].mode === "reserve" ? "Reserving" : `Answer<"${name}">`;
      return `{ const answer: ${of} = ${literal(answer)}; }`;
    }),
    ...Object.entries(members).map(([type, values]) => unseen(type, values)),
    `{ const statuses: NameOfNone<Exclude<Problem["status"], ${statuses}>> = "none"; }`,
    "// @ts-expect-error: shows that an undeclared member is found",
    `{ const answer: Answer<"consume"> = ${literal({ ...verdicts[0], undeclared: 1 })}; }`,
    "// @ts-expect-error: shows that a missing member is found",
    unseen("Granted", [{ allowed: true }]),
  ];
  const folder = mkdtempSync(fileURLToPath(new URL("../../build/types-", import.meta.url)));
  after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "answers.mts");
  writeFileSync(file, [...new Set(lines)].join("\n"));
  const options =
    "--noEmit --strict --exactOptionalPropertyTypes --module nodenext --target es2022 --lib es2022,dom".split(" ");
  const tsc = fileURLToPath(new URL("../../node_modules/.bin/tsc", import.meta.url));
  try {
    execFileSync(tsc, [...options, file], { encoding: "utf8" });
  } catch ({ stdout }) {
    assert.fail(stdout);
  }
});
