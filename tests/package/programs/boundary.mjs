// The boundary between the package's Bucket and the core, in Node and on a page. The core is built with debug
// assertions.
import { Bucket, init, TollgateError } from "../../../build/package/slim.js";

const MAX = Number.MAX_SAFE_INTEGER,
  MOMENT = 2 ** 52,
  SPAN = 2 ** 51;

/** Runs every check with this core and these files of vectors. Returns how many steps and calls there were. */
export function tryEverything(exports, vectors) {
  init(watched(exports));
  const steps = vectors.map(runVectors);
  numbersCrossUnchanged();
  errorsReportTheLargestValidNumber();
  const calls = survivesAnything();
  decidingTakesNoMemory(exports);
  return { steps, calls };
}

/** Runs the cases of one file of tests/vectors and returns how many steps they had. */
function runVectors(json) {
  let count = 0;
  for (const {
    name,
    limit: { period_ms: periodMs, max_debt: maxDebt, offset_ms: offsetMs, ...limit },
    steps,
  } of JSON.parse(json).cases) {
    const make = () => new Bucket(steps[0].at, { periodMs, maxDebt, offsetMs, ...limit });
    const [bucket, other] = [make(), make()]; // `other` uses the shorthands
    for (const { at, verb, cost, max_wait_ms: maxWaitMs, expect, remaining, why, ...rest } of steps) {
      const row = `${name}: ${at} ${verb} ${cost}`;
      const { allow, wait, never } = expect;
      const expected = allow
        ? { allowed: true, tokens: allow.tokens, readyAt: allow.ready_at }
        : wait
          ? { allowed: false, retryAt: wait.retry_at }
          : { allowed: false, retryAt: Infinity, maxCost: never.max };
      const words = verb === "peek" ? "consume" : verb.replace(/_./g, ([, letter]) => letter.toUpperCase());
      const ask = (bucket) =>
        checked(bucket)[verb === "peek" ? "peek" : "decide"](at, { cost, verb: words, maxWaitMs });
      equal(ask(bucket), expected, row);
      if (verb === "consume") equal(other.tryConsume(at, cost), !!allow, row);
      else equal(verb === "peek" ? checked(other).peek(at, { cost }) : ask(other), expected, row);
      equal([bucket.remaining(at), rest], [remaining, {}], row);
      const snapshot = other.save(at);
      equal(bucket.save(at), snapshot, row);
      const copy = make();
      copy.restore(snapshot);
      equal(copy.save(at), snapshot, row);
      count += 1;
    }
  }
  return count;
}

function numbersCrossUnchanged() {
  for (const now of [-MOMENT, -1, 0, 1, MOMENT]) {
    // The most tokens that can be held or owed.
    const full = { rate: MAX, periodMs: 1 },
      owing = { rate: MAX, periodMs: 1, capacity: 0, maxDebt: MAX };
    // biome-ignore format: a table
    const table = [
      // limit  verb           then                                            remaining  owed  full at
      [full,    "consume",     { allowed: true, tokens: MAX, readyAt: now },   0,         0,    now + 1],
      [full,    "consume",     { allowed: false, retryAt: now + 1 },           0,         0,    now + 1],
      [full,    "refund",      { allowed: true, tokens: MAX, readyAt: now },   MAX,       0,    now],
      [full,    "consumeUpTo", { allowed: true, tokens: MAX, readyAt: now },   0,         0,    now + 1],
      [full,    "reset",       { allowed: true, tokens: MAX, readyAt: now },   MAX,       0,    now],
      [owing,   "consume",     { allowed: false, retryAt: Infinity, maxCost: 0 }, 0,      0,    now],
      [owing,   "borrow",      { allowed: true, tokens: MAX, readyAt: now },   0,         MAX,  now + 1],
      [owing,   "refund",      { allowed: true, tokens: MAX, readyAt: now },   0,         0,    now],
      [owing,   "reserve",     { allowed: true, tokens: MAX, readyAt: now + 1 }, 0,       MAX,  now + 1],
      [owing,   "reset",       { allowed: true, tokens: MAX, readyAt: now },   0,         0,    now],
      [owing,   "charge",      { allowed: true, tokens: MAX, readyAt: now },   0,         MAX,  now + 1],
    ];
    const buckets = new Map([full, owing].map((limit) => [limit, new Bucket(now, limit)]));
    for (const [limit, verb, decision, ...then] of table) {
      const bucket = buckets.get(limit),
        row = `${now} ${limit.capacity} ${verb}`;
      equal(bucket.peek(now, { cost: MAX }), bucket.peek(now, { cost: MAX, maxWaitMs: 0 }), row);
      equal(checked(bucket).decide(now, { cost: MAX, verb }), decision, row);
      equal([bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)], then, row);
    }
    equal(buckets.get(owing).save(now), { tokens: -MAX, drops: 0, at: now });
    buckets.get(full).restore({ tokens: MAX, drops: 0, at: now });
    equal(buckets.get(full).remaining(now), MAX);

    const slowest = new Bucket(now, { rate: 1, periodMs: SPAN });
    equal(
      [slowest.tryConsume(now), checked(slowest).peek(now), slowest.fullAt(now)],
      [true, { allowed: false, retryAt: now + SPAN }, now + SPAN],
    );
    const before = now === MOMENT ? now : now + 1;
    equal(slowest.save(before), { tokens: 0, drops: before - now, at: before });
    slowest.restore({ tokens: 0, drops: SPAN - 1, at: now });
    equal(checked(slowest).peek(now), { allowed: false, retryAt: now + 1 }, "one drop short");

    const budget = new Bucket(now, { rate: 0, periodMs: 1, capacity: MAX });
    equal(
      [budget.fullAt(now), budget.tryConsume(now), budget.fullAt(now), budget.remaining(now)],
      [now, true, Infinity, MAX - 1],
    );
    equal(checked(budget).peek(now, { cost: MAX }), { allowed: false, retryAt: Infinity, maxCost: MAX - 1 });

    const wait = (maxWaitMs) =>
      checked(new Bucket(now, { rate: 1, periodMs: 1000, initial: 0, maxDebt: 1 })).decide(now, {
        verb: "reserve",
        maxWaitMs,
      });
    for (const maxWaitMs of [1000, MAX, Infinity, undefined])
      equal(wait(maxWaitMs), { allowed: true, tokens: 1, readyAt: now + 1000 });
    for (const maxWaitMs of [0, 999]) equal(wait(maxWaitMs), { allowed: false, retryAt: now + 1000 - maxWaitMs });
  }
  const window = new Bucket(-1, { kind: "fixed_window", rate: 1, periodMs: SPAN, offsetMs: SPAN - 1 });
  equal([window.tryConsume(-1), checked(window).peek(-1)], [true, { allowed: false, retryAt: SPAN - 1 }]);
  equal(
    checked(new Bucket(0, { rate: 0, periodMs: 1 })).peek(0),
    { allowed: false, retryAt: Infinity, maxCost: 0 },
    "0 is not absent",
  );
}

function errorsReportTheLargestValidNumber() {
  // biome-ignore format: a table
  const table = [
    // name    largest  a limit with one more
    ["rate",     MAX,     { rate: MAX + 1, periodMs: 1 }],
    ["periodMs", SPAN,    { rate: 1, periodMs: SPAN + 1 }],
    ["capacity", 1,       { rate: 1, periodMs: SPAN, capacity: 2 }],
    ["maxDebt",  0,       { rate: 1, periodMs: SPAN, maxDebt: 1 }],
    ["initial",  3,       { rate: 3, periodMs: 1000, initial: 4 }],
  ];
  for (const [name, max, limit] of table) {
    let error;
    try {
      new Bucket(0, limit);
    } catch (thrown) {
      error = thrown;
    }
    equal([error instanceof TollgateError, error?.code, error?.max], [true, `${name}_too_large`, max], name);
    new Bucket(0, { ...limit, [name]: max });
  }
}

/** Calls every method with any argument. Returns the number of calls. */
function survivesAnything() {
  // biome-ignore format: a table
  const ORDINARY = [
    0, -0, 1, 2, 3, 7, 100, 333, 334, 1000, 59_999, 60_001, 1e6, 1e12, 1.7e12, 2 ** 31, 2 ** 32, SPAN, MOMENT, MAX,
  ];
  // biome-ignore format: a table
  const HOSTILE = [
    NaN, Infinity, -Infinity, -1, -60_001, -MOMENT, -MOMENT - 1, MOMENT + 1, 2 ** 53, -(2 ** 53), 2 ** 63, 2 ** 64,
    1e300, 5e-324, 1.5, -0.5, undefined, null, "", "7", "x", true, false, [], [3], {}, () => {},
    1n, Symbol("x"), new Date(5),
  ];
  const random = mulberry32(20261120);
  const pick = (list) => list[Math.floor(random() * list.length)];
  const any = () => (random() < 0.7 ? pick(ORDINARY) : pick(HOSTILE));
  const maybe = (value) => (random() < 0.5 ? {} : value);
  const calls = {
    tryConsume: (bucket) => bucket.tryConsume(any(), any()),
    peek: (bucket) => bucket.peek(any(), { cost: any() }),
    decide: (bucket) =>
      bucket[pick([true, false]) ? "decide" : "peek"](any(), {
        cost: any(),
        verb: pick(["consume", "reserve", "borrow", "charge", "consumeUpTo", "refund", "reset"]),
        maxWaitMs: any(),
      }),
    remaining: (bucket) => bucket.remaining(any()),
    owed: (bucket) => bucket.owed(any()),
    fullAt: (bucket) => bucket.fullAt(any()),
    save: (bucket) => bucket.save(any()),
    restore: (bucket) =>
      bucket.restore(
        pick([bucket.save(pick([0, 1.7e12])), { tokens: any(), drops: any(), at: any() }, any()]),
        pick([true, false]),
      ),
  };
  let count = 0,
    made = 0;
  const coded = (call, place) => {
    count += 1;
    try {
      return call();
    } catch (error) {
      const isOurs =
        error instanceof TollgateError &&
        /^([a-zA-Z]+_(not_whole|too_small|too_large)|snapshot_mismatched)$/.test(error.code);
      // JavaScript itself rejects values that cannot be converted to a number.
      if (!isOurs && !(error instanceof TypeError)) throw new Error(`${place}: ${error.stack}`);
    }
  };
  for (let round = 0; round < 400; round++) {
    const limit = {
      kind: pick(["token_bucket", "fixed_window"]),
      rate: pick([0, 1, 3, 100, any()]),
      periodMs: pick([1, 1000, 60_000, any()]),
      ...maybe({ capacity: pick([0, 3, 100, any()]) }),
      ...maybe({ maxDebt: pick([0, 50, any()]) }),
      ...maybe({ initial: any() }),
      ...maybe({ offsetMs: any() }),
    };
    const bucket = coded(() => new Bucket(pick([0, 1.7e12, any()]), limit), "new");
    if (!bucket) continue;
    made += 1;
    const { capacity = limit.rate } = limit;
    for (let call = 0; call < 40; call++) {
      const method = pick(Object.keys(calls));
      coded(() => calls[method](bucket), method);
      const left = bucket.remaining(0);
      if (!(left <= capacity && (left === 0 || bucket.owed(0) === 0)))
        throw new Error(`${left} left of ${capacity} after ${method}`);
    }
  }
  if (made < 50) throw new Error(`only ${made} buckets were made`);
  return count;
}

function decidingTakesNoMemory(exports) {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  const before = exports.memory.buffer.byteLength;
  for (let now = 0; now < 100_000; now++) {
    bucket.decide(now, { cost: now % 5 });
    bucket.restore(bucket.save(now));
  }
  equal(exports.memory.buffer.byteLength, before);
}

/** Calls the methods of `bucket`, checks `remaining` and `retryAfterMs` of each answer, and returns the rest. */
function checked(bucket) {
  const check =
    (method) =>
    (now, ...args) => {
      const { remaining, retryAfterMs, ...answer } = bucket[method](now, ...args);
      equal([remaining, retryAfterMs], [bucket.remaining(now), answer.allowed ? 0 : answer.retryAt - now], method);
      return answer;
    };
  return { decide: check("decide"), peek: check("peek") };
}

/** The exports, wrapped to let only whole numbers and booleans through, and an infinite longest wait. */
function watched(exports) {
  const names = ["size", "make", "consume", "decide", "get", "restore"];
  const watch =
    (name) =>
    (...args) => {
      args.forEach((arg, i) => {
        if (
          !Number.isSafeInteger(arg) &&
          typeof arg !== "boolean" &&
          !(name === "decide" && i === 4 && arg === Infinity)
        )
          throw new Error(`${String(arg)} went into ${name}`);
      });
      const result = exports[name](...args);
      if (!Number.isSafeInteger(result) && !(name === "get" && result === Infinity))
        throw new Error(`${result} came out of ${name}`);
      return result;
    };
  return { exports: { memory: exports.memory, ...Object.fromEntries(names.map((name) => [name, watch(name)])) } };
}

function equal(got, expected, row = "") {
  const text = (value) =>
    JSON.stringify(value, (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value));
  if (text(got) !== text(expected)) throw new Error(`${row}: got ${text(got)}, expected ${text(expected)}`);
}

/** A random generator that gives the same numbers each time. */
function mulberry32(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
