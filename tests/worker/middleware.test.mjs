// Limits in front of routes, in a stranger's Workers: an app on Hono, and a gate before an origin.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { after, describe, test } from "node:test";
import { makeProject, wranglerDev } from "./stranger.mjs";

const slow = (capacity) => ({ rate: 1, period: "1day", capacity, write_ahead: 0 });

describe("Hono", async () => {
  const app = await wranglerDev([
    makeProject("hono", {
      main: "hono.mjs",
      vars: {
        POLICIES: { one: slow(1), many: slow(100), none: { rate: 0, period: "1day" }, all: { ...slow(1), key: [] } },
      },
    }),
  ]);
  const get = async (path, headers) => {
    const response = await app.send(path, { headers });
    return { status: response.status, headers: response.headers, text: await response.text() };
  };

  test("a route passes while there are tokens, then answers 429, with headers on every answer", async () => {
    const [passed, refused] = [await get("/one/route"), await get("/one/route")];
    assert.deepEqual([passed.status, passed.text, passed.headers.get("x-own")], [200, "passed", "kept"]);
    assert.match(passed.headers.get("ratelimit"), /^"one";r=0;t=\d+$/);
    assert.equal(passed.headers.get("ratelimit-policy"), `"one";q=1;w=86400;tollgate-capacity=1`);
    assert.equal(refused.status, 429, app.log);
    assert.equal(refused.headers.get("content-type"), "application/problem+json");
    assert.match(refused.headers.get("ratelimit"), /^"one";r=0;t=\d+$/);
    const { retry_after_ms } = JSON.parse(refused.text);
    assert.equal(refused.headers.get("retry-after"), String(Math.ceil(retry_after_ms / 1000)));
  });

  test("no header that a client can write gives it another budget", async () => {
    for (const headers of [
      { "x-forwarded-for": "198.51.100.1" },
      { forwarded: "for=198.51.100.1" },
      { "x-real-ip": "198.51.100.1" },
      { "true-client-ip": "198.51.100.1" },
    ]) {
      assert.equal((await get("/one/route", headers)).status, 429, JSON.stringify(headers));
    }
  });

  test("with the app's own key, and its own response to refusals", async () => {
    const login = (user) => app.post("/login", { user });
    assert.deepEqual((await login("alice")).body, { user: "alice" }); // the body can still be read
    const refused = await login("alice");
    assert.deepEqual([refused.status, refused.text, refused.headers.get("x-own")], [429, "later, true", "kept"]);
    assert.match(refused.headers.get("ratelimit"), /^"one";r=0;/);
    assert.ok(Number(refused.headers.get("retry-after")) > 0);
    assert.equal((await login("bob")).status, 200);
    assert.match((await login("")).text, /`key` is empty/);
  });

  test("a rate of 0 is a refusal, so the app's own response is given", async () => {
    const refused = await get("/none");
    assert.deepEqual([refused.status, refused.text], [429, "not in this plan, undefined"]);
    assert.equal(refused.headers.get("retry-after"), null);
  });

  test("two limits for one route: both must pass, and both are in the headers", async () => {
    const passed = await get("/both?cost=30");
    assert.equal(passed.status, 200, passed.text);
    assert.match(passed.headers.get("ratelimit"), /^"one";r=0;t=\d+, "many";r=70;t=\d+$/);
    const refused = await get("/both?cost=30");
    assert.equal(refused.status, 429);
    assert.match(refused.headers.get("ratelimit"), /^"one";r=0;t=\d+, "many";r=40;t=\d+$/);
    const tooLarge = await get("/both?cost=101");
    assert.deepEqual([tooLarge.status, JSON.parse(tooLarge.text).max_cost], [400, 100]);
  });

  test("skipped requests are not counted", async () => {
    const { headers } = await get("/skipped", { "x-internal": "yes" });
    assert.equal(headers.get("ratelimit"), null);
  });

  test("a browser's preflight is not counted; any other OPTIONS is", async () => {
    const options = async (headers) => {
      const response = await app.send("/preflight", { method: "OPTIONS", headers });
      return [response.status, response.headers.get("ratelimit")];
    };
    const preflight = { origin: "https://app.example", "access-control-request-method": "POST" };
    for (let i = 0; i < 3; i++) assert.deepEqual(await options(preflight), [200, null]);
    assert.equal((await get("/preflight")).status, 200, "the only token is there");
    for (const headers of [{}, { origin: preflight.origin }, { "access-control-request-method": "POST" }])
      assert.equal((await options(headers))[0], 429, JSON.stringify(headers));
    assert.deepEqual(await options(preflight), [200, null]);
    assert.equal((await get("/preflight", preflight)).status, 429, "nor is a GET one");
  });

  test("a refusal has the app's CORS headers, and no others", async () => {
    const origin = "https://app.example";
    for (const status of [200, 429]) {
      const answer = await get("/cors", { origin });
      assert.equal(answer.status, status);
      const cors = [...answer.headers].filter(([name]) => name.startsWith("access-control-"));
      assert.deepEqual(Object.fromEntries(cors), {
        "access-control-allow-credentials": "true",
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "Retry-After",
      });
    }
    const none = await get("/one/route", { origin });
    assert.equal(none.status, 429);
    assert.deepEqual(
      [...none.headers.keys()].filter((name) => name.startsWith("access-control-")),
      [],
    );
  });

  test("a limiter that throws answers like any other", async () => {
    const [passed, refused] = [await get("/throwing"), await get("/throwing")];
    assert.deepEqual([passed.text, refused.status], ["passed", 429]);
    assert.match(refused.headers.get("ratelimit"), /^"one";r=0;t=\d+$/);
  });

  test("a request without an address is an error that says what a test must send", async () => {
    const { text } = await get("/addressless");
    assert.match(text, /^address_missing.*in a test, send it.*"CF-Connecting-IP": "192\.0\.2\.1"/);
  });

  test("a limiter of another platform is an error", async () => {
    assert.match((await get("/limiter")).text, /^limiter_unknown.*on Cloudflare Workers rateLimit needs a `policy`/);
  });

  test("a policy that does not exist is an error", async () => {
    assert.match(
      (await get("/unknown")).text,
      /^not_granted.*there is no policy "typo"; there are all, many, none, one$/,
    );
  });

  test("one budget for all is used without a key, and an address is an error", async () => {
    assert.match(
      (await get("/keyed")).text,
      /^not_granted.*one budget for all, so the limit needs `key: \(\) => \[\]`$/,
    );
    const [passed, refused] = [await get("/all"), await get("/all")];
    assert.deepEqual([passed.text, refused.status], ["passed", 429]);
  });

  test("without a decision the answer is 503, or what the app says", async () => {
    const answers = await Promise.all(["/undecided", "/open", "/closed"].map((path) => get(`${path}?key=a`)));
    assert.deepEqual([answers[0].status, answers[0].headers.get("retry-after")], [503, "1"]);
    assert.deepEqual([answers[1].text, answers[2].text], ["passed", "failed"]);
  });

  test("a client cannot pass with a wrong key even if the app allows undecided requests", async () => {
    for (const key of ["", "k".repeat(513)]) {
      const wrong = await get(`/open?key=${key}`);
      assert.equal(wrong.status, 400);
      assert.match(JSON.parse(wrong.text).detail, /^`key` is/);
    }
  });
});

// Not in its suite: if a pattern skips that, its `after` does not run, and the server would keep the process alive.
const origin = createServer(async (request, response) => {
  if (request.url === "/api/stream") return request.pipe(response);
  if (request.url === "/api/slow") return response.flushHeaders(); // the test goes on
  const { method, url: path, headers } = request;
  const seen = { method, path, own: headers["x-own"], key: headers["x-api-key"], body: await text(request) };
  response.writeHead(
    201,
    [
      ["Content-Type", "application/json"],
      ["Set-Cookie", "a=1"],
      ["Set-Cookie", "b=2"],
    ].flat(),
  );
  response.end(JSON.stringify(seen));
});
await once(origin.listen(0, "127.0.0.1"), "listening");
after(() => {
  origin.closeAllConnections();
  origin.close();
});

describe("a gate before an origin", async () => {
  const ORIGIN = `http://127.0.0.1:${origin.address().port}`;
  const POLICIES = { login: slow(1), api: slow(3) };
  const gate = await wranglerDev([makeProject("gate", { main: "gate.mjs", vars: { ORIGIN, POLICIES } })]);

  test("passes requests on unchanged, and their answers back, with the headers added", async () => {
    const headers = { "x-api-key": "k1", "x-own": "kept" };
    const answer = await gate.send("/api/things?a=1&a=2", { method: "PUT", body: "é\0", headers });
    const seen = { method: "PUT", path: "/api/things?a=1&a=2", own: "kept", key: "k1", body: "é\0" };
    assert.deepEqual(await answer.json(), seen);
    assert.equal(answer.status, 201);
    assert.deepEqual(answer.headers.getSetCookie(), ["a=1", "b=2"]);
    assert.match(answer.headers.get("ratelimit"), /^"api";r=2;t=\d+$/);
  });

  test("each route has its policy and its key; other paths pass", async () => {
    const statuses = async (path, keys) =>
      Promise.all(keys.map(async (key) => (await gate.send(path, { headers: { "x-api-key": key } })).status));
    assert.deepEqual((await statuses("/api/a", ["k2", "k2", "k2", "k2"])).sort(), [201, 201, 201, 429]);
    assert.deepEqual(await statuses("/api/a", ["k3"]), [201]);
    assert.deepEqual((await statuses("/login", ["k4", "k5"])).sort(), [201, 429]); // by address
    assert.deepEqual(await statuses("/other", ["k2", "k2"]), [201, 201]);
  });

  test("an answer streams through while the origin is still sending it", async () => {
    const asked = once(origin, "request");
    const answering = gate.send("/api/slow", { headers: { "x-api-key": "k6", "accept-encoding": "identity" } });
    const [, response] = await asked;
    response.write("first");
    const answer = await answering;
    const reader = answer.body.getReader();
    const next = async () => new TextDecoder().decode((await reader.read()).value);
    assert.equal(await next(), "first"); // before the origin sends the rest
    response.end("second");
    assert.equal(await next(), "second");
  });

  test("a large body passes in both directions", async () => {
    const body = randomBytes(5_000_000);
    const answer = await gate.send("/api/stream", { method: "POST", body, headers: { "x-api-key": "k7" } });
    assert.ok(body.equals(Buffer.from(await answer.arrayBuffer())));
  });
});
