// A body longer than 16 KiB, which no valid request needs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { bearer, newToken } from "./credentials.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const MAX = 16 * 1_024;
const tooLarge = problem(413, "body-too-large", "Body too large", "the body may have at most 16384 bytes");
const remaining = async () => (await tollgate.peek({ policy: "api", key: "alice", cost: 0 })).body.remaining;

/** A valid request of this length. */
const padded = (length) => '{"policy":"api","key":"alice"}'.padEnd(length);
const inPieces = (text, size) =>
  Array.from({ length: Math.ceil(text.length / size) }, (_, i) => text.slice(i * size, (i + 1) * size));

test("with a declared length: 16 384 bytes are accepted, one more is not", async () => {
  assert.equal((await tollgate.send({ body: padded(MAX) })).status, 200);
  for (const path of PATHS) {
    assertAnswer(await tollgate.send({ path, body: padded(MAX + 1) }), tooLarge, path);
  }
  assert.equal(await remaining(), 9);
});

test("chunked, without a length: the same", async () => {
  assert.equal((await tollgate.send({ body: inPieces(padded(MAX), 1_000) })).status, 200);
  for (const size of [1_000, 20_000]) {
    assertAnswer(await tollgate.send({ body: inPieces(padded(MAX + 1), size) }), tooLarge, `pieces of ${size}`);
  }
  assert.equal(await remaining(), 8);
});

test("is answered without waiting for the rest: a declared length is trusted", async () => {
  // A 32-bit count reads 2³² + 5 as 5.
  for (const length of [MAX + 1, 10_000_000, 2 ** 32 + 5, 2 ** 53]) {
    const headers = { "content-length": length };
    assertAnswer(await tollgate.send({ body: [padded(100)], unfinished: true, headers }), tooLarge, `${length} bytes`);
  }
  assert.equal(await remaining(), 8);
});

test("is answered without waiting for the rest: an endless body is cut off", async () => {
  assertAnswer(await tollgate.send({ body: inPieces(padded(64_000), 1_000), unfinished: true }), tooLarge);
  assert.equal(await remaining(), 8);
});

test("overrides may have a megabyte, and the answer says so", async () => {
  const operator = newToken("admin");
  const operated = await start({
    policies: { api: { rate: 10, period: "10s" } },
    tokens: { operator: operator.entry },
    registry: true,
  });
  const put = (length) => {
    const body = JSON.stringify({ overrides: [{ policy: "api", key: "alice", banned: true }] }).padEnd(length);
    const path = "/v1/overrides?dry_run=true";
    return operated.send({ method: "PUT", path, body, ...bearer(operator.text) });
  };
  const most = 1_024 * 1_024;
  assert.equal((await put(most)).status, 200);
  const longer = problem(413, "body-too-large", "Body too large", "the body may have at most 1048576 bytes");
  assertAnswer(await put(most + 1), longer);
});
