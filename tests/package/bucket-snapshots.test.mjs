// Bucket: what it saves, and what it restores.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket } from "../../build/package/index.js";
import { law } from "../random.mjs";
import { assertRefused, checked, describe, MAX, randomLimit, VERBS } from "./buckets.mjs";
import { START } from "./clock.mjs";

law("any saved state continues where it was saved", { seed: 1, cases: 500 }, ({ below, pick, chance }) => {
  const limit = randomLimit({ below, pick, chance });
  const bucket = new Bucket(START, limit);
  let now = START;
  for (let i = below(10); i > 0; i--) {
    now += below(1500);
    bucket.decide(now, { cost: below(8), verb: pick(VERBS) });
  }
  now += below(1500) - (chance(0.2) ? 30_000 : 0);
  const snapshot = bucket.save(now);
  assert.deepEqual(Object.keys(snapshot), ["tokens", "drops", "at"]);
  const other = new Bucket(now + pick([-1e9, 0, 1e9]), limit);
  other.restore(JSON.parse(JSON.stringify(snapshot)));
  assert.deepEqual(other.save(now), snapshot, describe(limit));
  for (let i = 0; i < 10; i++) {
    now += below(700);
    const options = { cost: below(8), verb: pick(VERBS), maxWaitMs: pick([0, 500, Infinity]) };
    assert.deepEqual(other.decide(now, options), bucket.decide(now, options), describe([limit, now, options]));
    assert.deepEqual(other.save(now), bucket.save(now), describe([limit, now, options]));
    assert.deepEqual(
      [other.owed(now), other.fullAt(now)],
      [bucket.owed(now), bucket.fullAt(now)],
      describe([limit, now, options]),
    );
  }
});

test("the snapshot format is pinned", () => {
  const bucket = new Bucket(START, { rate: 3, periodMs: 1000, maxDebt: 2 });
  bucket.decide(START, { cost: 4, verb: "reserve" });
  assert.equal(JSON.stringify(bucket.save(START)), '{"tokens":-1,"drops":0,"at":1700000000000}');
  assert.equal(JSON.stringify(bucket.save(START + 1)), '{"tokens":-1,"drops":3,"at":1700000000001}');
});

test("rejects a snapshot that does not match the limit, and changes nothing", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  bucket.tryConsume(0, 2);
  const good = bucket.save(0);
  // biome-ignore format: a table
  const table = [
    [{ drops: 999 }, { drops: 1000 }], // a whole token's worth
    [{ drops: 0 }, { drops: -1 }],
    [{ tokens: 3 }, { tokens: 4 }],
    [{ tokens: 2, drops: 999 }, { tokens: 3, drops: 1 }], // more than the capacity by a fraction of a token
    [{ at: MAX }, { at: MAX + 1 }],
    [{ at: -MAX }, { at: -MAX - 1 }],
    [{ at: 0 }, { at: 0.5 }],
  ];
  for (const [right, wrong] of table) {
    bucket.restore({ ...good, ...right }, false);
    assertRefused(() => bucket.restore({ ...good, ...wrong }), "snapshot_mismatched", describe(wrong));
    assertRefused(() => bucket.restore({ ...good, ...wrong }, false), "snapshot_mismatched", describe(wrong));
    assert.deepEqual(bucket.save(0), good);
  }
  for (const not of [NaN, Infinity, -Infinity, 1.5, "1", 1n, null, undefined, {}, [1], true, Symbol("x")]) {
    for (const field of ["tokens", "drops", "at"]) {
      assertRefused(() => bucket.restore({ ...good, [field]: not }), "snapshot_mismatched", `${field} ${String(not)}`);
    }
    assertRefused(() => bucket.restore(not), "snapshot_mismatched", String(not));
  }
  assertRefused(() => bucket.restore({ ...good, tokens: -(2 ** 53 - 1) }), "snapshot_mismatched");
  assertRefused(() => bucket.restore(), "snapshot_mismatched");
  assert.deepEqual(
    [bucket.save(0), bucket.tryConsume(0), bucket.peek(0).retryAt],
    [good, true, 334],
    "and the bucket goes on",
  );
});

test("a snapshot from a clock that was far ahead locks no one out", () => {
  // biome-ignore format: a table
  const table = [
    // at          at START, the next token is there at
    [START - 1,    START],
    [START,        START + 334],
    [START + 1,    START + 335],
    [START + 60_000, START + 60_334], // waits for a step back of up to a minute
    [START + 60_001, START + 334],
    [2 ** 52,      START + 334],
    [MAX,          START + 334],
  ];
  for (const [at, retryAt] of table) {
    const bucket = new Bucket(START, { rate: 3, periodMs: 1000 });
    bucket.restore({ tokens: at < START ? 1 : 0, drops: 0, at });
    const answer = checked(bucket).decide(START);
    assert.equal(answer.allowed ? answer.readyAt : answer.retryAt, retryAt, `at ${at}`);
  }
});
