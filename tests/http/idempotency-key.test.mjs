// What an Idempotency-Key may be: two keys that differ are never taken for one.
import assert from "node:assert/strict";
import { connect } from "node:net";
import { test } from "node:test";
import { NOW, start, TOKEN } from "./workerd.mjs";

const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
const body = '{"policy":"api","key":"alice"}';

/** Asks with these bytes as the header, which no client library would send. */
function ask(bytes) {
  const head = [
    "POST /v1/consume HTTP/1.1",
    "host: tollgate",
    "connection: close",
    `authorization: Bearer ${TOKEN}`,
    "content-type: application/json",
    `content-length: ${body.length}`,
    `x-tollgate-test-now: ${NOW}`,
    "idempotency-key: ",
  ].join("\r\n");
  return new Promise((resolve, reject) => {
    const socket = connect(tollgate.port, "127.0.0.1");
    let text = "";
    socket.on("data", (data) => (text += data)).on("error", reject);
    socket.on("close", () => {
      const [head, json] = text.split("\r\n\r\n");
      resolve({ status: Number(head.split(" ")[1]), body: JSON.parse(json) });
    });
    socket.write(Buffer.concat([Buffer.from(head), Buffer.from(bytes), Buffer.from(`\r\n\r\n${body}`)]));
  });
}

test("bytes that are not UTF-8 are refused, because the runtime would make them all equal", async () => {
  for (const bytes of [[0xff], [0xfe], [0xe9], [0x61, 0x80, 0x62], [0xed, 0xa0, 0x80], [0xef, 0xbf, 0xbd]]) {
    const { status, body } = await ask(bytes);
    assert.deepEqual([status, body.detail], [400, "an Idempotency-Key has 1 to 255 bytes of UTF-8"], bytes.join());
  }
});

test("keys that differ in UTF-8 are different keys", async () => {
  for (const [n, key] of ["é", "è", "e", "語", "😀"].entries()) {
    for (const replayed of [undefined, true]) {
      const { status, body } = await ask(Buffer.from(key));
      assert.deepEqual([status, body.remaining, body.replayed], [200, 9 - n, replayed], key);
    }
  }
});
