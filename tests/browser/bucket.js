// What a page sees of the class. Each test is given some bucket, because a bucket knows its class.

/** Runs the cases of one file of tests/vectors and returns how many steps they had. */
export function runVectors({ constructor: Bucket }, json) {
  let steps = 0;
  for (const { name, limit, steps: all } of JSON.parse(json).cases) {
    const bucket = make(Bucket, all[0].at, limit);
    for (const step of all) {
      steps += 1;
      const { at, verb, cost, max_wait_ms, expect, remaining, why, ...rest } = step;
      equal(rest, {}, "unknown fields");
      const method = verb.replace(/_./g, ([, letter]) => letter.toUpperCase());
      const got = { ...answer(bucket, bucket[method](at, cost, max_wait_ms)), remaining: bucket.remaining(at) };
      equal(got, { ...expect, remaining }, `${name}, step ${JSON.stringify(step)}`);
    }
    bucket.free();
  }
  return steps;
}

function make(Bucket, now, limit) {
  const { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, ...rest } = limit;
  equal(rest, {}, "unknown numbers");
  if (kind === "token_bucket" && offset_ms === undefined) {
    return Bucket.tokenBucket(now, rate, period_ms, capacity, max_debt, initial);
  }
  equal(kind, "fixed_window", "kind");
  return Bucket.fixedWindow(now, rate, period_ms, capacity, max_debt, initial, offset_ms);
}

/** The answer as the vectors write it. */
function answer(bucket, granted) {
  const { tokens, readyAt, retryAt, maxCost } = bucket;
  const said = [granted !== false, tokens !== undefined, readyAt !== undefined, retryAt !== undefined, maxCost !== undefined];
  switch (said.map(Number).join("")) {
    case "11100": return { allow: { tokens, ready_at: readyAt } };
    case "00010": return { wait: { retry_at: retryAt } };
    case "00001": return { never: { max: maxCost } };
    default: throw new Error(`no answer looks like this: ${granted} ${[tokens, readyAt, retryAt, maxCost]}`);
  }
}

export function aNewBucketHasAnsweredNothing({ constructor: Bucket }) {
  const { tokens, readyAt, retryAt, maxCost } = Bucket.tokenBucket(0, 1, 1000);
  equal([tokens, readyAt, retryAt, maxCost], [undefined, undefined, undefined, undefined]);
}

// 3 per second and no more than 3 at once, up to 2 owed.
export function eachVerbDoesWhatItSays({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000, 3, 2);
  const table = [
    // now   method         arguments     returns    then
    [0,      "peek",        [3],          true,      { allow: { tokens: 3, ready_at: 0 } }, 3, 0, 0],
    [0,      "consume",     [2],          true,      { allow: { tokens: 2, ready_at: 0 } }, 1, 0, 667],
    [0,      "consume",     [2],          false,     { wait: { retry_at: 334 } }, 1, 0, 667],
    [0,      "consume",     [4],          false,     { never: { max: 3 } }, 1, 0, 667],
    [0,      "consumeUpTo", [2],          true,      { allow: { tokens: 1, ready_at: 0 } }, 0, 0, 1000],
    [0,      "consumeUpTo", [2],          false,     { wait: { retry_at: 334 } }, 0, 0, 1000],
    [0,      "reserve",     [1, 0],       false,     { wait: { retry_at: 334 } }, 0, 0, 1000],
    [0,      "reserve",     [1, 333],     false,     { wait: { retry_at: 1 } }, 0, 0, 1000],
    [0,      "reserve",     [1, 334],     true,      { allow: { tokens: 1, ready_at: 334 } }, 0, 1, 1334],
    [0,      "reserve",     [1],          true,      { allow: { tokens: 1, ready_at: 667 } }, 0, 2, 1667],
    [0,      "reserve",     [1],          false,     { wait: { retry_at: 334 } }, 0, 2, 1667],
    [667,    "borrow",      [2],          true,      { allow: { tokens: 2, ready_at: 667 } }, 0, 2, 2334],
    [667,    "charge",      [1],          undefined, { allow: { tokens: 0, ready_at: 667 } }, 0, 2, 2334],
    [667,    "refund",      [3],          undefined, { allow: { tokens: 3, ready_at: 667 } }, 1, 0, 1334],
    [667,    "charge",      [1],          undefined, { allow: { tokens: 1, ready_at: 667 } }, 0, 0, 1667],
    [667,    "reset",       [],           undefined, { allow: { tokens: 3, ready_at: 667 } }, 3, 0, 667],
  ];
  for (const [now, method, args, returns, said, remaining, owed, fullAt] of table) {
    const row = `${now} ${method} ${args}`;
    const returned = bucket[method](now, ...args);
    equal(returned, returns, row);
    equal(answer(bucket, returned), said, row);
    equal([bucket.remaining(now), bucket.owed(now), bucket.fullAt(now)], [remaining, owed, fullAt], row);
  }
}

export function absentIsNotZero({ constructor: Bucket }) {
  for (const absent of [undefined, null]) {
    const bucket = Bucket.tokenBucket(0, 5, 1000, absent, absent, absent);
    equal(bucket.remaining(0), 5, "capacity is the rate, initial is the capacity");
    bucket.consume(0, absent);
    equal(bucket.remaining(0), 4, "a cost is 1");
    bucket.consume(0, 0);
    equal([bucket.tokens, bucket.remaining(0)], [0, 4], "a cost of 0 is 0");
    bucket.consume(0, 4);
    equal(bucket.reserve(0, 1, 1000), false, "no debt is allowed");
  }
  equal(Bucket.tokenBucket(0, 5, 1000, 5, 0, 0).remaining(0), 0, "initial 0");
  const empty = Bucket.tokenBucket(0, 5, 1000, 0, 5);
  equal([empty.consume(0), empty.maxCost], [false, 0], "capacity 0, and a largest cost of 0 is not none");
  equal(empty.reserve(0, 1, 0), false, "a wait of 0 is now or never");
  equal(empty.reserve(0, 1), true, "no longest wait");
  equal(empty.reserve(0, 1, null), true, "no longest wait");
  const budget = Bucket.tokenBucket(0, 0, 1000, 5);
  equal(budget.fullAt(7), 7, "full now");
  budget.consume(0);
  equal(budget.fullAt(7), undefined, "never full again");
  const early = Bucket.fixedWindow(-1, 1, 1000);
  equal([early.consume(-1), early.readyAt], [true, -1]);
  equal([early.consume(-1), early.retryAt], [false, 0], "a moment of 0 is a moment");
}

export function everyErrorHasItsOwnCode({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000);
  const token = (...args) => () => Bucket.tokenBucket(...args);
  const fixed = (...args) => () => Bucket.fixedWindow(...args);
  const MAX = Number.MAX_SAFE_INTEGER, MOMENT = 2 ** 52, SPAN = 2 ** 51;
  const table = [
    // parameter      one too little or none at all               one too much                               min      max
    ["now",           [() => bucket.consume(-MOMENT - 1),         () => bucket.consume(MOMENT + 1)],         -MOMENT, MOMENT],
    ["now",           [() => bucket.remaining(-MOMENT - 1),       () => bucket.remaining(MOMENT + 1)],       -MOMENT, MOMENT],
    ["now",           [() => bucket.owed(-Infinity),              () => bucket.owed(Infinity)],              -MOMENT, MOMENT],
    ["now",           [() => bucket.fullAt(-Infinity),            () => bucket.fullAt(Infinity)],            -MOMENT, MOMENT],
    ["now",           [() => bucket.reset(-1e300),                () => bucket.reset(1e300)],                -MOMENT, MOMENT],
    ["now",           [token(-MOMENT - 1, 3, 1000),               token(MOMENT + 1, 3, 1000)],               -MOMENT, MOMENT],
    ["cost",          [() => bucket.consume(0, -1),               () => bucket.consume(0, 2 ** 53)],         0,       MAX],
    ["cost",          [() => bucket.peek(0, -0.5),                () => bucket.peek(0, Infinity)],           0,       MAX],
    ["cost",          [() => bucket.reserve(0, -1),               () => bucket.reserve(0, 2 ** 64)],         0,       MAX],
    ["cost",          [() => bucket.borrow(0, -1),                () => bucket.borrow(0, 2 ** 63)],          0,       MAX],
    ["cost",          [() => bucket.consumeUpTo(0, -1),           () => bucket.consumeUpTo(0, 1e17)],        0,       MAX],
    ["cost",          [() => bucket.charge(0, -1),                () => bucket.charge(0, 1e17)],             0,       MAX],
    ["cost",          [() => bucket.refund(0, -1),                () => bucket.refund(0, 1e17)],             0,       MAX],
    ["max_wait_ms",   [() => bucket.reserve(0, 1, -1),            () => bucket.reserve(0, 1, Infinity)],     0,       MAX],
    ["max_wait_ms",   [() => bucket.borrow(0, 1, -1),             () => bucket.borrow(0, 1, Infinity)],      0,       MAX],
    ["rate",          [token(0, -1, 1000),                        token(0, 2 ** 53, 1000)],                  0,       MAX],
    ["period_ms",     [token(0, 3, -1),                           token(0, 3, 2 ** 53)],                     0,       MAX],
    ["period_ms",     [token(0, 3, 0),                            undefined],                                1,       SPAN],
    ["period_ms",     [undefined,                                 token(0, 3, SPAN + 1)],                    1,       SPAN],
    ["capacity",      [token(0, 3, 1000, -1),                     token(0, 1, SPAN, 2)],                     0,       1],
    ["max_debt",      [token(0, 3, 1000, 3, -1),                  token(0, 1, SPAN, 1, 1)],                  0,       0],
    ["initial",       [token(0, 3, 1000, 3, 0, -1),               token(0, 3, 1000, 3, 0, 4)],               0,       3],
    ["offset_ms",     [fixed(0, 3, 1000, 3, 0, 3, -1),            fixed(0, 3, 1000, 3, 0, 3, 1000)],         0,       999],
    ["version",       [() => bucket.save(new Uint8Array(25), -1), () => bucket.restore(new Uint8Array(25), 2 ** 53)], 0, MAX],
  ];
  for (const [name, [less, more], min, max] of table) {
    for (const [call, fault] of [[less, "too_small"], [more, "too_large"]]) {
      const bounds = call === less && min === 0 ? undefined : [min, max]; // below 0 the largest is not worked out
      if (call) throwsNumber(call, name, fault, bounds);
    }
  }
  const NOT = [NaN, 0.5, 1.5, 2 ** 51 + 0.5, "x", {}, () => {}];
  for (const not of NOT) {
    for (const method of ["consume", "peek", "reserve", "borrow", "consumeUpTo", "charge", "refund"]) {
      throwsNumber(() => bucket[method](not, 1), "now", "not_whole");
      throwsNumber(() => bucket[method](0, not), "cost", "not_whole");
    }
    for (const method of ["reset", "remaining", "owed", "fullAt"]) throwsNumber(() => bucket[method](not), "now", "not_whole");
    for (const method of ["reserve", "borrow"]) throwsNumber(() => bucket[method](0, 1, not), "max_wait_ms", "not_whole");
    throwsNumber(token(not, 3, 1000), "now", "not_whole");
    throwsNumber(token(0, not, 1000), "rate", "not_whole");
    throwsNumber(token(0, 3, not), "period_ms", "not_whole");
    throwsNumber(token(0, 3, 1000, not), "capacity", "not_whole");
    throwsNumber(token(0, 3, 1000, 3, not), "max_debt", "not_whole");
    throwsNumber(token(0, 3, 1000, 3, 0, not), "initial", "not_whole");
    throwsNumber(fixed(0, 3, 1000, 3, 0, 3, not), "offset_ms", "not_whole");
    throwsNumber(() => bucket.save(new Uint8Array(25), not), "version", "not_whole");
  }
  for (const method of ["consume", "reset", "remaining"]) throwsNumber(() => bucket[method](), "now", "not_whole");
  equal(
    thrown(() => bucket.consume(0, 1.5)).message,
    "cost must be a whole number from 0 to 9007199254740991, not 1.5",
  );
  equal(thrown(token(0, 3, 0)).message, "periodMs must be a whole number from 1 to 2251799813685248, not 0");
  equal([bucket.remaining(0), bucket.tokens], [3, undefined], "nothing was asked and nothing taken");
}

function throwsNumber(call, name, fault, bounds) {
  const error = thrown(call);
  equal([error.constructor, error instanceof Error, error.name], [RangeError, true, "RangeError"], `${call}`);
  equal(error.code, `${name}_${fault}`, `${call}`);
  if (bounds) equal([error.min, error.max], bounds, `${call}`);
  equal(typeof error.stack, "string");
}

// What no number can be made of is refused by JavaScript itself, before the bucket is touched.
export function whatIsNoNumberAtAllIsATypeError({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000);
  const refuses = { valueOf() { throw new TypeError("no"); } };
  for (const not of [1n, Symbol("x"), refuses]) {
    for (const call of [() => bucket.consume(not), () => bucket.consume(0, not), () => Bucket.tokenBucket(0, not, 1000)]) {
      equal(thrown(call).constructor, TypeError);
    }
  }
  const asksItself = { valueOf() { return bucket.remaining(0); } };
  equal([bucket.consume(0, asksItself), bucket.tokens, bucket.remaining(0)], [true, 3, 0]);
  equal([bucket.consume("334", "1"), bucket.readyAt], [true, 334], "text that is a number is that number");
}

/** Throws anything at everything. Returns how many calls there were. */
export function survivesAnything({ constructor: Bucket }) {
  const NUMBERS = [0, -0, 1, 2, 3, 7, 100, 333, 334, 1000, 59_999, 60_001, 1e6, 1e12, 1.7e12, 2 ** 31, 2 ** 32, 2 ** 51, 2 ** 52, 2 ** 53 - 1];
  const HOSTILE = [NaN, Infinity, -Infinity, -1, -60_001, -(2 ** 52), 2 ** 53, -(2 ** 53), 2 ** 63, 2 ** 64, 1e300, 5e-324, 1.5, -0.5, undefined, null,
    "", "7", "x", true, false, [], [3], {}, () => {}, new Date(5)];
  const random = mulberry32(20261120);
  const pick = (list) => list[Math.floor(random() * list.length)];
  const any = () => (random() < 0.7 ? pick(NUMBERS) : pick(HOSTILE));
  const absent = (value) => value === undefined || value === null;
  const whole = (value, min, max) => Number.isInteger(Number(value)) && Number(value) >= min && Number(value) <= max;
  const moment = (value) => value !== undefined && whole(value, -(2 ** 52), 2 ** 52);
  const count = (value) => absent(value) || whole(value, 0, Number.MAX_SAFE_INTEGER);

  let calls = 0, made = 0, refused = 0;
  for (let round = 0; round < 400; round++) {
    const numbers = [any(), any(), any(), any(), any(), any(), any()];
    if (random() < 0.7) numbers.splice(0, 3, pick([0, 1.7e12]), pick([0, 1, 3, 100]), pick([1, 1000, 60_000]));
    if (random() < 0.7) numbers.splice(3, 4, pick([undefined, 0, 3, 100]), pick([undefined, 0, 50]), undefined, undefined);
    let bucket;
    try {
      bucket = random() < 0.5 ? Bucket.tokenBucket(...numbers) : Bucket.fixedWindow(...numbers);
    } catch (error) {
      coded(error, numbers);
      refused += 1;
      continue;
    }
    made += 1;
    const capacity = absent(numbers[3]) ? Number(numbers[1]) : Number(numbers[3]);
    for (let call = 0; call < 40; call++) {
      calls += 1;
      const method = pick(["consume", "peek", "reserve", "borrow", "consumeUpTo", "charge", "refund", "reset", "remaining", "owed", "fullAt"]);
      const args = [any(), any(), any()];
      const asks = !["remaining", "owed", "fullAt"].includes(method);
      const valid = moment(args[0]) && (!asks || method === "reset" || count(args[1])) && (!["reserve", "borrow"].includes(method) || count(args[2]));
      const before = state(bucket);
      const row = [...numbers, method, ...args];
      let returned;
      try {
        returned = bucket[method](...args);
      } catch (error) {
        coded(error, row);
        equal(valid, false, row);
        equal(state(bucket), before, row);
        continue;
      }
      equal(valid, true, row);
      if (asks) {
        const said = answer(bucket, returned);
        if (!said.allow || method === "peek") {
          // Only a clock that stepped far back leaves a mark.
          const moved = state(bucket);
          equal(moved.slice(0, 17), before.slice(0, 17), row);
        }
      } else {
        equal(returned === undefined ? method : typeof returned, returned === undefined ? "fullAt" : "number", row);
      }
      const now = moment(args[0]) ? Number(args[0]) : 0;
      const left = bucket.remaining(now);
      if (!(Number.isInteger(left) && left >= 0 && left <= capacity)) throw new Error(`${left} left after ${text(row)}`);
      if (left > 0) equal(bucket.owed(now), 0, row);
    }
    bucket.free();
  }
  if (made < 100 || refused < 100) throw new Error(`too few of a kind: ${made} made, ${refused} refused`);
  return calls;

  function coded(error, row) {
    equal(error.constructor, RangeError, [row, error.stack]);
    equal(/^[a-z_]+_(not_whole|too_small|too_large)$/.test(error.code), true, [row, error.code]);
    equal(error.min <= error.max, true, [row, error.message]);
  }
}

export function aStateGoesOnWhereItWasSaved({ constructor: Bucket }) {
  const make = () => Bucket.tokenBucket(1_700_000_000_000, 3, 1000, 3, 2);
  const bucket = make();
  bucket.consume(1_700_000_000_000, 1);
  const bytes = new Uint8Array(25);
  bucket.save(bytes, 7);
  // What lies in the storage of browsers. If this changes, old states must still be read.
  equal([...bytes], [
    1, // the format
    7, 0, 0, 0, 0, 0, 0, 0, // the version
    208, 7, 0, 0, 0, 0, 0, 0, // 2 tokens of 1000 drops
    0, 104, 229, 207, 139, 1, 0, 0, // since when
  ]);
  const other = make();
  other.restore(bytes, 7);
  for (const at of [0, 333, 334, 1_000_000]) {
    const now = 1_700_000_000_000 + at;
    equal([other.remaining(now), other.fullAt(now)], [bucket.remaining(now), bucket.fullAt(now)]);
    equal(other.consume(now, 3), bucket.consume(now, 3));
    equal(state(other), state(bucket));
  }
  for (const version of [0, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
    bucket.save(bytes, version);
    other.restore(bytes, version);
    equal(thrown(() => other.restore(bytes, version - (version && 1) + (version ? 0 : 1))).code, "state_version_mismatch");
  }
  other.restore([...state(bucket, 1)], 1); // as JSON brings it back
}

export function whatIsNoStateIsRefusedAndChangesNothing({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000);
  bucket.consume(0, 2);
  const good = state(bucket, 7);
  const bad = (change) => { const bytes = [...good]; change(bytes); return Uint8Array.from(bytes); };
  const throwing = new Proxy(good, { get() { throw new Error("no"); }, set() { throw new Error("no"); } });
  const table = [
    ["state_version_mismatch", bad((bytes) => { bytes[1] = 8; })],
    ["state_version_mismatch", bad((bytes) => { bytes[8] = 1; })],
    ["state_format_unknown", bad((bytes) => { bytes[0] = 2; })],
    ["state_format_unknown", new Uint8Array(25)],
    ["state_malformed", bad((bytes) => { bytes[16] = 127; })], // a level beyond any limit
    ["state_malformed", bad((bytes) => { bytes[16] = 128; })],
    ["state_malformed", good.slice(0, 24)],
    ["state_malformed", bad((bytes) => { bytes.push(0); })],
    ["state_malformed", bad((bytes) => { bytes.push(...bytes.slice(9)); })], // two limits
    ["state_malformed", new Uint8Array()],
    ["state_malformed", [...good].map((byte) => byte + 256)],
    ["state_malformed", [...good].map((byte) => byte + 0.5)],
    ["state_malformed", [...good].map(String)],
    ["state_malformed", new BigUint64Array(25)],
    ["state_malformed", good.buffer],
    ...[undefined, null, 0, NaN, "", "x".repeat(25), {}, [], { length: -1 }, { length: 2 ** 53 }, () => {}, Symbol("x"), 1n, throwing]
      .map((not) => ["state_malformed", not]),
  ];
  for (const [code, bytes] of table) {
    const error = thrown(() => bucket.restore(bytes, 7));
    equal([error.constructor, error.code], [TypeError, code], bytes);
    equal([...state(bucket, 7)], [...good]);
  }
  const noRoom = [undefined, null, 0, "x".repeat(25), Object.freeze([]), new Uint8Array(24), new Uint8Array(26), new BigUint64Array(25), throwing];
  for (const bytes of noRoom) {
    const error = thrown(() => bucket.save(bytes, 7));
    equal([error.constructor, error.code], [TypeError, "state_malformed"], bytes);
  }
  equal([bucket.consume(0), bucket.consume(0), bucket.retryAt], [true, false, 334], "and the bucket goes on");
}

// An exception that leaves WebAssembly leaves its stack where it was: 20 bytes each time would be the end of it here.
export function faultsLeaveNothingBehind({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000);
  for (let i = 0; i < 50_000; i++) thrown(() => bucket.consume(NaN));
  for (let i = 0; i < 1000; i++) thrown(() => Bucket.fixedWindow(0, 3, 1000, 3, 0, 4));
  equal([bucket.consume(0, 3), bucket.remaining(0)], [true, 0]);
}

export function afterFreeThereIsAnErrorAndNoCrash({ constructor: Bucket }) {
  const bucket = Bucket.tokenBucket(0, 3, 1000);
  thrown(() => bucket.consume(0, NaN)); // must not leave the bucket borrowed
  bucket.free();
  for (const call of [() => bucket.consume(0), () => bucket.remaining(0), () => bucket.tokens, () => bucket.free()]) {
    equal(thrown(call).constructor, Error);
  }
  equal(Bucket.tokenBucket(0, 3, 1000).consume(0), true);
}

/** Makes and frees `count` buckets, at most ten at once. */
export function makeAndFree({ constructor: Bucket }, count) {
  const some = [];
  for (let i = 0; i < count; i++) {
    some.push(Bucket.tokenBucket(0, 3, 1000));
    if (some.length === 10) some.splice(0).forEach((bucket) => bucket.free());
  }
}

function state(bucket, version = 0) {
  const bytes = new Uint8Array(25);
  bucket.save(bytes, version);
  return bytes;
}

function thrown(call) {
  try {
    call();
  } catch (error) {
    return error;
  }
  throw new Error(`did not throw: ${call}`);
}

function equal(got, expected, where) {
  if (!same(got, expected)) throw new Error(`${text(got)}, not ${text(expected)}: ${text(where)}`);
}

function same(a, b) {
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return a === b; // and so 0 is −0
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

function text(value) {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value, (_, part) => (part === undefined || typeof part === "function" ? String(part) : part)) ?? String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}

// A small random generator that is the same everywhere, by Tommy Ettinger.
function mulberry32(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
