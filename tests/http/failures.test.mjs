// An object does not answer, answers late or answers nonsense: 503, or 200 marked as degraded if the policy fails open.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { allowed, assertAnswer } from "./answers.mjs";
import { gate } from "./gate.mjs";
import { NOW, start, TOKEN } from "./workerd.mjs";

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

/** Ignores `x-acts`, which other tests check. */
const assertAnswered = ({ headers: { "x-acts": _, ...headers }, ...answer }, ...expected) =>
  assertAnswer({ ...answer, headers }, ...expected);

const UNKNOWN = "The request may have been carried out; only an Idempotency-Key makes it safe to repeat";
const REASONS = {
  overloaded: "this key gets more requests than can be answered, and this one was not carried out",
  timeout: `no answer came in time. ${UNKNOWN}`,
  failed: `what keeps the budgets of this key did not answer. ${UNKNOWN}`,
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
    detail: `this is not a rate-limit refusal: ${REASONS[cause]}`,
    cause,
  },
});

/** Degraded: the answer contains nothing unknown, such as what remains. */
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

// The fault, the reported cause, the number of object calls, and how many tokens they took.
const FAULTS = [
  [{ fault: "throws" }, "failed", 1, 0],
  [{ fault: "overloaded" }, "overloaded", 1, 0],
  [{ fault: "overloaded and retryable" }, "overloaded", 1, 0], // more requests would add to the overload
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
    assertAnswered(await tollgate.consume(ask, withFault(fault)), unavailable(cause, times));
    assert.deepEqual(await remaining("closed", key), [10 - taken, 0]);
    assertAnswered(await tollgate.consume(ask), grant("closed", 9 - taken, 1), "and then it is served");
  });

  // Callers cause overload themselves, so it never fails open by default: a flood would lift its own limit.
  const opens = cause !== "overloaded";
  test(`open, ${key}: ${opens ? "let pass and marked, with nothing made up" : "503 all the same"}`, async () => {
    const ask = { policy: "open", key };
    const answer = await tollgate.consume(ask, withFault(fault));
    const expected = opens ? degraded({ policy: "open", degraded: cause }, times) : unavailable(cause, times);
    assertAnswered(answer, expected);
    assert.deepEqual(await remaining("open", key), [10 - taken, 0]);
    assertAnswered(await tollgate.consume(ask), grant("open", 9 - taken, 1), "and then it is decided");
  });
}

test("each concurrent request times out on its own, even after the first is answered or its client disconnects", async () => {
  const ask = (key, fault, more) => tollgate.consume({ policy: "closed", key }, withFault(fault, more));
  const timed = async (key, fault) => {
    const began = performance.now();
    const { status, body } = await ask(key, fault);
    return { status, cause: body.cause, ms: performance.now() - began };
  };
  const hangs = { fault: "hangs" };
  const body = JSON.stringify({ policy: "closed", key: "gone" });
  for (const isAborted of [false, true]) {
    const slow = ask("slow", { fault: "slow", ms: 300 });
    const gone = new AbortController();
    // The second starts the timer for all that follow.
    const second = isAborted
      ? fetch(`http://127.0.0.1:${tollgate.port}/v1/consume`, {
          method: "POST",
          headers: {
            authorization: `Bearer ${TOKEN}`,
            "content-type": "application/json",
            "x-fault": JSON.stringify(hangs),
          },
          body,
          signal: gone.signal,
        })
      : ask("second", { fault: "slow", ms: 100 });
    await new Promise((done) => setTimeout(done, 50));
    const waiting = ["a", "b", "c"].map((key) => timed(key, hangs));
    await new Promise((done) => setTimeout(done, 500));
    gone.abort();
    if (isAborted) await assert.rejects(second, { name: "AbortError" });
    else assert.equal((await second).status, 200);
    assert.equal((await slow).status, 200);
    waiting.push(timed("late", hangs));
    for (const { status, cause, ms } of await Promise.all(waiting)) {
      assert.deepEqual([status, cause], [503, "timeout"]);
      // One after the other, four would take eight seconds, and the last was sent half a second late.
      assert.ok(ms > 1_900 && ms < 7_000, `${ms} ms`);
    }
  }
});

test("an object call times out after 2 s", async () => {
  const began = performance.now();
  const { status } = await tollgate.consume({ policy: "closed", key: "deadline" }, withFault({ fault: "hangs" }));
  const took = performance.now() - began;
  assert.equal(status, 503);
  assert.ok(took > 1_900 && took < 5_000, `${took} ms`); // less than a request may take with all its calls
  const slow = withFault({ fault: "slow", ms: 1_000 });
  assertAnswered(await tollgate.consume({ policy: "closed", key: "deadline" }, slow), grant("closed", 9, 1));
});

test("a call whose answer was lost is retried once, and charged once", async () => {
  for (const after of [false, true]) {
    const fault = { fault: "retryable", times: 1, after };
    const key = JSON.stringify(fault);
    for (const policy of ["closed", "open"]) {
      // If the first call was decided, the second is its replay.
      const expected = grant(policy, 9, 2, after ? { replayed: true } : {});
      assertAnswered(await tollgate.consume({ policy, key }, withFault(fault)), expected, key);
      assert.deepEqual(await remaining(policy, key), [9, 0]);
    }
  }
});

test("peeks, reservations, settlements and refunds never fail open, whatever the policy", async () => {
  const of = { policy: "open", key: "told" };
  const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
  // Not the faults after a decision: the reservation would be settled.
  for (const [fault, cause, times] of FAULTS.filter(([{ fault }, , , taken]) => taken === 0 && fault !== "hangs")) {
    for (const [verb, more] of [
      ["peek", {}],
      ["inspect", {}],
      ["consume", { mode: "reserve" }],
      ["settle", { reservation, cost: 1 }],
      ["cancel", { reservation }],
      ["extend", { reservation }],
      ["extend", { reservation, cost: 1 }],
      ["refund", {}],
      ["reset", {}],
    ]) {
      const answer = await tollgate.post(verb, { ...of, ...more }, withFault(fault));
      assertAnswered(answer, unavailable(cause, times), `${verb} ${JSON.stringify(fault)}`);
    }
  }
  assert.deepEqual(await remaining("open", "told"), [6, 1]);
});

test("a settlement whose answer was lost is recognized when it is retried", async () => {
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

test("an extension whose answer was lost takes its tokens once", async () => {
  const of = { policy: "closed", key: "extended" };
  const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
  const lost = withFault({ fault: "retryable", after: true, times: 1 });
  for (const [cost, left] of [
    [undefined, 6],
    [3, 3],
    [3, 0],
  ]) {
    const { status, text } = await tollgate.post("extend", { ...of, reservation, cost }, lost);
    assert.equal(status, 200, text);
    assert.deepEqual(await remaining("closed", "extended"), [left, 1]);
  }
});

test("with an Idempotency-Key, a caller retries after a 503 and is charged once", async () => {
  const ask = { policy: "closed", key: "again" };
  const id = { "idempotency-key": "again" };
  const lost = withFault({ fault: "retryable", after: true }, id);
  for (let i = 0; i < 3; i++) assertAnswered(await tollgate.consume(ask, lost), unavailable("failed", 2));
  assertAnswered(await tollgate.consume(ask, { headers: id }), grant("closed", 9, 1, { replayed: true }));
  assert.deepEqual(await remaining("closed", "again"), [9, 0]);
});

test("a batch fails open only if every policy in it does", async () => {
  const requests = (...policies) => ({
    requests: policies.map((policy, index) => ({ policy, key: `batch ${index}` })),
  });
  const throws = withFault({ fault: "throws" });
  assertAnswered(await tollgate.post("batch", requests("open", "closed"), throws), unavailable("failed", 2));
  const results = [
    { allowed: true, policy: "open", degraded: "failed" },
    { allowed: true, policy: "open", degraded: "failed" },
  ];
  assertAnswered(
    await tollgate.post("batch", requests("open", "open"), throws),
    degraded({ degraded: "failed", results }, 2),
  );
  for (const key of ["batch 0", "batch 1"]) assert.deepEqual(await remaining("open", key), [10, 0]);
});

test("a refund that timed out may have been done, and the answer says so; with an Idempotency-Key it is done once", async () => {
  const of = { policy: "budget", key: "refunded" };
  await tollgate.consume({ ...of, cost: 9 });
  const late = { fault: "late", ms: 3_000 };
  const refund = (headers) => tollgate.post("refund", { ...of, cost: 2 }, withFault(late, headers));
  assertAnswered(await refund(), unavailable("timeout", 1));
  assert.deepEqual(await remaining("budget", "refunded"), [3, 0], "it was done");
  const id = { "idempotency-key": "refunded" };
  assertAnswered(await refund(id), unavailable("timeout", 1));
  assert.equal((await tollgate.post("refund", { ...of, cost: 2 }, { headers: id })).body.replayed, true);
  assert.deepEqual(await remaining("budget", "refunded"), [5, 0], "and once");
});

test("a panic fails only its own request: budgets and reservations are unchanged", async () => {
  const of = { policy: "closed", key: "panic" };
  const { reservation } = (await tollgate.consume({ ...of, mode: "reserve", cost: 4 })).body;
  await tollgate.consume({ ...of, cost: 2 });
  for (let round = 0; round < 3; round++) {
    assertAnswered(await tollgate.consume(of, { now: "boom" }), unavailable("failed", 0), `panic ${round}`);
    const open = { policy: "open", key: "panic" };
    assertAnswered(await tollgate.consume(open, { now: "boom" }), unavailable("failed", 0), `open, panic ${round}`);
    await tollgate.logged('"boom" is not a moment');
    assert.deepEqual(await remaining("closed", "panic"), [4, 1], `after panic ${round}`);
    assert.equal((await tollgate.consume({ policy: "closed", key: `panic ${round}` })).status, 200);
  }
  assert.equal((await tollgate.post("settle", { ...of, reservation, cost: 1 })).status, 200);
  assert.deepEqual(await remaining("closed", "panic"), [7, 0]);
});

test("requests in flight while another panics do not harm later ones", async () => {
  const own = await start({ policies: POLICIES, around });
  const policyOf = (n) => (n % 2 === 0 ? "closed" : "open");
  const panics = async () =>
    assertAnswered(await own.consume({ policy: "closed", key: "panics" }, { now: "boom" }), unavailable("failed", 0));
  const waits = await gate(panics, 32);
  const under = (n) => own.consume({ policy: policyOf(n), key: `in flight ${n}` }, withFault(waits));
  const inFlight = await Promise.all(Array.from({ length: 32 }, (_, n) => under(n)));
  for (const [n, answer] of inFlight.entries()) {
    const expected =
      policyOf(n) === "open" ? degraded({ policy: "open", degraded: "failed" }, 1) : unavailable("failed", 1);
    assertAnswered(answer, expected, `in flight ${n}`);
  }
  await own.logged("a call was lost");
  for (let n = 0; n < 32; n++) {
    const { status, text } = await own.consume({ policy: "closed", key: `after ${n}` });
    assert.equal(status, 200, text);
  }
  await own.stop();
  // They belong to the old instance's memory: none of it may be freed in the new one's.
  const harm = own.log.match(/take ownership of Rust value|memory access out of bounds/g) ?? [];
  assert.deepEqual(harm, []);
});

test("RPC gives the same answers, and throws nothing", async () => {
  const before = {
    modules: { "by-rpc.mjs": fileURLToPath(new URL("./by-rpc.mjs", import.meta.url)) },
    bindings: { TOLLGATE: `service = (name = "main", entrypoint = "Tollgate")` },
  };
  const unreachable = fileURLToPath(new URL("./unreachable.mjs", import.meta.url));
  const own = await start({ policies: POLICIES, around: unreachable, before });
  const call = async (verb, ask) => (await own.send({ path: "/before", body: JSON.stringify({ verb, ask }) })).body;
  const told = (policy, verb) => call(verb, { policy, key: "by RPC" });
  for (const [policy, verb] of [
    ["closed", "consume"],
    ["open", "peek"],
  ]) {
    const { headers, ...body } = await told(policy, verb);
    assert.deepEqual([headers["retry-after"], body], ["1", unavailable("failed").body]);
  }
  const { status, headers, ...body } = await told("open", "consume");
  assert.deepEqual([status, headers["retry-after"]], [200, undefined]);
  assert.deepEqual(body, { allowed: true, policy: "open", degraded: "failed" });
  await own.logged("did not answer");
  await own.stop();
  // The platform's own method has no word for it but a refusal.
  for (const [policy, success] of [
    ["closed", false],
    ["open", true],
  ]) {
    const limiter = `service = (name = "main", entrypoint = "RateLimit", props = (json = "{\\"policy\\":\\"${policy}\\"}"))`;
    const { modules } = before;
    const asked = { policies: POLICIES, around: unreachable, before: { modules, bindings: { TOLLGATE: limiter } } };
    const limiting = await start(asked);
    const body = JSON.stringify({ verb: "limit", ask: { key: "by RPC" } });
    assert.deepEqual((await limiting.send({ path: "/before", body })).body, { success }, policy);
    await limiting.stop();
  }
});
