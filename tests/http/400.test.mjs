// Not a valid request: the answer says what was wrong, where, and what would be right, and the bucket is as before.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({
  policies: {
    api: { rate: 10, period: "10s", capacity: 20 },
    none: { rate: 1, period: "1s", capacity: 0 },
    once: { rate: 0, period: "1s", capacity: 5 },
    daily: { kind: "fixed_window", rate: 100, period: "1day", capacity: 250 },
  },
});

/** Sends a body to both paths, and sees that alice's budget is what it was. */
async function assertRefusedUnchanged(body, expected, headers) {
  const look = async () => (await tollgate.peek({ policy: "api", key: "alice", cost: 0 })).body;
  const before = await look();
  assert.equal(before.remaining, 13, "neither empty nor full, so that a change shows");
  for (const path of ["/v1/consume", "/v1/peek"]) {
    assertAnswer(await tollgate.send({ path, body, headers }), expected, `${body} to ${path}`);
  }
  assert.deepEqual(await look(), before);
}

test("takes 7 of alice's 20, for the tests after this one", async () => {
  assert.equal((await tollgate.consume({ policy: "api", key: "alice", cost: 7 })).status, 200);
});

test("a body that is no request", async (t) => {
  const key = (text) => `{"policy":"api","key":${text}}`;
  const cost = (text) => `{"policy":"api","key":"alice","cost":${text}}`;
  const keyOf = (...bytes) => Buffer.concat([Buffer.from('{"policy":"api","key":"'), Buffer.from(bytes), Buffer.from('"}')]);
  const unread = (what) => `the body cannot be read as JSON: ${what}`;
  const notObject = (found) => `invalid type: ${found}, expected a JSON object with "policy", "key" and perhaps "cost"`;
  const notField = (name) => `unknown field \`${name}\`, expected one of \`policy\`, \`key\`, \`cost\``;
  const notKey = (found) => `invalid type: ${found}, expected a key of 1 to 512 bytes of text`;
  const notCost = (found) => `invalid ${found}, expected a cost that is a whole number from 0 to 9007199254740991`;
  const tables = {
    "not JSON: where, and what was expected there": [
      ["", unread("EOF while parsing a value"), 0],
      [" ", unread("EOF while parsing a value"), 1],
      ["{", unread("EOF while parsing an object"), 1],
      ['{"policy":"api","key":"alice"', unread("EOF while parsing an object"), 29],
      ["policy=api&key=alice", unread("expected value"), 1],
      ["{'policy':'api','key':'alice'}", unread("key must be a string"), 2],
      ['{"policy":"api","key":"alice",}', unread("trailing comma"), 31],
      ['{"policy":"api","key":"alice"} x', unread("trailing characters"), 32],
      ['{"policy":"api","key":"alice"}{}', unread("trailing characters"), 31],
      ['\ufeff{"policy":"api","key":"alice"}', unread("expected value"), 1],
      [Buffer.from('{"policy":"api"}', "utf16le"), unread("key must be a string"), 2],
      [Buffer.from("1f8b0800", "hex"), unread("expected value"), 1], // what gzip begins with
    ],
    "JSON, but no request: the field that is wrong, missing or too many": [
      ["null", notObject("null"), 4],
      ["1", notObject("integer `1`"), 1],
      ['"api"', notObject('string "api"'), 5],
      ["[]", notObject("sequence")],
      [' ["api","alice",1]', notObject("sequence")],
      ["{}", "missing field `policy`", 2],
      ['{"key":"alice"}', "missing field `policy`", 15],
      ['{"policy":"api"}', "missing field `key`", 16],
      ['{"policy":7,"key":"alice"}', "invalid type: integer `7`, expected a string", 11],
      ['{"policy":["api"],"key":"alice"}', "invalid type: sequence, expected a string", 10],
      ['{"policy":"api","key":"alice","amount":1}', notField("amount"), 38],
      ['{"policy":"api","key":"alice","Cost":1}', notField("Cost"), 36],
      ['{"policy":"api","key":"alice","__proto__":{}}', notField("__proto__"), 41],
      ['{"policy":"api","policy":"api","key":"alice"}', "duplicate field `policy`", 24],
      ['{"policy":"api","key":"bob","key":"alice"}', "duplicate field `key`", 33],
      ['{"policy":"api","key":"alice","cost":1,"cost":2}', "duplicate field `cost`", 45],
    ],
    "a key that is none": [
      [key('""'), "an empty key: it must have 1 to 512 bytes", 24],
      [key(`"${"k".repeat(513)}"`), "a key of 513 bytes is too long: it must have 1 to 512", 537],
      [key(`"${"k".repeat(10_000)}"`), "a key of 10000 bytes is too long: it must have 1 to 512", 10_024],
      [key(`"${"語".repeat(171)}"`), "a key of 513 bytes is too long: it must have 1 to 512", 537], // bytes, not characters
      [key(`"${"\\u0000".repeat(513)}"`), "a key of 513 bytes is too long: it must have 1 to 512", 3_102],
      [key("7"), notKey("integer `7`"), 23],
      [key("null"), notKey("null"), 26],
      [key('["alice"]'), notKey("sequence"), 22],
      [key('{"id":"alice"}'), notKey("map"), 22],
    ],
    "text that is no Unicode: mended keys would share a budget": [
      [key('"\\ud800"'), unread("unexpected end of hex escape"), 30],
      [key('"\\ud800 "'), unread("unexpected end of hex escape"), 30],
      [key('"\\udc00"'), unread("lone leading surrogate in hex escape"), 29],
      [key('"\\ud800\\ud800"'), unread("lone leading surrogate in hex escape"), 35],
      [key('"\\x41"'), unread("invalid escape"), 25],
      [key('"\u0000"'), unread("control character (\\u0000-\\u001F) found while parsing a string"), 24],
      [keyOf(0xff), unread("invalid unicode code point"), 24],
      [keyOf(0xc0, 0x80), unread("invalid unicode code point"), 24], // NUL, overlong
      [keyOf(0xed, 0xa0, 0x80), unread("invalid unicode code point"), 24], // U+D800
      [keyOf(0xf4, 0x90, 0x80, 0x80), unread("invalid unicode code point"), 24], // beyond U+10FFFF
    ],
    "a cost that is none": [
      [cost("-1"), notCost("value: integer `-1`"), 39],
      [cost("-9223372036854775808"), notCost("value: integer `-9223372036854775808`"), 57],
      [cost("-1e30"), notCost("value: floating point `-1e+30`"), 42],
      [cost("0.5"), notCost("value: floating point `0.5`"), 40],
      [cost("1.0000000000000002"), notCost("value: floating point `1.0000000000000002`"), 55],
      [cost("5e-324"), notCost("value: floating point `5e-324`"), 43],
      [cost("9007199254740992"), notCost("value: integer `9007199254740992`"), 53],
      [cost("9007199254740992.0"), notCost("value: floating point `9007199254740992.0`"), 55],
      [cost("18446744073709551616"), notCost("value: floating point `1.8446744073709552e+19`"), 57],
      [cost("1e300"), notCost("value: floating point `1e+300`"), 42],
      [cost("1e999"), unread("number out of range"), 42],
      [cost("9".repeat(400)), unread("number out of range"), 437],
      [cost("NaN"), unread("expected value"), 38],
      [cost("Infinity"), unread("expected value"), 38],
      [cost("-Infinity"), unread("invalid number"), 39],
      [cost("+1"), unread("expected value"), 38],
      [cost("01"), unread("invalid number"), 39],
      [cost("0x1"), unread("expected `,` or `}`"), 39],
      [cost('"1"'), notCost('type: string "1"'), 40],
      [cost("null"), notCost("type: null"), 41],
      [cost("true"), notCost("type: boolean `true`"), 41],
      [cost("[1]"), notCost("type: sequence"), 38],
      [cost("{}"), notCost("type: map"), 39],
    ],
  };
  for (const [name, rows] of Object.entries(tables)) {
    await t.test(name, async () => {
      for (const [body, what, column] of rows) {
        const detail = column === undefined ? what : `${what} at line 1 column ${column}`;
        await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail));
      }
    });
  }
});

test("no body at all", async () => {
  const headers = { "content-type": "application/json", "transfer-encoding": "chunked" };
  const detail = "the body cannot be read as JSON: EOF while parsing a value at line 1 column 0";
  await assertRefusedUnchanged(undefined, problem(400, "bad-request", "Bad request", detail), headers);
});

test("a cost that the policy can never grant: the most that it can", async () => {
  for (const [policy, cost, max_cost] of [
    ["api", 21, 20],
    ["api", Number.MAX_SAFE_INTEGER, 20],
    ["none", 1, 0],
    ["once", 6, 5],
    ["daily", 251, 250],
  ]) {
    const detail = `policy ${policy} can never grant ${cost} tokens at once; at most ${max_cost}`;
    const expected = problem(400, "cost-too-large", "Cost too large", detail, { max_cost });
    await assertRefusedUnchanged(JSON.stringify({ policy, key: "alice", cost }), expected);
    // And that much is granted.
    assert.equal((await tollgate.consume({ policy, key: `cost ${cost}`, cost: max_cost })).status, 200);
  }
});
