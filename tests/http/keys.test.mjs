// Texts are taken literally: any two that differ have two budgets. Lists never collide, and an address is one key however it is
// written.
import assert from "node:assert/strict";
import { test } from "node:test";
import { start } from "./workerd.mjs";

const policy = "api";
const CAPACITY = 7;
const limit = { rate: 1, period: "1day", capacity: CAPACITY };
const tollgate = await start({
  policies: { [policy]: limit, wide: { ...limit, ipv6_prefix: 48 }, single: { ...limit, ipv6_prefix: 128 } },
});

/** No two are equal unless one trims, folds, normalizes, cuts, splits or parses them. */
const KEYS = [
  ...["alice", "Alice", "ALICE", "alice ", " alice", "alice\n", "alice\t", "alice\0", "alice\0bob", "alice\u00a0"],
  ...["é", "e\u0301", "É", "ﬁ", "fi", "ß", "ss", "ẞ", "I", "İ", "ı", "i", "Å", "\u212b", "A\u030a"],
  ...["Алиса", "алиса", "а", "a", "Ἀλίκη", "აlისი", "Ալիսա", "אליס", "أليس", "\u200fأليس", "अलिस", "อลิซ"],
  ...["爱丽丝", "愛麗絲", "アリス", "ｱﾘｽ", "ありす", "앨리스", "\u110b\u1162\u11af리스", "ᠠᠯᠢᠰ", "𓀀", "𠮷"],
  ...["👩‍👩‍👧‍👦", "👩👩👧👦", "👩🏽", "👩", "🇺🇦", "🇺", "❤️", "❤", "\u{10ffff}", "\ufffd", "\ufffe", "\ufeffalice"],
  ...["\u202ealice", "al\u200bice", "al\u00adice", "Z̸̡̛̰̄a̷l̶g̵o", "\u0000", "\u0001", "\u001b[31m", "\u007f", "\u0085"],
  ...["__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "valueOf"],
  ...["null", "undefined", "NaN", "true", "false", "[object Object]"],
  ...["0", "-0", "0.0", "00", "1e3", "1000", "9007199254740993", "9007199254740992", "-1", "0x10"],
  ...["' OR 1=1 --", "'; DROP TABLE bucket; --", '"', "\\", "\\0", "%", "_", "%00", "%41", "A", "$1", "?", "*", "{}"],
  ...["../../etc/passwd", "..", ".", "/", "//", "C:\\con", "con", "a/b", "a\\b", "a.example", "a.example."],
  ...["https://a.example/?b=c&d=e#f", "https://a.example:443/?b=c&d=e#f", "HTTPS://a.example/?b=c&d=e#f"],
  ...["<script>alert(1)</script>", "\u0024{jndi:ldap://x}", "\r\nSet-Cookie: a=b", "`id`", "$(id)", "; id"],
  ...[
    "192.0.2.1",
    "::ffff:192.0.2.1",
    "::ffff:c000:201",
    "::FFFF:192.0.2.1",
    "::192.0.2.1",
    "192.0.2.01",
    "3221225985",
  ],
  ...[
    "2001:db8::1",
    "2001:DB8::1",
    "2001:db8:0:0:0:0:0:1",
    "2001:db8::",
    "2001:db8::1/64",
    "[2001:db8::1]",
    "::1",
    "::",
  ],
  ...["a@b.example", "A@b.example", "a+tag@b.example", "a:b", "a:b:c", "a|b", "a,b", "api", "api:alice"],
  ...["k", "kk", "k".repeat(511), "k".repeat(512), `${"k".repeat(511)}l`, `l${"k".repeat(511)}`],
  ...["語".repeat(170), "🦀".repeat(128)],
];

const ask = (key, cost) => ({ policy, key, cost });
/** From 1 to all but one, and different for neighbours in the list. */
const costOf = (index) => 1 + (index % (CAPACITY - 1));

test("the table has no duplicate keys", () => {
  assert.equal(new Set(KEYS).size, KEYS.length);
});

test("each key has its own budget", async () => {
  for (const [index, key] of KEYS.entries()) {
    const { status, body } = await tollgate.consume(ask(key, costOf(index)));
    assert.deepEqual([status, body.remaining], [200, CAPACITY - costOf(index)], `${JSON.stringify(key)} is fresh`);
  }
  for (const [index, key] of KEYS.entries()) {
    const { body } = await tollgate.peek(ask(key, 0));
    assert.equal(body.remaining, CAPACITY - costOf(index), `${JSON.stringify(key)} is as it was left`);
  }
});

test("a key is its text, however JSON escapes it", async () => {
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`; // each UTF-16 unit: two for an emoji
  for (const [index, key] of KEYS.entries()) {
    const body = `{"policy":"${policy}","key":"${key.split("").map(escaped).join("")}","cost":0}`;
    const answer = await tollgate.send({ path: "/v1/peek", body });
    assert.equal(answer.body.remaining, CAPACITY - costOf(index), body);
  }
});

test("no answer contains the key, whatever the cost", async () => {
  for (const [index, key] of KEYS.entries()) {
    const costs = { 1.5: 400, [-1]: 400, [CAPACITY + 1]: 400, [CAPACITY]: 429, 0: 200 };
    for (const [cost, status] of Object.entries(costs)) {
      const answer = await tollgate.consume(ask(key, Number(cost)));
      assert.equal(answer.status, status, `${JSON.stringify(key)}, cost ${cost}: ${answer.text}`);
      if (key.length > 8) assert.ok(!answer.text.includes(JSON.stringify(key).slice(1, -1)), answer.text);
    }
    assert.equal(
      (await tollgate.peek(ask(key, 0))).body.remaining,
      CAPACITY - costOf(index),
      "and its budget is as before",
    );
  }
});

/** Lists, all different: those that a careless encoding would merge, and the texts that it would merge them with. */
const LISTS = [
  ...[["alice"], ["ali", "ce"], ["a", "lice"], ["a", "l", "i", "c", "e"], ["tenant 7", "alice"], ["alice", "tenant 7"]],
  ...[
    ["a", "b"],
    ["ab"],
    ["a,b"],
    ['a","b'],
    ["a:b"],
    ["a", "b", "c"],
    ["a\0b"],
    ["a", "\0", "b"],
    ["\u0001\0a"],
    ["a\u0001\0", "b"],
  ],
  ...[["192.0.2.1"], ["a".repeat(256), "b".repeat(256)], ["a".repeat(255), "a".repeat(257)], Array(8).fill("a")],
];

test("each list has its own budget, shared with no text", async () => {
  for (const [index, key] of LISTS.entries()) {
    const { status, body } = await tollgate.consume(ask(key, costOf(index)));
    assert.deepEqual([status, body.remaining], [200, CAPACITY - costOf(index)], `${JSON.stringify(key)} is fresh`);
  }
  for (const [index, key] of KEYS.entries()) {
    const { body } = await tollgate.peek(ask(key, 0));
    assert.equal(body.remaining, CAPACITY - costOf(index), `${JSON.stringify(key)} is as it was left`);
  }
});

// The cases of express-rate-limit's issue 667 and of those around it: one client, one budget, however the address is written.
test("an address is one key, however it is written", async () => {
  const spend = async (policy, ip) => (await tollgate.consume({ policy, key: { ip } })).body.remaining;
  const rows = [
    ["192.0.2.1", "::ffff:192.0.2.1", "::FFFF:192.0.2.1", "::ffff:c000:201", "0:0:0:0:0:ffff:c000:0201"],
    ["192.0.2.2"],
    ["::ffff:192.0.2.3", "192.0.2.3"],
    ["2001:db8::1", "2001:DB8:0:0:0:0:0:1", "2001:0db8::0001", "2001:db8::ffff:ffff:ffff:ffff"],
    ["2001:db8:0:1::1", "2001:db8:0:1::"],
    ["::192.0.2.1", "::1", "::"], // the first is not IPv4
  ];
  for (const spellings of rows) {
    for (const [index, ip] of spellings.entries()) {
      assert.equal(await spend(policy, ip), CAPACITY - 1 - index, ip);
    }
  }
  assert.deepEqual([await spend("wide", "2001:db8::1"), await spend("wide", "2001:db8:0:ffff::")], [6, 5]);
  assert.equal(await spend("wide", "2001:db8:1::"), 6);
  assert.deepEqual([await spend("single", "2001:db8::1"), await spend("single", "2001:db8::2")], [6, 6]);
  assert.equal((await tollgate.peek(ask("192.0.2.1", 0))).body.remaining, CAPACITY - costOf(KEYS.indexOf("192.0.2.1")));
});

test("an invalid key is refused with the reason, and never shown", async () => {
  const RULE = 'must be a string of 1 to 512 bytes, a list of 1 to 8 strings, or {"ip":"<address>"}';
  const port = "has an `ip` with a port or brackets: give the address alone";
  const zone = 'has an `ip` with a zone (%...) that only an IPv6 address may have, as in "fe80::1%eth0"';
  const zero = "has an `ip` with a leading zero, which some read as octal: write 192.0.2.1, not 192.0.2.01";
  const none = 'has an `ip` that is not an IP address such as "192.0.2.1" or "2001:db8::1"';
  for (const [key, detail] of [
    [null, `${RULE}, not null`],
    [7, `${RULE}, not 7`],
    [[], "is a list of 0; it must have 1 to 8 parts"],
    [Array(9).fill("a"), "is a list of 9; it must have 1 to 8 parts"],
    [["a", ""], "has an empty part 1"],
    [["a", 7], "has a part 1 that is not a string"],
    [["a".repeat(256), "b".repeat(257)], "is 513 bytes long; at most 512 are allowed"],
    [{}, "is an object, so its only field must be `ip`"],
    [{ ip: "192.0.2.1", port: 80 }, "is an object, so its only field must be `ip`"],
    [{ ip: 7 }, "has an `ip` that is not a string"],
    [{ ip: "192.0.2.1:80" }, port],
    [{ ip: "[2001:db8::1]:80" }, port],
    [{ ip: "[2001:db8::1]" }, port],
    [{ ip: "192.0.2.1%eth0" }, zone],
    [{ ip: "192.0.2.01" }, zero],
    [{ ip: "::ffff:192.0.2.01" }, zero],
    [{ ip: "192.0.2.1, 198.51.100.1" }, none], // X-Forwarded-For
    [{ ip: "unknown" }, none],
    [{ ip: "" }, none],
  ]) {
    const answer = await tollgate.consume(ask(key));
    assert.deepEqual([answer.status, answer.body.detail], [400, `\`key\` ${detail}`], JSON.stringify(key));
  }
  const slash = await tollgate.consume(ask({ ip: "192.0.2.0/24" }));
  assert.match(slash.body.detail, /^`key` has an `ip` with a prefix length: give one address/);
});

test("a batch names no budget twice, however its key is written", async () => {
  const batch = (...keys) => tollgate.post("batch", { requests: keys.map((key) => ({ policy, key })) });
  const detail = "requests 0 and 1 have the same policy and key: combine them, with the sum of their costs";
  for (const [a, b] of [
    [{ ip: "198.51.100.1" }, { ip: "::ffff:198.51.100.1" }],
    [{ ip: "2001:db8:2::1" }, { ip: "2001:db8:2::2" }],
    [
      ["a", "b"],
      ["a", "b"],
    ],
  ]) {
    assert.deepEqual((await batch(a, b)).body.detail, detail);
  }
  assert.equal((await batch({ ip: "198.51.100.1" }, "198.51.100.1", ["198.51.100.1"])).status, 200);
});
