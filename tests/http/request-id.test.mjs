// Every answer has an id: the caller's, if it is fit for a log and a header, otherwise a random one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { PATHS } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

/** The id of the answer to a request with this one. */
async function idFor(id, request = { body: '{"policy":"api","key":"alice"}' }) {
  const { headers } = await tollgate.send({ ...request, headers: { ...request.headers, "x-request-id": id } });
  return headers["x-request-id"];
}

test("a well-formed id is kept", async () => {
  for (const id of [
    "a",
    "7d9b1c52-6c0f-4b7e-9d55-3f2b8f6c1a90",
    "Root=1-67891233-abcdef012345678912345678",
    "req_A.b:c/d+e=@-",
    "0".repeat(128),
  ]) {
    assert.equal(await idFor(id), id);
  }
});

test("any other id, or none, is replaced by a random one", async () => {
  const ids = new Set();
  for (const id of [
    null,
    "",
    "0".repeat(129),
    "a b",
    "a,b",
    'a"b',
    "a\\b",
    "a{b}",
    "<script>",
    "%0a",
    "a\tb",
    "ä", // Latin-1, which is not UTF-8
    Buffer.from("語").toString("latin1"), // UTF-8
    ["a", "b"], // sent twice
  ]) {
    const made = await idFor(id);
    assert.match(made, UUID, `for ${JSON.stringify(id)}`);
    ids.add(made);
  }
  assert.equal(ids.size, 14, "each is another");
});

test("is on every answer", async () => {
  const get = { method: "GET", headers: { authorization: null } };
  for (const request of [
    ...PATHS.map((path) => ({ path, body: "{}" })),
    { ...get, path: "/healthz" },
    { ...get, path: "/v1/openapi.json" },
    { ...get, method: "HEAD", path: "/v1/openapi.json" },
    { ...get, method: "OPTIONS" },
    { ...get, path: "/nothing" },
    { method: "PUT" },
    { path: "/nothing", body: "{}" },
    { body: "x".repeat(20_000) },
    { body: "{}", headers: { "content-type": "text/plain" } },
  ]) {
    assert.equal(await idFor("mine", request), "mine", JSON.stringify(request));
    assert.match(await idFor(null, request), UUID, JSON.stringify(request));
  }
});
