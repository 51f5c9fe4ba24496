// Keys are taken as they are: any two different texts have two budgets.
import assert from "node:assert/strict";
import { test } from "node:test";
import { start } from "./workerd.mjs";

const policy = "api";
const CAPACITY = 7;
const tollgate = await start({ policies: { [policy]: { rate: 1, period: "1day", capacity: CAPACITY } } });

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

test("the table has no key twice", () => {
  assert.equal(new Set(KEYS).size, KEYS.length);
});

test("each key has a budget of its own", async () => {
  for (const [index, key] of KEYS.entries()) {
    const { status, body } = await tollgate.consume(ask(key, costOf(index)));
    assert.deepEqual([status, body.remaining], [200, CAPACITY - costOf(index)], `${JSON.stringify(key)} is fresh`);
  }
  for (const [index, key] of KEYS.entries()) {
    const { body } = await tollgate.peek(ask(key, 0));
    assert.equal(body.remaining, CAPACITY - costOf(index), `${JSON.stringify(key)} is as it was left`);
  }
});

test("a key is its text, however JSON writes it", async () => {
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`; // each UTF-16 unit: two for an emoji
  for (const [index, key] of KEYS.entries()) {
    const body = `{"policy":"${policy}","key":"${key.split("").map(escaped).join("")}","cost":0}`;
    const answer = await tollgate.send({ path: "/v1/peek", body });
    assert.equal(answer.body.remaining, CAPACITY - costOf(index), body);
  }
});

test("an answer never has the key in it, whatever the cost", async () => {
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
