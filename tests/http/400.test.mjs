// Not a valid request: the answer says what was wrong, where, and what would be right, and the bucket is as before.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAnswer, problem } from "./answers.mjs";
import { start } from "./workerd.mjs";

const tollgate = await start({
  policies: {
    api: { rate: 10, period: "10s", capacity: 20 },
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

/** Sends a body to all of `paths`, and checks that alice's budget is unchanged. */
async function assertRefusedUnchanged(body, expected, headers, paths = ["/v1/consume", "/v1/peek"]) {
  const look = async () => (await tollgate.peek({ policy: "api", key: "alice", cost: 0 })).body;
  const before = await look();
  assert.equal(before.remaining, 13, "neither empty nor full, so that a change shows");
  for (const path of paths) {
    assertAnswer(await tollgate.send({ path, body, headers }), expected, `${body} to ${path}`);
  }
  assert.deepEqual(await look(), before);
}

test("setup: takes 7 of alice's 20", async () => {
  assert.equal((await tollgate.consume({ policy: "api", key: "alice", cost: 7 })).status, 200);
});

test("a body that is not a request", async (t) => {
  const key = (text) => `{"policy":"api","key":${text}}`;
  const cost = (text) => `{"policy":"api","key":"alice","cost":${text}}`;
  const keyOf = (...bytes) =>
    Buffer.concat([Buffer.from('{"policy":"api","key":"'), Buffer.from(bytes), Buffer.from('"}')]);
  const unread = (what) => `the body is not valid JSON: ${what}`;
  const fields = "policy, key, cost, mode, max_wait_ms, snapshot, limits";
  const notObject = (found) => `the body must be a JSON object, not ${found}`;
  const notField = (name) => `the body cannot have the field "${name}"; its fields are ${fields}`;
  const twice = (name) => `the body has the field "${name}" twice`;
  const notKey = (found) =>
    `\`key\` must be a string of 1 to 512 bytes, a list of 1 to 8 strings, or {"ip":"<address>"}, not ${found}`;
  const unpaired = "`key` contains an unpaired surrogate, so it is not valid Unicode";
  const tooLong = (bytes) => `\`key\` is ${bytes} bytes long; at most 512 are allowed`;
  const notCost = (found) => `\`cost\` must be ${WHOLE}, or an object with one for each limit, not ${found}`;
  const more = (text) => `{"policy":"api","key":"alice",${text}}`;
  const notWait = (found) => `\`max_wait_ms\` must be ${WHOLE}, not ${found}`;
  const notMode = (found) => `\`mode\` must be "take", "reserve", "borrow" or "up_to", not ${found}`;
  const notSnapshot = (found) => `\`snapshot\` must be true or false, not ${found}`;
  const tables = {
    "not JSON: where, and what was expected there": [
      ["", "the body is empty: send a JSON object"],
      [" ", "the body is empty: send a JSON object"],
      ["{", unread("EOF while parsing an object"), 1],
      ['{"policy":"api","key":"alice"', unread("EOF while parsing an object"), 29],
      ["policy=api&key=alice", unread("expected value"), 1],
      ["{'policy':'api','key':'alice'}", unread("expected a field's name in double quotes"), 2],
      ['{"policy":"api","key":"alice",}', unread("expected a field's name in double quotes"), 31],
      ['{"policy":"api","key":"alice"} x', unread("trailing characters"), 32],
      ['{"policy":"api","key":"alice"}{}', unread("trailing characters"), 31],
      ['\ufeff{"policy":"api","key":"alice"}', unread("expected value"), 1],
      [Buffer.from('{"policy":"api"}', "utf16le"), unread("expected a field's name in double quotes"), 2],
      ["NaN", unread("expected value"), 1],
      [cost("NaN"), unread("expected value"), 38],
      [cost("Infinity"), unread("expected value"), 38],
      [cost("-Infinity"), unread("invalid number"), 39],
      [cost("+1"), unread("expected value"), 38],
      [cost("01"), unread("invalid number"), 39],
      [cost("0x1"), unread("expected `,` or `}`"), 39],
    ],
    "JSON, but no request: the field that is wrong, missing or too many": [
      ["null", notObject("null")],
      ["1", notObject("1")],
      ['"api"', notObject('"api"')],
      ["[]", notObject("an array")],
      [' ["api","alice",1]', notObject("an array")],
      ["{}", "the field `policy` is missing"],
      ['{"key":"alice"}', "the field `policy` is missing"],
      ['{"policy":"api"}', "the field `key` is missing"],
      ['{"policy":7,"key":"alice"}', "`policy` must be a string, not 7"],
      ['{"policy":["api"],"key":"alice"}', "`policy` must be a string, not an array"],
      ['{"policy":"api","key":"alice","amount":1}', notField("amount")],
      ['{"policy":"api","key":"alice","Cost":1}', notField("Cost")],
      ['{"policy":"api","key":"alice","__proto__":{}}', notField("__proto__")],
      ['{"policy":"api","policy":"api","key":"alice"}', twice("policy")],
      ['{"policy":"api","key":"bob","key":"alice"}', twice("key")],
      ['{"policy":"api","key":"bob","\\u006bey":"alice"}', twice("key")],
      ['{"policy":"api","key":"alice","cost":1,"cost":2}', twice("cost")],
      ['{"policy":"api","key":"alice","\\ud800":1}', "the body has a field whose name contains an unpaired surrogate"],
    ],
    "an invalid key": [
      [key('""'), "`key` is empty: it must have 1 to 512 bytes"],
      [key(`"${"k".repeat(513)}"`), tooLong(513)],
      [key(`"${"k".repeat(10_000)}"`), tooLong(10_000)],
      [key(`"${"語".repeat(171)}"`), tooLong(513)], // bytes, not characters
      [key(`"${"\\u0000".repeat(513)}"`), tooLong(513)],
      [key("7"), notKey("7")],
      [key("null"), notKey("null")],
      [key("[7]"), "`key` has a part 0 that is not a string"],
      [key('{"id":"alice"}'), "`key` is an object, so its only field must be `ip`"],
    ],
    "text that is not Unicode: repaired keys would share a budget": [
      [key('"\\ud800"'), unpaired],
      [key('"\\ud800 "'), unpaired],
      [key('"\\udc00"'), unpaired],
      [key('"\\ud800\\ud800"'), unpaired],
      [key('"\\x41"'), unread("invalid escape"), 25],
      [key('"\u0000"'), unread("control character (\\u0000-\\u001F) found while parsing a string"), 23],
      [keyOf(0xff), unread("invalid utf-8 sequence of 1 bytes from index 23")],
      [keyOf(0xc0, 0x80), unread("invalid utf-8 sequence of 1 bytes from index 23")], // NUL, overlong
      [keyOf(0xed, 0xa0, 0x80), unread("invalid utf-8 sequence of 1 bytes from index 23")], // U+D800
      [keyOf(0xf4, 0x90, 0x80, 0x80), unread("invalid utf-8 sequence of 1 bytes from index 23")], // beyond U+10FFFF
      [Buffer.from("1f8b0800", "hex"), unread("invalid utf-8 sequence of 1 bytes from index 1")], // what gzip begins with
    ],
    "an invalid cost": [
      [cost("-1"), notCost("-1")],
      [cost("-9223372036854775808"), notCost("-9223372036854775808")],
      [cost("-1e30"), notCost("-1e30")],
      [cost("0.5"), notCost("0.5")],
      [cost("1.0000000000000002"), notCost("1.0000000000000002")],
      [cost("5e-324"), notCost("5e-324")],
      [cost("9007199254740992"), notCost("9007199254740992")],
      [cost("9007199254740992.0"), notCost("9007199254740992.0")],
      [cost("18446744073709551616"), notCost("18446744073709551616")],
      [cost("1e300"), notCost("1e300")],
      [cost("1e999"), notCost("1e999")],
      [cost("9".repeat(500)), notCost(`${"9".repeat(200)} ... ${"9".repeat(201)}`)],
      [cost('"1"'), notCost('"1"')],
      [cost("null"), notCost("null")],
      [cost("true"), notCost("true")],
      [cost("[1]"), notCost("an array")],
    ],
    "a cost for each limit that does not fit the policy": [
      [cost('{"api":1}'), "policy api has one limit, without a name, so its cost is a number"],
    ],
    "an invalid mode or wait, or a wait that goes with another mode": [
      [more('"mode":"lend"'), notMode('"lend"')],
      [more('"mode":"Take"'), notMode('"Take"')],
      [more('"mode":""'), notMode('""')],
      [more('"mode":"take","mode":"take"'), twice("mode")],
      [more('"mode":"reserve","max_wait_ms":-1'), notWait("-1")],
      [more('"mode":"reserve","max_wait_ms":0.5'), notWait("0.5")],
      [more('"mode":"reserve","max_wait_ms":9007199254740992'), notWait("9007199254740992")],
      [more('"mode":"borrow","max_wait_ms":null'), notWait("null")],
      [more('"mode":"borrow","max_wait_ms":"1s"'), notWait('"1s"')],
      [more('"max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"max_wait_ms":0'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"mode":"take","max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
      [more('"mode":"up_to","max_wait_ms":1'), '`max_wait_ms` needs a `mode` of "reserve" or "borrow"'],
    ],
    "a reservation, which is for settling": [
      [more('"reservation":"00000000000ff"'), notField("reservation")],
      [more('"reservation":7'), notField("reservation")],
    ],
    "an invalid snapshot flag": [
      [more('"snapshot":1'), notSnapshot("1")],
      [more('"snapshot":"true"'), notSnapshot('"true"')],
      [more('"snapshot":null'), notSnapshot("null")],
      [more('"snapshot":["tokens"]'), notSnapshot("an array")],
      [more('"snapshot":true,"snapshot":true'), twice("snapshot")],
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

test("unknown fields and missing fields", async () => {
  const takes = (field, known) =>
    `the body cannot have the field "${field}"; its fields are ${known}, snapshot, limits`;
  const noId = "the field `reservation` is missing: the id in the answer that reserved the tokens";
  const notId = (found) => `\`reservation\` must be a reservation's id of 13 hex digits, not ${found}`;
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
    ["/v1/settle", `{${item},"cost":1}`, noId],
    ["/v1/cancel", `{${item}}`, noId],
    ["/v1/cancel", `{${item},"reservation":""}`, notId('""')],
    ["/v1/cancel", `{${item},"reservation":"+f"}`, notId('"+f"')],
    ["/v1/cancel", `{${item},"reservation":"10000000000000"}`, notId('"10000000000000"')],
    ["/v1/cancel", `{${item},"reservation":7}`, notId("7")],
    ["/v1/cancel", `{${item},"reservation":null}`, notId("null")],
    ["/v1/batch", `{${item}}`, 'the body cannot have the field "policy"; its fields are requests'],
    [
      "/v1/batch",
      `{"requests":[{${item}}],"snapshot":true}`,
      'the body cannot have the field "snapshot"; its fields are requests',
    ],
    ["/v1/batch", `{"requests":[{${item},"snapshot":0}]}`, "request 0: `snapshot` must be true or false, not 0"],
    ["/v1/batch", '{"requests":[]}', "a batch has 1 to 16 requests, not 0"],
    ["/v1/batch", `{"requests":[${many(17)}]}`, "a batch has 1 to 16 requests, not 17"],
    [
      "/v1/batch",
      `{"requests":[{${item}},{"policy":"daily","key":"alice"},{${item},"cost":2}]}`,
      "requests 0 and 2 have the same policy and key: combine them, with the sum of their costs",
    ],
    [
      "/v1/batch",
      `{"requests":[{${item}},{"policy":"api","key":"bob","mode":"reserve"}]}`,
      'request 1: it cannot have the field "mode"; its fields are policy, key, cost, snapshot, limits',
    ],
    ["/v1/batch", "[]", "the body must be a JSON object, not an array"],
    ["/v1/batch", '{"requests":7}', "`requests` must be an array, not 7"],
  ]) {
    await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail), undefined, [path]);
  }
});

test("a batch that is not an object: the error says what it should be", async () => {
  for (const found of ["null", "7", '"api"']) {
    const detail = `the body must be a JSON object, not ${found}`;
    await assertRefusedUnchanged(found, problem(400, "bad-request", "Bad request", detail), undefined, ["/v1/batch"]);
  }
});

test("a batch with an array in place of a request", async () => {
  const detail = "request 0: it must be a JSON object, not an array";
  const expected = problem(400, "bad-request", "Bad request", detail);
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

test("a mode of the wrong type", async () => {
  for (const [mode, found] of [
    ["null", "null"],
    ["1", "1"],
    ["true", "true"],
    ['["take"]', "an array"],
    ['{"take":null}', "an object"],
    ['{"reserve":null}', "an object"],
  ]) {
    const body = `{"policy":"api","key":"alice","cost":0,"mode":${mode}}`;
    for (const path of ["/v1/consume", "/v1/peek"]) {
      const answer = await tollgate.send({ path, body });
      const { detail } = answer.body;
      assertAnswer(answer, problem(400, "bad-request", "Bad request", detail), `${body} to ${path}`);
      assert.ok(detail.endsWith(`, not ${found}`), detail);
    }
  }
});

test("an empty cost by limit, under a policy with one unnamed limit", async () => {
  const detail = "policy api has one limit, without a name, so its cost is a number";
  await assertRefusedUnchanged(
    '{"policy":"api","key":"alice","cost":{}}',
    problem(400, "bad-request", "Bad request", detail),
  );
});

test("a cost by limit that does not fit: the error lists the policy's limits", async () => {
  for (const [cost, detail] of [
    ["{}", "the cost must name every limit of policy llm: requests, tokens"],
    ['{"requests":1}', "the cost must name every limit of policy llm: requests, tokens"],
    ['{"requests":1,"token":1}', 'policy llm has no limit "token"; its limits are requests, tokens'],
    ['{"requests":1,"tokens":1,"":1}', 'policy llm has no limit ""; its limits are requests, tokens'],
    ['{"requests":1,"requests":1}', 'the cost of "requests" is given twice'],
    ['{"requests":1,"tokens":null}', `the cost of "tokens" must be ${WHOLE}, not null`],
    ['{"requests":1,"tokens":-1}', `the cost of "tokens" must be ${WHOLE}, not -1`],
    ['{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}', "a policy has at most 8 limits"],
  ]) {
    const body = `{"policy":"llm","key":"alice","cost":${cost}}`;
    await assertRefusedUnchanged(body, problem(400, "bad-request", "Bad request", detail));
  }
});

const WHOLE = "a whole number from 0 to 9007199254740991";

test("no body", async () => {
  const headers = { "content-type": "application/json", "transfer-encoding": "chunked" };
  const detail = "the body is empty: send a JSON object";
  await assertRefusedUnchanged(undefined, problem(400, "bad-request", "Bad request", detail), headers);
});

test("a cost that the policy can never grant: the error has the largest that it can", async () => {
  for (const [limit, cost, max_cost, more] of [
    ["api", 21, 20],
    ["api", Number.MAX_SAFE_INTEGER, 20],
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
