// The exports of src/js/exports.rs, called from JavaScript. Each test gets the exports of its module, and returns how
// much it tried.

const MAX = Number.MAX_SAFE_INTEGER,
  MOMENT = 2 ** 52,
  SPAN = 2 ** 51;
const VERBS = ["consume", "reserve", "borrow", "charge", "consume_up_to", "refund", "reset"];

/** Runs the cases of one file of tests/vectors. */
export function runVectors(exports, json) {
  let count = 0;
  for (const { name, limit, steps } of JSON.parse(json).cases) {
    const bucket = new Bucket(exports, steps[0].at, limit),
      other = new Bucket(exports, steps[0].at, limit), // is asked by `consume`, where that will do
      copy = new Bucket(exports, steps[0].at, limit);
    for (const { at, verb, cost, max_wait_ms: maxWait = Infinity, expect, remaining, why, ...rest } of steps) {
      const row = `${name}: ${at} ${verb} ${cost}`;
      equal(rest, {}, row);
      const isPeek = verb === "peek",
        asked = isPeek ? "consume" : verb;
      equal(bucket.decide(at, cost, asked, maxWait, !isPeek), expect, row);
      if (verb === "consume") equal(other.consume(at, cost), expect.allow !== undefined, row);
      else other.decide(at, cost, asked, maxWait, !isPeek);
      const [tokens, drops, moment] = bucket.state(at);
      equal(Math.max(tokens, 0), remaining, row);
      equal(other.state(at), bucket.state(at), row);
      equal(copy.restore(tokens, drops, moment, false), true, row);
      copy.restore(tokens, drops, moment, true);
      equal(copy.state(at), bucket.state(at), row);
      count += 1;
    }
  }
  return count;
}

/** Extreme numbers cross unchanged. */
export function extremes(exports) {
  const moments = [-MOMENT, -1, 0, 1, MOMENT];
  for (const now of moments) {
    // The most tokens that a bucket can hold or owe.
    const full = new Bucket(exports, now, { rate: MAX, period_ms: 1 });
    const owing = new Bucket(exports, now, { rate: MAX, period_ms: 1, capacity: 0, max_debt: MAX });
    const table = [
      // verb                    answer                                     tokens, drops, at, full at
      [full, "consume", { allow: { tokens: MAX, ready_at: now } }, [0, 0, now, now + 1]],
      [full, "consume", { wait: { retry_at: now + 1 } }, [0, 0, now, now + 1]],
      [full, "refund", { allow: { tokens: MAX, ready_at: now } }, [MAX, 0, now, now]],
      [full, "consume_up_to", { allow: { tokens: MAX, ready_at: now } }, [0, 0, now, now + 1]],
      [full, "reset", { allow: { tokens: MAX, ready_at: now } }, [MAX, 0, now, now]],
      [owing, "consume", { never: { max: 0 } }, [0, 0, now, now]],
      [owing, "borrow", { allow: { tokens: MAX, ready_at: now } }, [-MAX, 0, now, now + 1]],
      [owing, "refund", { allow: { tokens: MAX, ready_at: now } }, [0, 0, now, now]],
      [owing, "reserve", { allow: { tokens: MAX, ready_at: now + 1 } }, [-MAX, 0, now, now + 1]],
      [owing, "reset", { allow: { tokens: MAX, ready_at: now } }, [0, 0, now, now]],
      [owing, "charge", { allow: { tokens: MAX, ready_at: now } }, [-MAX, 0, now, now + 1]],
    ];
    for (const [bucket, verb, answer, then] of table) {
      const before = bucket.state(now);
      equal(bucket.decide(now, MAX, verb, Infinity, false), answer, `${now} ${verb}, not applied`);
      equal(bucket.state(now), before, `${now} ${verb}, not applied`);
      equal(bucket.decide(now, MAX, verb), answer, `${now} ${verb}`);
      equal(bucket.state(now), then, `${now} ${verb}`);
    }
    equal(full.restore(MAX, 0, now, true), true);
    equal(full.state(now), [MAX, 0, now, now]);

    const slowest = new Bucket(exports, now, { rate: 1, period_ms: SPAN });
    equal([slowest.consume(now, 1), slowest.consume(now, 1)], [true, false]);
    equal(slowest.decide(now, 1, "consume"), { wait: { retry_at: now + SPAN } });
    const next = now === MOMENT ? now : now + 1;
    equal(slowest.state(next), [0, next - now, next, now + SPAN]);
    equal(slowest.restore(0, SPAN - 1, now, true), true);
    equal(slowest.decide(now, 1, "consume"), { wait: { retry_at: now + 1 } }, "a drop is missing");

    const budget = new Bucket(exports, now, { rate: 0, period_ms: 1, capacity: MAX });
    equal(budget.state(now), [MAX, 0, now, now]);
    equal(budget.consume(now, 1), true);
    equal(budget.state(now), [MAX - 1, 0, now, Infinity]);
    equal(budget.decide(now, MAX, "consume"), { never: { max: MAX - 1 } });

    const reserved = (maxWait) =>
      new Bucket(exports, now, { rate: 1, period_ms: 1000, initial: 0, capacity: 1, max_debt: 1 }).decide(
        now,
        1,
        "reserve",
        maxWait,
      );
    for (const maxWait of [1000, MAX, Infinity])
      equal(reserved(maxWait), { allow: { tokens: 1, ready_at: now + 1000 } });
    for (const maxWait of [0, 999]) equal(reserved(maxWait), { wait: { retry_at: now + 1000 - maxWait } });
  }
  const window = new Bucket(exports, -1, { kind: "fixed_window", rate: 1, period_ms: SPAN, offset_ms: SPAN - 1 });
  equal(window.consume(-1, 1), true);
  equal(window.decide(-1, 1, "consume"), { wait: { retry_at: SPAN - 1 } });
  return moments.length;
}

/** One more than the largest is refused; the largest is not. */
export function tooLarge(exports) {
  const table = [
    // position  largest  too large by one
    [1, "rate", MAX, { rate: MAX + 1, period_ms: 1, capacity: 1 }],
    [2, "period_ms", SPAN, { rate: 1, period_ms: SPAN + 1 }],
    [3, "capacity", 1, { rate: 1, period_ms: SPAN, capacity: 2 }],
    [4, "max_debt", 0, { rate: 1, period_ms: SPAN, max_debt: 1 }],
    [5, "initial", 3, { rate: 3, period_ms: 1000, initial: 4 }],
  ];
  for (const [position, name, largest, limit] of table) {
    equal(make(exports, 0, limit).refused, { position, largest }, name);
    equal(make(exports, 0, { ...limit, [name]: largest }).refused, undefined, name);
  }
  return table.length;
}

/** Arbitrary arguments for every export: the module's own checks find nothing, and no bucket is above its capacity. */
export function anything(exports) {
  const random = mulberry32(20261120);
  const below = (n) => Math.floor(random() * n),
    pick = (list) => list[below(list.length)],
    chance = (p) => random() < p;
  const NUMBERS = [0, -0, 1, 2, 3, 7, 100, 334, 1000, 60_001, 1e6, 1e12, 1.7e12, 2 ** 31, 2 ** 32, SPAN, MOMENT, MAX];
  const OTHERS = [NaN, Infinity, -Infinity, -1, -60_001, -MOMENT - 1, MOMENT + 1, 2 ** 53, 2 ** 63, 2 ** 64];
  const ODD = [1e300, 5e-324, 1.5, -0.5, undefined, null, "", "7", "x", true, false, [], [3], {}, new Date(5)];
  const any = () => (chance(0.7) ? pick(NUMBERS) : pick(chance(0.5) ? OTHERS : ODD));
  const likely = (value) => (chance(0.8) ? value : any());
  let count = 0,
    made = 0;
  for (let round = 0; round < 400; round++) {
    const { bucket } = make(exports, likely(pick([0, 1.7e12])), {
      kind: pick(["token_bucket", "fixed_window"]),
      rate: likely(pick([0, 1, 3, 100])),
      period_ms: likely(pick([1, 1000, 60_000])),
      capacity: likely(pick([0, 3, 100])),
      max_debt: likely(pick([0, 50])),
      initial: likely(0),
      offset_ms: likely(0),
    });
    count += 1;
    if (!bucket) continue;
    made += 1;
    const [capacity] = full(bucket);
    const calls = [
      () => bucket.consume(any(), any()),
      () => bucket.decide(any(), any(), pick(VERBS), any(), pick([true, false])),
      () => exports.decide(bucket.address, below(20), any(), any(), any(), any()),
      () => bucket.state(any()),
      () => exports.get(bucket.address, below(20), any()),
      () => bucket.restore(any(), any(), any(), any()),
    ];
    for (let call = 0; call < 40; call++) {
      const which = below(calls.length);
      calls[which]();
      count += 1;
      const [tokens, drops] = bucket.state(0);
      if (!(tokens < capacity || (tokens === capacity && drops === 0)))
        throw new Error(`${tokens} and ${drops} drops of ${capacity} after ${calls[which]}`);
    }
  }
  if (made < 50) throw new Error(`only ${made} were made`);
  return count;
}

/** Deciding allocates no memory. */
export function memory(exports) {
  const bucket = new Bucket(exports, 0, { rate: 3, period_ms: 1000 });
  const before = exports.memory.buffer.byteLength;
  const decisions = 100_000;
  for (let now = 0; now < decisions; now++) {
    bucket.decide(now, now % 5, "consume");
    const [tokens, drops, at] = bucket.state(now);
    bucket.restore(tokens, drops, at, true);
  }
  equal(exports.memory.buffer.byteLength, before);
  return decisions;
}

/** A bucket at an address of its own. Each method is an export, called without checks. */
class Bucket {
  constructor(exports, now, limit) {
    const { bucket, refused } = make(exports, now, limit);
    equal(refused, undefined);
    Object.assign(this, bucket);
  }

  consume(now, cost) {
    return Boolean(this.exports.consume(this.address, now, cost));
  }

  decide(now, cost, verb, maxWait = Infinity, apply = true) {
    const answer = this.exports.decide(this.address, VERBS.indexOf(verb), now, cost, maxWait, apply);
    const [tokens, at] = [0, 1].map((which) => this.exports.get(this.address, which, now));
    if (answer === 0) return { allow: { tokens, ready_at: at } };
    if (answer === 1) return { wait: { retry_at: at } };
    if (answer === 2) return { never: { max: tokens } };
    throw new Error(`an answer of ${answer}`);
  }

  /** Tokens, drops and moment of the snapshot, and when it is full. */
  state(now) {
    return [2, 3, 4, 5].map((which) => this.exports.get(this.address, which, now));
  }

  restore(tokens, drops, at, apply) {
    return Boolean(this.exports.restore(this.address, tokens, drops, at, apply));
  }
}

/** A bucket, or the number that `make` reports as too large. */
function make(exports, now, limit) {
  const { kind, rate, period_ms, capacity = rate, max_debt = 0, initial = capacity, offset_ms = 0 } = limit;
  const address = allocate(exports);
  const windows = kind === "fixed_window",
    max = address + exports.size();
  const position = exports.make(address, max, windows, now, rate, period_ms, capacity, max_debt, initial, offset_ms);
  if (position !== 0) return { refused: { position, largest: new Float64Array(exports.memory.buffer, max, 1)[0] } };
  return { bucket: Object.assign(Object.create(Bucket.prototype), { exports, address }) };
}

/** What a bucket holds when full. */
function full(bucket) {
  bucket.decide(0, 0, "reset");
  return bucket.state(0);
}

/** Memory for one bucket and a number behind it. It is never given back: a test makes few. */
function allocate(exports) {
  const bytes = exports.size() + 8;
  if (free.bytes < bytes) Object.assign(free, { address: exports.memory.grow(1) * PAGE, bytes: PAGE });
  free.bytes -= bytes;
  free.address += bytes;
  return free.address - bytes;
}
const PAGE = 65_536;
const free = { address: 0, bytes: 0 };

function equal(got, expected, row = "") {
  const text = (value) =>
    JSON.stringify(value, (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value));
  if (text(got) !== text(expected)) throw new Error(`${row}: got ${text(got)}, expected ${text(expected)}`);
}

/** Numbers that look random and are the same each time. The runner's server knows no type for tests/random.mjs. */
function mulberry32(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
