// KeyedLimiter: room, forgetting, and what it refuses to take.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { isIPv4, isIPv6 } from "node:net";
import { test } from "node:test";
import { Bucket } from "../../build/package/index.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { assertRefused } from "./buckets.mjs";
import { FakeClock, START } from "./clock.mjs";

const keyed = (limits, options) => {
  const clock = new FakeClock(START);
  return { clock, limiter: new KeyedLimiter(limits, { clock, ...options }) };
};

test("each key has its own budget, any string is a key, and one that is full again is forgotten", async () => {
  const { clock, limiter } = keyed({ rate: 2, periodMs: 1000 });
  for (const key of ["alice", "", "__proto__", "\ud800", "x".repeat(1024)]) {
    assert.deepEqual([limiter.tryConsume(key, 2), limiter.tryConsume(key)], [true, false], key);
  }
  assert.equal(limiter.size, 5);
  await clock.advance(999);
  assert.deepEqual([limiter.remaining("alice"), limiter.size], [1, 5]);
  await clock.advance(1);
  for (let i = 0; i < 3; i++) assert.equal(limiter.remaining("alice"), 2);
  assert.equal(limiter.size, 0);
});

test("every verb has the answers of a limiter", () => {
  const { limiter } = keyed([
    { name: "requests", rate: 2, periodMs: 1000 },
    { name: "bytes", rate: 100, periodMs: 1000, maxDebt: 50 },
  ]);
  const grant = { allowed: true, readyAt: START, retryAfterMs: 0 };
  const cost = { requests: 1, bytes: 60 };
  const nextTokenAt = START + 500; // of the requests
  assert.deepEqual(limiter.decide("a", { cost }), { ...grant, tokens: 60, remaining: 1, nextTokenAt });
  const refusal = { allowed: false, retryAt: START + 200, retryAfterMs: 200, remaining: 1, nextTokenAt };
  assert.deepEqual([limiter.decide("a", { cost }), limiter.peek("a", cost)], [refusal, refusal]);
  const charged = { ...grant, tokens: 80, remaining: 0, nextTokenAt: START + 410 };
  assert.deepEqual(limiter.charge("a", { requests: 0, bytes: 80 }), charged);
  limiter.refund("a", { requests: 0, bytes: 41 });
  assert.equal(limiter.remaining("a"), 1);
  limiter.reset("a");
  assert.equal(limiter.remaining("a"), 2);
  assert.deepEqual(limiter.peek("b"), { ...grant, tokens: 1, remaining: 2, nextTokenAt: Infinity });
});

test("a decision says when the next token comes", async () => {
  const { clock, limiter } = keyed({ rate: 2, periodMs: 1000 });
  const next = (decision) => decision.nextTokenAt - START;
  assert.deepEqual([next(limiter.peek("a")), limiter.size], [Infinity, 0], "it is full");
  assert.deepEqual([next(limiter.decide("a")), next(limiter.decide("a")), next(limiter.decide("a"))], [500, 500, 500]);
  await clock.advance(499);
  assert.equal(next(limiter.peek("a")), 500);
  await clock.advance(1);
  assert.deepEqual([next(limiter.peek("a")), next(limiter.decide("a"))], [1000, 1000]);
  const most = keyed({ rate: Number.MAX_SAFE_INTEGER, periodMs: 1 }).limiter;
  assert.deepEqual([most.peek("a").nextTokenAt, most.decide("a").nextTokenAt], [Infinity, START + 1]);
  const spent = keyed({ rate: 0, periodMs: 1, capacity: 1 }).limiter;
  assert.equal(spent.decide("a").nextTokenAt, Infinity, "none comes");
});

test("when all keys are in use, a new one is refused and the others are served", async () => {
  const { clock, limiter } = keyed({ rate: 2, periodMs: 1000 }, { maxKeys: 1000 });
  const keys = Array.from({ length: 1000 }, (_, i) => `key ${i}`);
  const noRoom = (ms) => {
    const retryAt = clock.now() + ms;
    return { allowed: false, retryAt, retryAfterMs: ms, remaining: 0, nextTokenAt: retryAt };
  };
  assert.ok(keys.every((key) => limiter.tryConsume(key)));
  for (const verb of ["consume", "reserve", "charge"]) {
    assert.deepEqual(limiter.decide("new", { verb, maxWaitMs: 0 }), noRoom(500), verb);
  }
  assert.deepEqual([limiter.peek("new"), limiter.remaining("new")], [noRoom(500), 0]);
  assert.equal(limiter.peek("new", 3).maxCost, 2, "whether or not there is room");
  limiter.refund("new"); // nothing to do
  assert.ok(keys.every((key) => limiter.tryConsume(key)));
  assert.ok(!keys.some((key) => limiter.tryConsume(key)));
  await clock.advance(999);
  assert.deepEqual([limiter.decide("new"), limiter.size], [noRoom(1), 1000]);
  await clock.advance(1);
  assert.deepEqual([limiter.tryConsume("new"), limiter.size < 1000], [true, true]);
});

test("if no key can ever be forgotten, a new one can never pass", () => {
  const { limiter } = keyed({ rate: 0, periodMs: 1, capacity: 5 }, { maxKeys: 1 });
  assert.equal(limiter.tryConsume("a"), true);
  const { retryAt, maxCost } = limiter.decide("b");
  assert.deepEqual([retryAt, maxCost, limiter.remaining("a")], [Infinity, 0, 4]);
});

test("no call forgets many keys, but all are forgotten in the end", async () => {
  const { clock, limiter } = keyed({ rate: 1, periodMs: 1000 });
  for (let i = 0; i < 10_000; i++) limiter.tryConsume(`early ${i}`);
  await clock.advance(5000);
  for (let i = 0; i < 20_000; i++) {
    const { size } = limiter;
    assert.equal(limiter.tryConsume(`late ${i}`), true);
    assert.ok(size - limiter.size <= 2);
    await clock.advance(i % 100 === 0 ? 1000 : 0);
  }
  assert.ok(limiter.size <= 200, `${limiter.size}`);
});

test("a clock that is set back by a year keeps no key for that long", () => {
  let now = START;
  const limiter = new KeyedLimiter({ rate: 5, periodMs: 1000 }, { clock: { now: () => now }, maxKeys: 10 });
  for (let i = 0; i < 10; i++) limiter.tryConsume(`key ${i}`, 5);
  now -= 365 * 86_400_000;
  assert.equal(limiter.decide("new").retryAfterMs, 1000);
  now += 999;
  assert.equal(limiter.tryConsume("new"), false);
  now += 1;
  assert.equal(limiter.tryConsume("new"), true);
});

test("other buckets may make the core's memory grow", () => {
  const { limiter } = keyed({ rate: 2, periodMs: 1000 });
  const others = [];
  for (let i = 0; i < 2000; i++) {
    others.push(new Bucket(0, { rate: 1, periodMs: 1 }));
    assert.equal(limiter.tryConsume("a"), i < 2);
    assert.equal(limiter.tryConsume(`b ${i}`, 2), true);
  }
  assert.equal(others.length, 2000);
});

test("errors say what is wrong, and change nothing", () => {
  const limit = { rate: 2, periodMs: 1000 };
  for (const maxKeys of [0, 16_000_001, 1.5, "10", null]) {
    const error = assertRefused(() => keyed(limit, { maxKeys }), codeOf("maxKeys", maxKeys, 16_000_000));
    assert.deepEqual([error.min, error.max], [1, 16_000_000]);
  }
  assertRefused(() => keyed([]), "limits_too_small");
  assertRefused(() => keyed({ ...limit, rate: -1 }), "rate_too_small");
  const { limiter } = keyed(limit);
  limiter.tryConsume("a");
  const calls = {
    tryConsume: (key, cost) => limiter.tryConsume(key, cost),
    decide: (key, cost) => limiter.decide(key, { cost }),
    peek: (key, cost) => limiter.peek(key, cost),
    charge: (key, cost) => limiter.charge(key, cost),
    refund: (key, cost) => limiter.refund(key, cost),
  };
  for (const [name, call] of Object.entries(calls)) {
    for (const key of [undefined, null, 7, ["a"], Symbol("a")]) {
      const { message } = assertRefused(() => call(key), "key_not_text", name);
      assert.ok(message.includes(String(key)), message);
    }
    const error = assertRefused(() => call("x".repeat(1025)), "key_too_large", name);
    assert.deepEqual([error.max, error.message], [1024, "key must have from 0 to 1024 characters, not 1025"]);
    for (const key of ["a", "new"]) {
      assertRefused(() => call(key, -1), "cost_too_small", name);
      assertRefused(() => call(key, 0.5), "cost_not_whole", name);
      assertRefused(() => call(key, { any: 1 }), "cost_not_whole", name);
    }
  }
  for (const key of [undefined, 7]) {
    assertRefused(() => limiter.remaining(key), "key_not_text");
    assertRefused(() => limiter.reset(key), "key_not_text");
  }
  assertRefused(() => limiter.decide("a", { verb: "take" }), "verb_unknown");
  assert.deepEqual([limiter.remaining("a"), limiter.size], [1, 1]);
  for (const moment of [Number.NaN, 0.5, Infinity]) {
    let now = START;
    const broken = new KeyedLimiter(limit, { clock: { now: () => now } });
    broken.tryConsume("a");
    now = moment;
    assertRefused(() => broken.tryConsume("a"), codeOf("now", moment, 2 ** 52));
    now = START;
    assert.deepEqual([broken.remaining("a"), broken.remaining("b")], [1, 2]);
  }
});

function codeOf(name, value, max) {
  return `${name}_${value < (name === "now" ? -max : 1) ? "too_small" : value > max ? "too_large" : "not_whole"}`;
}

const vectors = JSON.parse(readFileSync(new URL("../vectors/addresses/networks.json", import.meta.url), "utf8"));

test("two addresses share a budget exactly if they are in one network, in every notation", () => {
  for (const ipv6Prefix of new Set(vectors.networks.map(({ ipv6_prefix = 64 }) => ipv6_prefix))) {
    const { limiter } = keyed({ rate: 1, periodMs: 1000 }, { ipv6Prefix });
    const seen = new Set();
    for (const { ip, ipv6_prefix = 64, network } of vectors.networks) {
      if (ipv6_prefix !== ipv6Prefix) continue;
      assert.equal(limiter.tryConsume({ ip }), !seen.has(network), `${ip} in ${network}`);
      seen.add(network);
      const [first] = network.split("/");
      assert.equal(limiter.peek({ ip: first }).allowed, false, `${first} is in ${network}`);
    }
    assert.equal(limiter.size, seen.size);
  }
  const { limiter } = keyed({ rate: 1, periodMs: 1000 });
  assert.deepEqual(
    ["2001:db8::1", "2001:db8::2"].map((ip) => limiter.tryConsume({ ip })),
    [true, false],
    "64 bits",
  );
});

test("no text shares an address's budget", () => {
  const { limiter } = keyed({ rate: 1, periodMs: 1000 });
  for (const ip of ["192.0.2.1", "2001:db8::1"]) {
    assert.ok(limiter.tryConsume({ ip }));
    const texts = [ip, "49152.513", "2001:db8:0:0"];
    for (const text of texts.flatMap((text) => [text, `\0${text}`, `\0\0${text}`])) {
      assert.ok(limiter.tryConsume(text), JSON.stringify(text));
      limiter.reset(text);
    }
    assert.ok(!limiter.tryConsume({ ip }));
  }
});

test("anything but a bare address is refused with a correction, and keeps no key", () => {
  const { limiter } = keyed({ rate: 1, periodMs: 1000 });
  for (const { ip } of vectors.refused) {
    const { message } = assertRefused(() => limiter.tryConsume({ ip }), "ip_malformed", JSON.stringify(ip));
    assert.match(message, /such as "192\.0\.2\.1" or "2001:db8::1", without a port/);
  }
  for (const [key, shown] of [
    [{}, "[object Object]"],
    [{ ip: undefined }, "{ ip: undefined }"],
    [{ ip: 7 }, "{ ip: number }"],
    [{ ip: ["192.0.2.1"] }, "{ ip: object }"],
    [["a"], "a"],
  ]) {
    const { message } = assertRefused(() => limiter.tryConsume(key), "key_not_text", shown);
    assert.ok(message.endsWith(`, not ${shown}`), message);
  }
  for (const ipv6Prefix of [31, 129, 64.5]) {
    assert.throws(() => keyed({ rate: 1, periodMs: 1 }, { ipv6Prefix }), { code: /^ipv6Prefix_/ });
  }
  assert.equal(limiter.size, 0);
});

test("addresses are parsed as Node and the URL parser do", () => {
  const pieces = [
    "0",
    "1",
    "ffff",
    "64",
    "ff9b",
    "10000",
    "g",
    ":",
    "::",
    ":",
    "1.2.3.4",
    "255.0.0.256",
    "01.2.3.4",
    ".",
  ];
  const { limiter } = keyed({ rate: 1, periodMs: 1000 }, { ipv6Prefix: 128 });
  let seed = 7;
  const random = (below) => {
    seed = (seed * 48271) % 2147483647;
    return seed % below;
  };
  let read = 0;
  for (let round = 0; round < 20_000; round++) {
    const ip = Array.from({ length: 1 + random(16) }, () => pieces[random(pieces.length)]).join("");
    const isAddress = isIPv4(ip) || isIPv6(ip);
    if (!isAddress) {
      assert.throws(() => limiter.peek({ ip }), { code: "ip_malformed" }, ip);
      continue;
    }
    read++;
    limiter.reset({ ip });
    assert.ok(limiter.tryConsume({ ip }), ip);
    const same = isIPv4(ip) ? ip : new URL(`http://[${ip}]`).hostname.slice(1, -1);
    assert.ok(!limiter.tryConsume({ ip: same }), `${ip} is ${same}`);
  }
  assert.ok(read > 100, `${read} addresses`);
});
