// An object does not answer, or not in time, or nonsense: 503 or, where a policy says so, 200 that says it is a guess.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { allowed, assertAnswer } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  closed: { rate: 10, period: "10s" },
  open: { rate: 10, period: "10s", on_error: "open" },
  budget: { rate: 0, period: "1s", capacity: 10 },
};
const FIELD = { q: 10, w: 10, "tollgate-capacity": 10 };
const around = fileURLToPath(new URL("./faulty.mjs", import.meta.url));
const tollgate = await start({ policies: POLICIES, around });

const withFault = (fault, more) => ({ headers: { "x-fault": JSON.stringify(fault), ...more } });
const asked = (times) => ({ "x-asked": String(times) });

const REASONS = {
  overloaded: "this key gets more requests than can be answered",
  timeout: "the answer took too long",
  failed: "what keeps this key's budgets did not answer",
};

const unavailable = (cause, times) => ({
  status: 503,
  headers: {
    "content-type": "application/problem+json",
    "retry-after": "1",
    ...(times === undefined ? {} : asked(times)),
  },
  body: {
    type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Unavailable",
    status: 503,
    detail: `no decision could be made: ${REASONS[cause]}. This is not a rate-limit refusal; retry`,
    cause,
  },
});

/** Let pass: nothing that is not known, such as what remains, is said. */
const degraded = (body, times) => ({
  status: 200,
  headers: { "content-type": "application/json", ...asked(times) },
  body: { allowed: true, ...body },
});

/** A grant of one token, of ten. */
const grant = (policy, remaining, times, more) => {
  const missing = 10 - remaining;
  const verdict = { policy, cost: 1, limit: 10, remaining, now: NOW, reset_at: NOW + missing * 1_000, ...more };
  const expected = allowed(verdict, FIELD, 1);
  return { ...expected, headers: { ...expected.headers, ...asked(times) } };
};

const remaining = async (policy, key, options) => {
  const { limits, open_reservations } = (await tollgate.post("inspect", { policy, key }, options)).body;
  return [limits[0].remaining, open_reservations];
};

// What happens, the cause that is named, how often the object is asked, and how many tokens that took.
const FAULTS = [
  [{ fault: "throws" }, "failed", 1, 0],
  [{ fault: "overloaded" }, "overloaded", 1, 0],
  [{ fault: "overloaded and retryable" }, "overloaded", 1, 0], // more requests are what it has too many of
  [{ fault: "retryable" }, "failed", 2, 0],
  [{ fault: "retryable", after: true }, "failed", 2, 1], // it decided both times: the second was a repetition
  [{ fault: "of another version" }, "failed", 1, 0],
  [{ fault: "of no version" }, "failed", 1, 0],
  [{ fault: "cut off" }, "failed", 1, 1],
  [{ fault: "of other limits" }, "failed", 1, 1],
  [{ fault: "hangs" }, "timeout", 1, 0],
];

for (const [fault, cause, times, taken] of FAULTS) {
  const key = JSON.stringify(fault);
  test(`closed, ${key}: 503 with the cause`, async () => {
    const ask = { policy: "closed", key };
    assertAnswer(await tollgate.consume(ask, withFault(fault)), unavailable(cause, times));
    assert.deepEqual(await remaining("closed", key), [10 - taken, 0]);
    assertAnswer(await tollgate.consume(ask), grant("closed", 9 - taken, 1), "and then it is served");
  });

  test(`open, ${key}: let pass and marked, with nothing made up`, async () => {
    const ask = { policy: "open", key };
    const answer = await tollgate.consume(ask, withFault(fault));
    assertAnswer(answer, degraded({ policy: "open", degraded: cause }, times));
    assert.deepEqual(await remaining("open", key), [10 - taken, 0]);
    assertAnswer(await tollgate.consume(ask), grant("open", 9 - taken, 1), "and then it is decided");
  });
}

test("2 s are the most that an answer is waited for", async () => {
  const began = performance.now();
  const { status } = await tollgate.consume({ policy: "closed", key: "deadline" }, withFault({ fault: "hangs" }));
  const took = performance.now() - began;
  assert.equal(status, 503);
  assert.ok(took > 1_900 && took < 4_000, `${took} ms`);
  const slow = withFault({ fault: "slow", ms: 1_000 });
  assertAnswer(await tollgate.consume({ policy: "closed", key: "deadline" }, slow), grant("closed", 9, 1));
});

test("an answer that was lost on its way is asked for once more, and charged once", async () => {
  for (const after of [false, true]) {
    const fault = { fault: "retryable", times: 1, after };
    const key = JSON.stringify(fault);
    for (const policy of ["closed", "open"]) {
      // Where the first question was decided, the second is its replay.
      const expected = grant(policy, 9, 2, after ? { replayed: true } : {});
      assertAnswer(await tollgate.consume({ policy, key }, withFault(fault)), expected, key);
      assert.deepEqual(await remaining(policy, key), [9, 0]);
    }
  }
});

test("whatever the policy, who looks, reserves, settles or gives back is told that it failed", async () => {
  const of = { policy: "open", key: "told" };
  const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
  // Not those that decide before they fail: that would settle it.
  for (const [fault, cause, times] of FAULTS.filter(([{ fault }, , , taken]) => taken === 0 && fault !== "hangs")) {
    for (const [verb, more] of [
      ["peek", {}],
      ["inspect", {}],
      ["consume", { mode: "reserve" }],
      ["settle", { reservation, cost: 1 }],
      ["cancel", { reservation }],
      ["refund", {}],
      ["reset", {}],
    ]) {
      const answer = await tollgate.post(verb, { ...of, ...more }, withFault(fault));
      assertAnswer(answer, unavailable(cause, times), `${verb} ${JSON.stringify(fault)}`);
    }
  }
  assert.deepEqual(await remaining("open", "told"), [6, 1]);
});

test("a settlement whose answer was lost is known when it is asked for again", async () => {
  for (const verb of ["settle", "cancel"]) {
    const of = { policy: "closed", key: verb };
    const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
    const cost = verb === "settle" ? 1 : undefined;
    const answer = await tollgate.post(
      verb,
      { ...of, reservation, cost },
      withFault({ fault: "retryable", after: true, times: 1 }),
    );
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(await remaining("closed", verb), [verb === "settle" ? 9 : 10, 0]);
  }
});

test("a reservation whose answer was lost is opened once", async () => {
  const ask = { policy: "closed", key: "opened", mode: "reserve", cost: 4 };
  const { status, body } = await tollgate.consume(ask, withFault({ fault: "retryable", after: true, times: 1 }));
  assert.equal(status, 200);
  assert.deepEqual(await remaining("closed", "opened"), [6, 1]);
  const { reservation } = body;
  assert.equal((await tollgate.post("settle", { policy: "closed", key: "opened", reservation, cost: 0 })).status, 200);
  assert.deepEqual(await remaining("closed", "opened"), [10, 0]);
});

test("with an Idempotency-Key, who got 503 asks again and is charged once", async () => {
  const ask = { policy: "closed", key: "again" };
  const id = { "idempotency-key": "again" };
  const lost = withFault({ fault: "retryable", after: true }, id);
  for (let i = 0; i < 3; i++) assertAnswer(await tollgate.consume(ask, lost), unavailable("failed", 2));
  assertAnswer(await tollgate.consume(ask, { headers: id }), grant("closed", 9, 1, { replayed: true }));
  assert.deepEqual(await remaining("closed", "again"), [9, 0]);
});

test("a batch passes only if every policy in it is open", async () => {
  const requests = (...policies) => ({
    requests: policies.map((policy, index) => ({ policy, key: `batch ${index}` })),
  });
  const throws = withFault({ fault: "throws" });
  // The first object is asked, fails, and no other is asked.
  assertAnswer(await tollgate.post("batch", requests("open", "closed"), throws), unavailable("failed", 1));
  const results = [
    { allowed: true, policy: "open", degraded: "failed" },
    { allowed: true, policy: "open", degraded: "failed" },
  ];
  assertAnswer(
    await tollgate.post("batch", requests("open", "open"), throws),
    degraded({ degraded: "failed", results }, 1),
  );
  for (const key of ["batch 0", "batch 1"]) assert.deepEqual(await remaining("open", key), [10, 0]);
});

test("what a batch that failed holds is given back: at once where it is known, else within 10 s", async () => {
  const keys = ["held 0", "held 1", "held 2"];
  const body = { requests: keys.map((key) => ({ policy: "closed", key, cost: 4 })) };
  const standings = async (now) => {
    const all = [];
    for (const key of keys) all.push(await remaining("closed", key, { now }));
    return all.sort();
  };
  // The first two hold, the last cannot be asked: five calls.
  const throws = withFault({ fault: "throws", act: "hold", skip: 2 });
  assertAnswer(await tollgate.post("batch", body, throws), unavailable("failed", 5));
  assert.deepEqual(await standings(NOW), Array(3).fill([10, 0]));
  // Its hold was made and the answer was lost: nobody knows its id.
  const lost = withFault({ fault: "retryable", act: "hold", after: true, skip: 1 });
  assertAnswer(await tollgate.post("batch", body, lost), unavailable("failed", 4));
  assert.deepEqual(await standings(NOW), [
    [10, 0],
    [10, 0],
    [6, 1],
  ]);
  // Nothing is taken, so nothing comes back: four are not to be had until they are free.
  assert.deepEqual(await standings(NOW + 9_999), [
    [10, 0],
    [10, 0],
    [6, 1],
  ]);
  assert.deepEqual(await standings(NOW + 10_000), Array(3).fill([10, 0]));
});

test("a batch of which one part could not be kept is known not to be, and is completed by asking again", async () => {
  const keys = ["half 0", "half 1", "half 2"];
  const body = { requests: keys.map((key) => ({ policy: "closed", key, cost: 4 })) };
  const id = { "idempotency-key": "half" };
  const fails = withFault({ fault: "throws", act: "settle", times: 1 }, id);
  assertAnswer(await tollgate.post("batch", body, fails), unavailable("failed", 7));
  const again = await tollgate.post("batch", body, { headers: id });
  assert.equal(again.status, 200, again.text);
  for (const key of keys) assert.deepEqual(await remaining("closed", key), [6, 0]);
});

test("a batch of which a settlement was lost on its way is settled once", async () => {
  const keys = ["settled 0", "settled 1"];
  const body = { requests: keys.map((key) => ({ policy: "closed", key, cost: 4 })) };
  for (const [after, left] of [
    [false, 6],
    [true, 2],
  ]) {
    const answer = await tollgate.post(
      "batch",
      body,
      withFault({ fault: "retryable", act: "settle", times: 1, after }),
    );
    assert.deepEqual([answer.status, answer.headers["x-asked"]], [200, "5"], answer.text);
    for (const key of keys) assert.deepEqual(await remaining("closed", key), [left, 0]);
  }
});

test("a panic fails its own request only: budgets and reservations are what they were", async () => {
  const of = { policy: "closed", key: "panic" };
  const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
  await tollgate.consume({ ...of, cost: 2 });
  for (let round = 0; round < 3; round++) {
    assertAnswer(await tollgate.consume(of, { now: "boom" }), unavailable("failed", 0), `panic ${round}`);
    await tollgate.logged('"boom" is no moment');
    assert.deepEqual(await remaining("closed", "panic"), [4, 1], `after panic ${round}`);
    assert.equal((await tollgate.consume({ policy: "closed", key: `panic ${round}` })).status, 200);
  }
  assert.equal((await tollgate.post("settle", { ...of, reservation, cost: 1 })).status, 200);
  assert.deepEqual(await remaining("closed", "panic"), [7, 0]);
});

test("requests that are under way when another panics do no harm to those that come after", async () => {
  const own = await start({ policies: POLICIES, around });
  const under = (n) => own.consume({ policy: "closed", key: `under way ${n}` }, withFault({ fault: "slow", ms: 300 }));
  const slow = Array.from({ length: 32 }, (_, n) => under(n));
  await new Promise((done) => setTimeout(done, 150));
  assertAnswer(await own.consume({ policy: "closed", key: "panics" }, { now: "boom" }), unavailable("failed", 0));
  for (const { status, text } of await Promise.all(slow)) assert.ok([200, 503].includes(status), text);
  for (let n = 0; n < 32; n++) {
    const { status, text } = await own.consume({ policy: "closed", key: `after ${n}` });
    assert.equal(status, 200, text);
  }
  await own.stop();
  // They belong to memory that is no more: nothing of it may be freed in the memory that has taken its place.
  const harm = own.log.match(/take ownership of Rust value|memory access out of bounds/g) ?? [];
  assert.deepEqual(harm, []);
});

/** Two keys of which a batch asks the first before the second. */
async function inOrder(name) {
  for (let n = 0; ; n++) {
    const keys = [`${name}, first ${n}`, `${name}, second ${n}`];
    await tollgate.post("charge", { policy: "budget", key: keys[1], cost: 10 });
    const answer = await batchOf(keys);
    await tollgate.post("reset", { policy: "budget", key: keys[1] });
    // Held, refused, given back; else the first is asked what it would have said.
    if (answer.headers["x-asked"] === "3") return keys;
  }
}

const batchOf = (keys, options) => {
  return tollgate.post("batch", { requests: keys.map((key) => ({ policy: "budget", key, cost: 4 })) }, options);
};
const spend = (key, options) => tollgate.post("charge", { policy: "budget", key, cost: 10 }, options);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function budgets(keys, options) {
  const levels = [];
  for (const key of keys) levels.push((await remaining("budget", key, options))[0]);
  return levels;
}

test("a refused batch is refused, though the answer to its giving back was lost", async () => {
  const keys = await inOrder("lost");
  await spend(keys[1]);
  const answer = await batchOf(keys, withFault({ fault: "retryable", act: "cancel", after: true, times: 1 }));
  assert.equal(answer.status, 429, answer.text);
  assert.deepEqual(
    answer.body.results.map(({ allowed, remaining }) => [allowed, remaining]),
    [
      [true, 10],
      [false, 0],
    ],
  );
  assert.deepEqual(await budgets(keys), [10, 0]);
});

test("a refused batch that was sent twice at once is refused twice", async () => {
  const keys = await inOrder("twice");
  await spend(keys[1]);
  const id = { "idempotency-key": "twice" };
  const first = batchOf(keys, withFault({ fault: "slow", act: "cancel", ms: 400 }, id));
  await pause(150);
  const answers = [await batchOf(keys, { headers: id }), await first];
  assert.deepEqual(
    answers.map(({ status }) => status),
    [429, 429],
    answers.map(({ text }) => text).join("\n"),
  );
  assert.deepEqual(await budgets(keys), [10, 0]);
});

test("a batch is not granted once what it held was given back by itself", async () => {
  const keys = await inOrder("late");
  const late = batchOf(keys, withFault({ fault: "slow", act: "settle", ms: 500 }));
  await pause(150);
  await budgets(keys, { now: NOW + 10_000 });
  const { status, text } = await late;
  const taken = (await budgets(keys, { now: NOW + 10_000 })).map((left) => 10 - left);
  assert.deepEqual(taken, status === 200 ? [4, 4] : [0, 0], `${status} ${text}`);
});

test("a batch is not granted once what it held was given back by its twin", async () => {
  const keys = await inOrder("twin");
  await spend(keys[1]);
  const id = { "idempotency-key": "twin" };
  const first = batchOf(keys, withFault({ fault: "slow", act: "cancel", ms: 400 }, id));
  await pause(150);
  await tollgate.post("refund", { policy: "budget", key: keys[1], cost: 10 });
  const second = batchOf(keys, withFault({ fault: "slow", act: "settle", ms: 600 }, id));
  assert.equal((await first).status, 429);
  const { status, text } = await second;
  const taken = (await budgets(keys)).map((left) => 10 - left);
  assert.deepEqual(taken, status === 200 ? [4, 4] : [0, 0], `${status} ${text}`);
});

test("a batch that was kept in part says nothing was taken only when nothing was", async () => {
  const keys = await inOrder("part");
  const id = { "idempotency-key": "part" };
  const half = withFault({ fault: "throws", act: "settle", skip: 1 }, id);
  assertAnswer(await batchOf(keys, half), unavailable("failed", 5));
  // The second half was given back, and somebody else has taken it.
  const later = { now: NOW + 10_000 };
  await spend(keys[1], later);
  const { status, text, body } = await batchOf(keys, { headers: id, ...later });
  assert.equal(status, 429, text);
  assert.match(body.detail, /^an earlier attempt took what is marked as replayed; now policy /);
  assert.deepEqual(
    body.results.map(({ replayed = false, allowed }) => [replayed, allowed]),
    [
      [true, true],
      [false, false],
    ],
  );
  assert.deepEqual(await budgets(keys, later), [6, 0], text);
});
