// A body whose headers do not say that it is plain JSON: a form or a beacon sent by mistake must not count.
import assert from "node:assert/strict";
import { test } from "node:test";
import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import { assertAnswer, PATHS, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });

test("any other media type, or none", async () => {
  for (const [contentType, found] of [
    [null, ""],
    ["", ""],
    [";charset=utf-8", ""],
    ["text/plain", "text/plain"],
    ["text/plain;charset=UTF-8", "text/plain"], // fetch's default for text
    ["text/json", "text/json"],
    ["application/jsonp", "application/jsonp"],
    ["application/json-seq", "application/json-seq"],
    ["application/problem+json", "application/problem+json"],
    ["application/json, text/plain", "application/json, text/plain"],
    ["application/x-www-form-urlencoded", "application/x-www-form-urlencoded"],
    ["multipart/form-data; boundary=x", "multipart/form-data"],
    ["json", "json"],
    ["*/*", "*/*"],
  ]) {
    const instead = found && `, not ${JSON.stringify(found)}`;
    const detail = `send JSON, with \`Content-Type: application/json\`${instead}`;
    const expected = problem(415, "unsupported-media-type", "Unsupported media type", detail);
    for (const path of PATHS) {
      const request = { path, body: '{"policy":"api","key":"alice"}', headers: { "content-type": contentType } };
      assertAnswer(await tollgate.send(request), expected, `${contentType} to ${path}`);
    }
  }
  assert.equal((await tollgate.peek({ policy: "api", key: "alice" })).body.remaining, 10);
});

test("a body with a content coding", async () => {
  const json = '{"policy":"api","key":"bob"}';
  for (const [encoding, body] of [
    ["gzip", gzipSync(json)],
    ["x-gzip", gzipSync(json)],
    ["br", brotliCompressSync(json)],
    ["deflate", deflateSync(json)],
    ["zstd", json],
    ["gzip", json], // not read, whatever it contains
    ["identity, gzip", json],
  ]) {
    const detail = `send the body uncompressed, without \`Content-Encoding\`, not as ${JSON.stringify(encoding)}`;
    const headers = { "accept-encoding": "identity" };
    const expected = problem(415, "unsupported-content-encoding", "Unsupported content encoding", detail, { headers });
    for (const path of PATHS) {
      const answer = await tollgate.send({ path, body, headers: { "content-encoding": encoding } });
      assertAnswer(answer, expected, `${encoding} to ${path}`);
    }
  }
  const plain = await tollgate.send({ body: json, headers: { "content-encoding": "identity" } });
  assert.deepEqual([plain.status, plain.body.remaining], [200, 9]);
});
