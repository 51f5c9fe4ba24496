// The service's own contract: its examples, its bounds, and that the tests detect a violation.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { unstable_readConfig as readConfig } from "wrangler";
import { ownHeaders, PATHS } from "./answers.mjs";
import { assertInContract, assertValid, contract, examplesOf, pointerTo, resolved } from "./contract.mjs";
import { start } from "./workerd.mjs";

const root = new URL("../../", import.meta.url);
const { POLICIES } = readConfig({ config: new URL("wrangler.toml", root).pathname }).vars;
const tollgate = await start({ policies: POLICIES });

test("has every endpoint, and the version of the crate", () => {
  assert.deepEqual(Object.keys(contract.paths), [
    ...PATHS,
    "/v1/session",
    "/v1/policies",
    "/v1/policies/{name}",
    "/v1/overrides",
    "/v1/audit",
    ...["inspect", "explain", "reset", "credit", "block"].map((verb) => `/v1/keys/${verb}`),
    "/v1/metrics",
    "/v1/metrics/top",
    "/v1/decisions",
    "/healthz",
    "/v1/openapi.json",
  ]);
  const [, version] = readFileSync(new URL("Cargo.toml", root), "utf8").match(/^version = "(.*)"/m);
  assert.equal(contract.info.version, version);
});

test("is public, the same from every deployment, and cacheable", async () => {
  const misconfigured = await start({ policies: null, token: null });
  for (const [server, path] of [
    [tollgate, "/v1/openapi.json"],
    [tollgate, "/v1/openapi.json?a=1"],
    [misconfigured, "/v1/openapi.json"],
  ]) {
    for (const method of ["GET", "HEAD"]) {
      const answer = await server.send({ method, path, headers: { authorization: null } });
      assert.deepEqual(
        { status: answer.status, headers: ownHeaders(answer), body: answer.body },
        {
          status: 200,
          headers: {
            "content-type": "application/json",
            "cache-control": "public, max-age=3600",
            "x-content-type-options": "nosniff",
            "access-control-allow-origin": "*",
            "access-control-expose-headers": "X-Request-Id",
          },
          body: method === "HEAD" ? "" : contract,
        },
      );
    }
  }
  await misconfigured.stop();
});

describe("every example of an answer is valid", () => {
  const responses = [];
  for (const [path, item] of Object.entries(contract.paths))
    for (const [method, { responses: all }] of Object.entries(item))
      for (const [status, response] of Object.entries(all))
        if (!response.$ref) responses.push([pointerTo("paths", path, method, "responses", status), response]);
  for (const [name, response] of Object.entries(contract.components.responses))
    responses.push([pointerTo("components", "responses", name), response]);
  for (const [pointer, response] of responses) {
    for (const [type, body] of Object.entries(response.content ?? {})) {
      for (const [name, value] of Object.entries(examplesOf(body))) {
        test(`${name} of ${pointer}`, () => assertValid(pointer + pointerTo("content", type, "schema"), value));
      }
    }
  }
});

test("every example of a request is valid, and is answered", async () => {
  for (const path of PATHS) {
    const examples = Object.values(examplesOf(bodyOf(path).value.content["application/json"]));
    assert.ok(examples.length > 0, path);
    for (const value of examples) {
      assertValid(schemaOf(path), value);
      const { status, body } = await tollgate.send({ path, body: JSON.stringify(value) });
      // The reservation in the examples is not open here.
      assert.equal(status, /settle|cancel|extend/.test(path) ? 404 : 200, JSON.stringify(body));
    }
  }
});

describe("what the request schemas forbid is a 400", () => {
  const ask = { policy: "api", key: "alice" };
  const reservation = "250f086a14917";
  const bad = {
    "/v1/consume": [
      { ...ask, policy: undefined },
      ...["", 7, null, "k".repeat(513), [""], ["a", 7], Array(9).fill("a")].map((key) => ({ ...ask, key })),
      ...[{}, { ip: 7 }, { ip: "unknown" }, { ip: "192.0.2.1:80" }, { ip: "192.0.2.1", port: 80 }].map((key) => ({
        ...ask,
        key,
      })),
      ...[-1, 1.5, 2 ** 53, "1", null, [], {}].map((cost) => ({ ...ask, cost })),
      ...["lend", "", null].map((mode) => ({ ...ask, mode })),
      ...[-1, 2 ** 53, "5"].map((max_wait_ms) => ({ ...ask, mode: "reserve", max_wait_ms })),
      ...[undefined, "take", "up_to"].map((mode) => ({ ...ask, mode, max_wait_ms: 5 })),
      ...["yes", 1, null].map((snapshot) => ({ ...ask, snapshot })),
      { ...ask, reservation },
      [ask],
      7,
    ],
    "/v1/charge": [{ ...ask, mode: "take" }],
    "/v1/reset": [{ ...ask, cost: 1 }],
    "/v1/inspect": [{ ...ask, cost: 1 }],
    "/v1/settle": [ask, ...["", "00000000000000", "xyz", 7].map((reservation) => ({ ...ask, reservation }))],
    "/v1/cancel": [ask, { ...ask, reservation, cost: 1 }],
    "/v1/batch": [
      ...[[], [ask, ask], Array.from({ length: 17 }, (_, index) => ({ ...ask, key: `${index}` })), "none"].map(
        (requests) => ({ requests }),
      ),
      { requests: [ask], snapshot: true },
      { requests: [{ ...ask, mode: "take" }] },
    ],
  };
  for (const [path, bodies] of Object.entries(bad)) {
    for (const body of bodies) {
      test(`${path} ${JSON.stringify(body).slice(0, 80)}`, async () => {
        assert.throws(() => assertValid(schemaOf(path), JSON.parse(JSON.stringify(body))));
        const answer = await tollgate.send({ path, body: JSON.stringify(body) });
        assert.equal(answer.body.type, "urn:problem-type:tollgate:bad-request", answer.text);
      });
    }
  }
});

describe("the largest requests that the schemas allow are not a 400", () => {
  const ask = { policy: "api", key: "alice" };
  for (const [path, body] of [
    ["/v1/consume", { ...ask, key: "k".repeat(512) }],
    ["/v1/consume", { ...ask, key: Array(8).fill("k".repeat(64)) }],
    ["/v1/consume", { ...ask, key: { ip: "192.0.2.1" } }],
    ["/v1/consume", { ...ask, key: { ip: "2001:db8::1" } }],
    ["/v1/charge", { ...ask, cost: 2 ** 53 - 1 }],
    ["/v1/consume", { ...ask, mode: "borrow", max_wait_ms: 2 ** 53 - 1 }],
    ["/v1/consume", { ...ask, cost: 0, snapshot: true }],
    [
      "/v1/batch",
      { requests: Array.from({ length: 16 }, (_, index) => ({ ...ask, key: `${index}`, snapshot: true })) },
    ],
  ]) {
    test(`${path} ${JSON.stringify(body).slice(0, 80)}`, async () => {
      assertValid(schemaOf(path), body);
      const { status, text } = await tollgate.send({ path, body: JSON.stringify(body) });
      assert.ok(status === 200 || status === 429, text);
    });
  }
});

test("an answer that violates it fails the test that receives it", async () => {
  const { status, headers, body } = await tollgate.consume({ policy: "api", key: "dora" });
  const check = (path, changes) => {
    const answer = { status, headers, body, ...changes };
    assertInContract("POST", path, { ...answer, text: JSON.stringify(answer.body) });
  };
  check("/v1/consume", {});
  const without = (name) => Object.fromEntries(Object.entries(headers).filter(([other]) => other !== name));
  for (const [what, path, changes] of [
    ["a field more", "/v1/consume", { body: { ...body, more: 1 } }],
    ["a field less", "/v1/consume", { body: { ...body, now: undefined } }],
    ["a field of another type", "/v1/consume", { body: { ...body, remaining: "9" } }],
    ["a negative number", "/v1/consume", { body: { ...body, remaining: -1 } }],
    ["a moment to retry at of a grant", "/v1/consume", { body: { ...body, retry_at: 1, retry_after_ms: 1 } }],
    ["the body of another endpoint", "/v1/inspect", {}],
    ["another status", "/v1/consume", { status: 201 }],
    ["a status of others", "/v1/charge", { status: 429 }],
    ["a header more", "/v1/consume", { headers: { ...headers, "x-more": "1" } }],
    ["a header less", "/v1/consume", { headers: without("cache-control") }],
    ["a header's other value", "/v1/consume", { headers: { ...headers, "cache-control": "public" } }],
    ["a header that cannot be read", "/v1/consume", { headers: { ...headers, ratelimit: "api;r=1" } }],
    ["another media type", "/v1/consume", { headers: { ...headers, "content-type": "text/plain" } }],
    ["no such path", "/v1/other", {}],
  ]) {
    const changed = { ...changes, ...(changes.body && { body: JSON.parse(JSON.stringify(changes.body)) }) };
    assert.throws(() => check(path, changed), /contract/, what);
  }
});

const bodyOf = (path) =>
  resolved(contract.paths[path].post.requestBody, pointerTo("paths", path, "post", "requestBody"));
const schemaOf = (path) => bodyOf(path).pointer + pointerTo("content", "application/json", "schema");
