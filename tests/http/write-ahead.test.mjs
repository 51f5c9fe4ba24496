// Memory is ahead of storage: a crash costs at most a block of tokens and never gives any back, nothing is lost once
// spending has paused, and a busy key writes few rows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { commits, contents } from "./database.mjs";
import { NOW, start } from "./workerd.mjs";

const key = "alice";
/** In whole tokens, rounded down: a crash may cost more than is left, and the rest is owed. */
const levelOf = async (tollgate, policy, options) => {
  const { remaining, owed = 0 } = (await tollgate.peek({ policy, key, cost: 0 }, options)).body;
  return remaining - owed;
};

test("killed repeatedly under load: no more than the exact model admits, and no more lost than a block", async (t) => {
  const KILLS = 60;
  const POLICIES = {
    filling: { rate: 3, period: "70ms", capacity: 90, write_ahead: 8 },
    budget: { rate: 0, period: "70ms", capacity: 9_000, write_ahead: 10 },
  };
  const tollgate = await start({ policies: POLICIES });
  const buckets = Object.entries(POLICIES).map(([policy, numbers]) => new Bounds(policy, 70, numbers));
  let now = NOW;
  for (let kill = 0; kill < KILLS; kill++) {
    // Between two kills the refill is less than what is spent, or more than the bucket holds.
    const ms = [0, 1, 23, 331, 999, 1_000, 4_001][kill % 7];
    now += ms;
    for (const bucket of buckets) bucket.wait(ms);

    // Few callers, so that kills fall between two rows, and many, so that they fall while one is in flight.
    const callers = [1, 3, 16][kill % 3];
    const most = 1 + ((kill * 37) % (14 + 6 * callers));
    let sent = 0;
    let answered = 0;
    let killed;
    const caller = async () => {
      while (!killed) {
        const bucket = buckets[sent % 2];
        const cost = [1, 1, 2, 3, 0][sent++ % 5];
        try {
          bucket.answered(await tollgate.consume({ policy: bucket.policy, key, cost }, { now }));
        } catch (error) {
          if (!killed) throw error;
          bucket.unanswered(cost);
        }
        if (++answered === most) killed = tollgate.kill();
      }
      await killed;
    };
    await Promise.all(Array.from({ length: callers }, caller));
    await tollgate.restart();
    for (const bucket of buckets) bucket.crashed(await levelOf(tollgate, bucket.policy, { now }));
  }
  for (const bucket of buckets) {
    const { policy, block, given, admitted, refusals, mayHave, lost } = bucket;
    const left = await levelOf(tollgate, policy, { now });
    t.diagnostic(
      `${policy}: ${KILLS} kills; of ${given.toFixed(1)} tokens ${admitted} were admitted and the level is ${left}; ` +
        `${mayHave} were not answered, ${lost} surely lost of ${KILLS * block} at most; ${refusals} requests were refused`,
    );
    assert.ok(lost > 0 && mayHave > 0 && admitted > 0, "the test had something to lose");
    assert.ok(admitted + left <= given);
    assert.ok(admitted + left + 1 + mayHave + KILLS * block > given);
    if (left > 0)
      assert.equal(
        (await tollgate.consume({ policy, key, cost: left }, { now })).status,
        200,
        "the tokens it reports can be taken",
      );
    assert.equal((await tollgate.consume({ policy, key }, { now })).status, 429);
  }
  await tollgate.stop();
});

/** A caller's knowledge of a bucket. Levels are in drops, of which a rate of 1 adds one each millisecond. */
class Bounds {
  admitted = 0;
  refusals = 0;
  /** Tokens of requests whose answer was lost. */
  mayHave = 0;
  /** Whole tokens that a kill has cost, whether or not those requests were granted. */
  lost = 0;

  constructor(policy, periodMs, { rate, capacity, write_ahead: block }) {
    Object.assign(this, { policy, periodMs, rate, block });
    this.full = capacity * periodMs;
    this.givenParts = this.full;
    /** The level of the exact model, which counts admitted requests only; then the highest and the lowest it can be. */
    this.exact = this.most = this.least = this.full;
  }

  /** The capacity and the refill of the exact model. */
  get given() {
    return this.givenParts / this.periodMs;
  }

  wait(ms) {
    const filled = (level) => Math.min(this.full, level + this.rate * ms);
    this.givenParts += filled(this.exact) - this.exact;
    for (const level of ["exact", "most", "least"]) this[level] = filled(this[level]);
  }

  answered({ status, body }) {
    assert.ok(status === 200 || status === 429, JSON.stringify(body));
    if (status === 429) return void this.refusals++;
    this.admitted += body.cost;
    for (const level of ["exact", "most", "least"]) this[level] -= body.cost * this.periodMs;
    assert.ok(this.exact >= 0 && this.most >= 0, `${this.policy} admitted more than it had`);
  }

  unanswered(cost) {
    this.mayHave += cost;
    this.least -= cost * this.periodMs;
  }

  /** After a kill it reports this many left. */
  crashed(left) {
    const whole = (level) => Math.floor(level / this.periodMs);
    const numbers = `${left} left, from ${this.least / this.periodMs} to ${this.most / this.periodMs} before`;
    assert.ok(left <= whole(this.most), `${this.policy} was given some: ${numbers}`);
    assert.ok(left >= whole(this.least) - this.block, `${this.policy} lost more than a block: ${numbers}`);
    this.lost += Math.max(0, whole(this.least) - left);
    this.least = left * this.periodMs;
    this.most = Math.min(this.most, (left + 1) * this.periodMs - 1);
  }
}

test("once spending has paused for a second, storage has the exact level, and a kill loses nothing", async () => {
  const policies = { api: { rate: 0, period: "1s", capacity: 100, write_ahead: 20 } };
  const tollgate = await start({ policies });
  const spend = async (count) => {
    for (let i = 0; i < count; i++) assert.equal((await tollgate.consume({ policy: "api", key })).status, 200);
  };
  await spend(8);
  await tollgate.kill();
  await tollgate.restart();
  assert.equal(
    await levelOf(tollgate, "api"),
    100 - 2 - 20,
    "without a pause: the first is written as it is, with the second a block",
  );

  await spend(8);
  const [file] = tollgate.databaseFiles();
  const [[, ahead]] = contents(file).rows;
  await changed(() => contents(file).rows[0][1], ahead);
  const written = commits(file);
  await tollgate.kill();
  await tollgate.restart();
  assert.equal(await levelOf(tollgate, "api"), 70);
  assert.ok(written < 8);
  await tollgate.stop();
});

/** Waits until it reads another value. */
async function changed(read, before) {
  for (const started = Date.now(); read().equals(before); ) {
    if (Date.now() - started > 10_000) throw new Error("it has not changed in 10 seconds");
    await sleep(20);
  }
}

test("a busy key writes few rows, one that stays nearly full a row a minute, a quiet one a row for each grant, and refusals none", async (t) => {
  const tollgate = await start({ policies: { api: { rate: 1_000, period: "1s", write_ahead: 50 } } });
  const REQUESTS = 200;
  // Milliseconds between requests, then the least and the most commits. Each row is a commit.
  for (const [ms, cost, status, least, most] of [
    [0, 1, 200, REQUESTS / 50, 20],
    [1_000, 1, 200, 4, 12],
    [61_000, 1, 200, REQUESTS, REQUESTS],
    [0, 1_000, 429, 0, 0],
  ]) {
    await tollgate.consume({ policy: "api", key: `${ms} ${cost}` });
    const file = tollgate.databaseFiles().find((file) => !seen.has(file));
    seen.add(file);
    const before = commits(file);
    for (let i = 1; i <= REQUESTS; i++) {
      const answer = await tollgate.consume({ policy: "api", key: `${ms} ${cost}`, cost }, { now: NOW + i * ms });
      assert.equal(answer.status, status);
    }
    const written = commits(file) - before;
    t.diagnostic(`${REQUESTS} requests, one every ${ms} ms, answered ${status}: ${written} commits`);
    assert.ok(written >= least && written <= most, `${written}`);
  }
  await tollgate.stop();
});

const seen = new Set();
