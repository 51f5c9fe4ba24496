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
    debtor: { rate: 10, period: "10s", capacity: 20, max_debt: 5 },
    llm: {
      limits: [
        { name: "requests", rate: 5, period: "1s" },
        { name: "tokens", rate: 100, period: "1s" },
      ],
    },
  },
});

/** Sends a body to all of `paths`, and sees that alice's budget is what it was. */
async function assertRefusedUnchanged(body, expected, headers, paths = ["/v1/consume", "/v1/peek"]) {
  const look = async () => (await tollgate.peek({ policy: "api", key: "alice", cost: 0 })).body;
  const before = await look();
  assert.equal(before.remaining, 13, "neither empty nor full, so that a change shows");
  for (const path of paths) {
    assertAnswer(await tollgate.send({ path, body, headers }), expected, `${body} to ${path}`);
  }
  assert.deepEqual(await look(), before);
}

test("takes 7 of alice's 20, for the tests after this one", async () => {
  assert.equal((await tollgate.consume({ policy: "api", key: "alice", cost: 7 })).status, 200);
});

test("a body that is not a request", async (t) => {
  const key = (text) => `{"policy":"api","key":${text}}`;
  const cost = (text) => `{"policy":"api","key":"alice","cost":${text}}`;
  const keyOf = (...bytes) =>
    Buffer.concat([Buffer.from('{"policy":"api","key":"'), Buffer.from(bytes), Buffer.from('"}')]);
  const unread = (what) => `the body is not valid JSON: ${what}`;
  const notObject = (found) =>
    `invalid type: ${found}, expected a JSON object with "policy", "key" and optional fields`;
  const known = "`policy`, `key`, `cost`, `snapshot`, `mode`, `max_wait_ms`, `reservation`";
  const notField = (name) => `unknown field \`${name}\`, expected one of ${known}`;
  const notKey = (found) => `invalid type: ${found}, expected a key of 1 to 512 bytes of text`;
  const notNumber = (found) => `invalid value: ${found}, expected ${COST}`;
  const notCost = (found) => `invalid type: ${found}, expected ${COST}, or an object with one for each limit`;
  const more = (text) => `{"policy":"api","key":"alice",${text}}`;
  const notWait = (found) => `invalid ${found}, expected ${COST.replace("a cost", "a wait in milliseconds")}`;
  const notMode = (name) => `unknown variant \`${name}\`, expected one of \`take\`, \`reserve\`, \`borrow\`, \`up_to\``;
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
      [key('""'), "the key is empty: it must have 1 to 512 bytes", 24],
      [key(`"${"k".repeat(513)}"`), "a key of 513 bytes is too long: at most 512", 537],
      [key(`"${"k".repeat(10_000)}"`), "a key of 10000 bytes is too long: at most 512", 10_024],
      [key(`"${"語".repeat(171)}"`), "a key of 513 bytes is too long: at most 512", 537], // bytes, not characters
      [key(`"${"\\u0000".repeat(513)}"`), "a key of 513 bytes is too long: at most 512", 3_102],
      [key("7"), notKey("integer `7`"), 23],
      [key("null"), notKey("null"), 26],
      [key('["alice"]'), notKey("sequence"), 22],
      [key('{"id":"alice"}'), notKey("map"), 22],
    ],
    "text that is not Unicode: repaired keys would share a budget": [
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
      [cost("-1"), notNumber("integer `-1`"), 39],
      [cost("-9223372036854775808"), notNumber("integer `-9223372036854775808`"), 57],
      [cost("-1e30"), notNumber("floating point `-1e+30`"), 42],
      [cost("0.5"), notNumber("floating point `0.5`"), 40],
      [cost("1.0000000000000002"), notNumber("floating point `1.0000000000000002`"), 55],
      [cost("5e-324"), notNumber("floating point `5e-324`"), 43],
      [cost("9007199254740992"), notNumber("integer `9007199254740992`"), 53],
      [cost("9007199254740992.0"), notNumber("floating point `9007199254740992.0`"), 55],
      [cost("18446744073709551616"), notNumber("floating point `1.8446744073709552e+19`"), 57],
      [cost("1e300"), notNumber("floating point `1e+300`"), 42],
      [cost("1e999"), unread("number out of range"), 42],
      [cost("9".repeat(400)), unread("number out of range"), 437],
      [cost("NaN"), unread("expected value"), 38],
      [cost("Infinity"), unread("expected value"), 38],
      [cost("-Infinity"), unread("invalid number"), 39],
      [cost("+1"), unread("expected value"), 38],
      [cost("01"), unread("invalid number"), 39],
      [cost("0x1"), unread("expected `,` or `}`"), 39],
      [cost('"1"'), notCost('string "1"'), 40],
      [cost("null"), notCost("null"), 41],
      [cost("true"), notCost("boolean `true`"), 41],
      [cost("[1]"), notCost("sequence"), 38],
    ],
    "a cost for each limit that does not fit the policy": [
      [cost('{"api":1}'), "policy api has one limit, without a name, so its cost is a number"],
    ],
    "a mode that is none, or a wait that is none or goes with another mode": [
      [more('"mode":"lend"'), notMode("lend"), 43],
      [more('"mode":"Take"'), notMode("Take"), 43],
      [more('"mode":""'), notMode(""), 39],
      [more('"mode":"take","mode":"take"'), "duplicate field `mode`", 50],
      [more('"mode":"reserve","max_wait_ms":-1'), notWait("value: integer `-1`"), 63],
      [more('"mode":"reserve","max_wait_ms":0.5'), notWait("value: floating point `0.5`"), 64],
      [more('"mode":"reserve","max_wait_ms":9007199254740992'), notWait("value: integer `9007199254740992`"), 77],
      [more('"mode":"borrow","max_wait_ms":null'), notWait("type: null"), 64],
      [more('"mode":"borrow","max_wait_ms":"1s"'), notWait('type: string "1s"'), 64],
      [more('"max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"max_wait_ms":0'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"mode":"take","max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"mode":"up_to","max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
    ],
    "a reservation, which is for settling": [
      [
        more('"reservation":"00000000000ff"'),
        "`reservation` is not a field of this endpoint; its fields are policy, key, cost, mode, max_wait_ms, snapshot",
      ],
      [
        more('"reservation":"x"'),
        "`reservation` is not a field of this endpoint; its fields are policy, key, cost, mode, max_wait_ms, snapshot",
      ],
      [more('"reservation":7'), "invalid type: integer `7`, expected a string", 45],
      [more('"reservation":null'), "invalid type: null, expected a string", 48],
    ],
    "a snapshot that is neither asked for nor not": [
      [more('"snapshot":1'), "invalid type: integer `1`, expected a boolean", 42],
      [more('"snapshot":"true"'), 'invalid type: string "true", expected a boolean', 47],
      [more('"snapshot":null'), "invalid type: null, expected a boolean", 45],
      [more('"snapshot":["tokens"]'), "invalid type: sequence, expected a boolean", 41],
      [more('"snapshot":true,"snapshot":true'), "duplicate field `snapshot`", 56],
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

test("fields that an endpoint does not take, or misses", async () => {
  const takes = (field, known) => `\`${field}\` is not a field of this endpoint; its fields are ${known}, snapshot`;
  const item = '"policy":"api","key":"alice"';
  const many = (count) => Array.from({ length: count }, (_, i) => `{"policy":"api","key":"key ${i}"}`).join(",");
  for (const [path, body, detail] of [
    ["/v1/charge", `{${item},"mode":"take"}`, takes("mode", "policy, key, cost")],
    ["/v1/refund", `{${item},"max_wait_ms":1}`, takes("max_wait_ms", "policy, key, cost")],
    ["/v1/reset", `{${item},"cost":1}`, takes("cost", "policy, key")],
    ["/v1/inspect", `{${item},"cost":0}`, takes("cost", "policy, key")],
    ["/v1/cancel", `{${item},"reservation":"ff","cost":1}`, takes("cost", "policy, key, reservation")],
    [
      "/v1/settle",
      `{${item},"reservation":"ff","cost":1,"mode":"take"}`,
      takes("mode", "policy, key, reservation, cost"),
    ],
    ["/v1/settle", `{${item},"cost":1}`, "missing field `reservation`: the id in the answer that reserved the tokens"],
    ["/v1/cancel", `{${item}}`, "missing field `reservation`: the id in the answer that reserved the tokens"],
    ["/v1/cancel", `{${item},"reservation":""}`, '"" is not a reservation id (13 hex digits)'],
    ["/v1/cancel", `{${item},"reservation":"+f"}`, '"+f" is not a reservation id (13 hex digits)'],
    [
      "/v1/cancel",
      `{${item},"reservation":"10000000000000"}`,
      '"10000000000000" is not a reservation id (13 hex digits)',
    ],
    ["/v1/batch", `{${item}}`, "unknown field `policy`, expected `requests` at line 1 column 9"],
    [
      "/v1/batch",
      `{"requests":[{${item}}],"snapshot":true}`,
      "unknown field `snapshot`, expected `requests` at line 1 column 55",
    ],
    [
      "/v1/batch",
      `{"requests":[{${item},"snapshot":0}]}`,
      "invalid type: integer `0`, expected a boolean at line 1 column 55",
    ],
    ["/v1/batch", '{"requests":[]}', "a batch has 1 to 16 requests, not 0"],
    ["/v1/batch", `{"requests":[${many(17)}]}`, "a batch has 1 to 16 requests, not 17"],
    [
      "/v1/batch",
      `{"requests":[{${item}},{"policy":"daily","key":"alice"},{${item},"cost":2}]}`,
      "requests 0 and 2 have the same policy and key: combine them, with the sum of their costs",
    ],
    [
      "/v1/batch",
      `{"requests":[{${item},"mode":"reserve"}]}`,
      "unknown field `mode`, expected one of `policy`, `key`, `cost`, `snapshot` at line 1 column 49",
    ],
    ["/v1/batch", "[]", 'invalid type: sequence, expected a JSON object with a list "requests"'],
  ]) {
    await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail), undefined, [path]);
  }
});

test("a batch that is not an object: what it should be", async () => {
  for (const [body, found, column] of [
    ["null", "null", 4],
    ["7", "integer `7`", 1],
    ['"api"', 'string "api"', 5],
  ]) {
    const detail = `invalid type: ${found}, expected a JSON object with a list "requests" at line 1 column ${column}`;
    await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail), undefined, ["/v1/batch"]);
  }
});

test("a batch with a list for a request: its fields have names", async () => {
  const what = 'invalid type: sequence, expected an object with "policy", "key" and optional fields';
  const expected = problem(400, "bad-request", "Bad request", `${what} at line 1 column 14`);
  assertAnswer(await tollgate.send({ path: "/v1/batch", body: '{"requests":[["api","erin",1]]}' }), expected);
});

test("an Idempotency-Key that is empty or longer than 255 bytes", async () => {
  const detail = "an Idempotency-Key has 1 to 255 bytes of UTF-8";
  for (const id of ["", "i".repeat(256), "i".repeat(4_000)]) {
    const headers = { "idempotency-key": id };
    await assertRefusedUnchanged(
      '{"policy":"api","key":"alice"}',
      problem(400, "bad-request", "Bad request", detail),
      headers,
    );
  }
  const longest = { headers: { "idempotency-key": "i".repeat(255) } };
  assert.equal((await tollgate.consume({ policy: "api", key: "bob" }, longest)).status, 200);
});

test("a mode of another type", async () => {
  for (const [mode, found] of [
    ["null", "null"],
    ["1", "integer `1`"],
    ["true", "boolean `true`"],
    ['["take"]', "sequence"],
    ['{"take":null}', "map"],
    ['{"reserve":null}', "map"],
  ]) {
    const body = `{"policy":"api","key":"alice","cost":0,"mode":${mode}}`;
    for (const path of ["/v1/consume", "/v1/peek"]) {
      const answer = await tollgate.send({ path, body });
      const { detail } = answer.body;
      assertAnswer(answer, problem(400, "bad-request", "Bad request", detail), `${body} to ${path}`);
      assert.ok(detail.startsWith(`invalid type: ${found}, expected `), detail);
    }
  }
});

test("a cost that names no limit, where there is one without a name", async () => {
  const detail = "policy api has one limit, without a name, so its cost is a number";
  await assertRefusedUnchanged(
    '{"policy":"api","key":"alice","cost":{}}',
    problem(400, "bad-request", "Bad request", detail),
  );
});

test("a cost by limit that does not fit: which limits the policy has", async () => {
  for (const [cost, detail] of [
    ["{}", "the cost must name every limit of policy llm: requests, tokens"],
    ['{"requests":1}', "the cost must name every limit of policy llm: requests, tokens"],
    ['{"requests":1,"token":1}', 'policy llm has no limit "token"; its limits are requests, tokens'],
    ['{"requests":1,"tokens":1,"":1}', 'policy llm has no limit ""; its limits are requests, tokens'],
    ['{"requests":1,"requests":1}', 'the cost of "requests" is given twice at line 1 column 61'],
    ['{"requests":1,"tokens":null}', `invalid type: null, expected ${COST} at line 1 column 64`],
    ['{"requests":1,"tokens":-1}', `invalid value: integer \`-1\`, expected ${COST} at line 1 column 62`],
    ['{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}', "a policy has at most 8 limits at line 1 column 89"],
  ]) {
    const body = `{"policy":"llm","key":"alice","cost":${cost}}`;
    await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail));
  }
});

const COST = "a cost that is a whole number from 0 to 9007199254740991";

test("no body at all", async () => {
  const headers = { "content-type": "application/json", "transfer-encoding": "chunked" };
  const detail = "the body is not valid JSON: EOF while parsing a value at line 1 column 0";
  await assertRefusedUnchanged(undefined, problem(400, "bad-request", "Bad request", detail), headers);
});

test("a cost that the policy can never grant: the largest that it can", async () => {
  for (const [limit, cost, max_cost, more] of [
    ["api", 21, 20],
    ["api", Number.MAX_SAFE_INTEGER, 20],
    ["none", 1, 0],
    ["once", 6, 5],
    ["daily", 251, 250],
    ["api", 21, 20, { mode: "reserve" }],
    ["debtor", 21, 20],
    ["debtor", 26, 25, { mode: "reserve" }],
    ["debtor", 24, 23, { mode: "reserve", max_wait_ms: 3_000 }], // what comes back by then
    ["debtor", 26, 25, { mode: "borrow" }],
    ["llm/requests", 6, 5],
  ]) {
    const [policy] = limit.split("/");
    const detail = `policy ${limit} can never grant ${cost} tokens at once; at most ${max_cost}`;
    const expected = problem(400, "cost-too-large", "Cost too large", detail, { max_cost });
    await assertRefusedUnchanged(JSON.stringify({ policy, key: "alice", cost, ...more }), expected);
    // And that much is granted.
    const key = `${cost} ${JSON.stringify(more)}`;
    assert.equal((await tollgate.consume({ policy, key, cost: max_cost, ...more })).status, 200);
  }
});
