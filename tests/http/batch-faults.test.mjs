// Batches that fail in part: a refusal is final, all or nothing is taken, and the answer comes in time.
import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assertAnswer } from "./answers.mjs";
import { contents } from "./database.mjs";
import { gate } from "./gate.mjs";
import { NOW, start, TOKEN } from "./workerd.mjs";

const POLICIES = {
  budget: { rate: 0, period: "1s", capacity: 10 },
  closed: { rate: 0, period: "1s", capacity: 10 },
  open: { rate: 0, period: "1s", capacity: 10, on_error: "open" },
  flooded: { rate: 0, period: "1s", capacity: 10, on_error: ["overloaded"] },
};
const around = fileURLToPath(new URL("./faulty.mjs", import.meta.url));
const tollgate = await start({ policies: POLICIES, around });

const withFaults = (...faults) => ({ headers: { "x-fault": JSON.stringify(faults) } });
const batch = (requests, options) => tollgate.post("batch", { requests }, options);
const spend = (one) => tollgate.post("charge", { ...one, cost: 10 });
/** One request for each policy, each with its own key. */
const of = (name, policies) => policies.map((policy) => ({ policy, key: `${name}, ${policy}` }));
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** The result of a request for one token of a budget of 10. */
const verdict = (policy, remaining) => ({
  allowed: remaining > 0,
  policy,
  cost: 1,
  limit: 10,
  remaining,
  near_limit: remaining < 2,
  now: NOW,
  reset_at: remaining === 10 ? NOW : null,
});

const refused = (policy, results, acts) => ({
  status: 429,
  headers: {
    "content-type": "application/problem+json",
    "x-asked": String(acts.split(" ").length),
    "x-acts": acts,
  },
  body: {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota exceeded",
    status: 429,
    detail: `nothing was taken: policy ${policy} has 0 of 10 tokens left and the cost is 1; this budget never refills`,
    "violated-policies": [policy],
    allowed: false,
    now: NOW,
    results,
  },
});

/** The tokens left in each once nothing is held: aborts after the answer take a moment. */
async function levels(requests) {
  const left = [];
  for (const { policy, key } of requests) {
    for (let tries = 0; ; tries++) {
      const { limits, open_reservations } = (await tollgate.post("inspect", { policy, key })).body;
      if (open_reservations === 0 || tries === 100) {
        left.push(open_reservations === 0 ? limits[0].remaining : "held");
        break;
      }
      await pause(10);
    }
  }
  return left;
}

/** Waits until this many are left: undoing after the answer takes a moment. */
async function assertLevels(requests, expected, message) {
  let left;
  for (let tries = 0; tries < 1_000; tries++) {
    left = await levels(requests);
    if (left.join() === expected.join()) return;
    await pause(10);
  }
  assert.deepEqual(left, expected, message);
}

const LOOKS = [
  [{ fault: "throws" }, "failed"],
  [{ fault: "retryable" }, "failed"],
  [{ fault: "overloaded" }, "overloaded"],
  [{ fault: "of no version" }, "failed"],
  [{ fault: "of other limits" }, "failed"],
  [{ fault: "hangs" }, "timeout"],
];
for (const [fault, cause] of LOOKS) {
  for (const policy of ["closed", "open"]) {
    test(`one policy refuses, and the peek at a key of policy ${policy} ${JSON.stringify(fault)}: refused`, async () => {
      const requests = of(JSON.stringify(fault), [policy, "budget"]);
      await spend(requests[1]);
      const answer = await batch(requests, withFaults({ ...fault, policy, act: "look" }));
      const acts = fault.fault === "retryable" ? "look look look" : "look look";
      const results = [{ policy, undecided: cause }, verdict("budget", 0)];
      assertAnswer(answer, refused("budget", results, acts));
      assert.deepEqual(await levels(requests), [10, 0]);
    });
  }
}

test("one key refuses the hold, spent since the peek, and another key's hold fails: refused", async () => {
  const requests = of("since the look", ["open", "budget", "closed"]);
  for (const fault of ["throws", "overloaded", "retryable"]) {
    const since = { ...(await gate(() => spend(requests[1]))), act: "hold", policy: "budget" };
    const answer = await batch(requests, withFaults(since, { fault, act: "hold", policy: "open" }));
    assert.equal(answer.status, 429, answer.text);
    assert.deepEqual(answer.body.results, [verdict("open", 10), verdict("budget", 0), verdict("closed", 10)]);
    await assertLevels(requests, [10, 0, 10]);
    await tollgate.post("reset", requests[1]);
  }
});

test("a batch costs a peek, a hold and a commit per key, a refused one a peek; on one key it is one call", async () => {
  const requests = [1, 2, 3].map((n) => ({ policy: "closed", key: `cost ${n}` }));
  const acts = async (requests) => (await batch(requests, withFaults())).headers["x-acts"];
  assert.equal(await acts(requests), "look look look hold hold hold settle settle settle");
  assert.equal(await acts([requests[0], { ...requests[0], policy: "open" }]), "take");
  assert.equal(await acts(requests.slice(2)), "take");
  await spend(requests[1]);
  assert.equal(await acts(requests), "look look look");
  assert.deepEqual(await levels(requests), [9 - 1, 0, 9 - 1]);
});

test("a refused batch writes no row and sets no alarm", async () => {
  const own = await start({ policies: POLICIES, around });
  // Each with its own keys, since their order is that of their hashes.
  for (let n = 0; n < 4; n++) {
    const fresh = ["a", "b", "c"].map((key) => ({ policy: "budget", key: `${key} ${n}` }));
    const spent = { policy: "closed", key: `spent ${n}`, cost: 10 };
    await own.post("charge", spent);
    assert.equal((await own.post("batch", { requests: [...fresh, spent] })).status, 429);
    // Nor does one refused after a hold.
    const taken = { policy: "closed", key: `taken since ${n}`, cost: 10 };
    const since = { ...(await gate(() => own.post("charge", taken))), act: "hold", policy: "closed" };
    assert.equal((await own.post("batch", { requests: [...fresh, taken] }, withFaults(since))).status, 429);
  }
  await own.kill();
  const objects = own.databaseFiles().map(contents);
  const written = objects.filter(({ rows, alarmAt }) => rows.length > 0 || alarmAt !== undefined);
  assert.deepEqual([objects.length, written.length], [4 * 5, 4 * 2], "only those that were charged");
  await own.stop();
});

test("keys are called in parallel: 16 commits of 400 ms each take 400 ms", async () => {
  const requests = Array.from({ length: 16 }, (_, n) => ({ policy: "closed", key: `at once ${n}` }));
  const began = performance.now();
  const { status, text } = await batch(requests, withFaults({ fault: "slow", ms: 400, act: "settle" }));
  const took = performance.now() - began;
  assert.equal(status, 200, text);
  assert.ok(took > 400 && took < 3_000, `${took} ms`);
  assert.deepEqual(await levels(requests), Array(16).fill(9));
});

test("a batch is answered within 5 s, and what it has done by then is undone", async () => {
  const requests = ["late 0", "late 1"].map((key) => ({ policy: "closed", key }));
  const slow = (act, ms) => ({ fault: "late", ms, act });
  const began = performance.now();
  const answer = await batch(requests, withFaults(slow("look", 1_900), slow("hold", 1_900), slow("settle", 1_900)));
  const took = performance.now() - began;
  assert.deepEqual([answer.status, answer.body.cause], [503, "timeout"], answer.text);
  assert.ok(took > 4_900 && took < 6_000, `${took} ms`);
  await assertLevels(requests, [10, 10]);
});

const COMMITS = [
  [{ fault: "throws" }, "failed"],
  [{ fault: "overloaded" }, "failed"], // others may have been carried out, and perhaps cannot be undone
  [{ fault: "hangs" }, "timeout"],
  [{ fault: "retryable" }, "failed"],
  [{ fault: "retryable", after: true }, "failed"],
  [{ fault: "of no version" }, "failed"],
];
for (const [fault, cause] of COMMITS) {
  test(`a commit ${JSON.stringify(fault)}: what the others took is returned`, async () => {
    const requests = of(`commit ${JSON.stringify(fault)}`, ["closed", "budget", "open"]);
    const answer = await batch(requests, withFaults({ ...fault, act: "settle", policy: "closed" }));
    assert.deepEqual([answer.status, answer.body.cause], [503, cause], answer.text);
    await assertLevels(requests, [10, 10, 10]);
  });
}

test("a hold whose answer was lost is aborted too", async () => {
  const requests = of("lost hold", ["closed", "budget"]);
  for (const fault of ["throws", "retryable"]) {
    const answer = await batch(requests, withFaults({ fault, after: true, act: "hold", policy: "closed" }));
    assert.deepEqual([answer.status, answer.body.cause], [503, "failed"], answer.text);
    await assertLevels(requests, [10, 10]);
  }
});

test("the answer neither waits for aborts nor mentions them", async () => {
  const requests = of("not waited for", ["budget", "closed"]);
  const slow = { fault: "slow", ms: 1_500, act: "cancel" };
  for (const fault of [
    slow,
    { ...slow, fault: "late" },
    { fault: "retryable", after: true, times: 1, act: "cancel" },
  ]) {
    const since = { ...(await gate(() => spend(requests[1]))), act: "hold", policy: "closed" };
    const began = performance.now();
    const answer = await batch(requests, withFaults(fault, since));
    assert.ok(performance.now() - began < 1_400);
    assert.deepEqual(answer.body.results, [verdict("budget", 10), verdict("closed", 0)], answer.text);
    await tollgate.post("reset", requests[1]);
    await assertLevels(requests, [10, 10]);
  }
  await tollgate.logged("asked late: cancel");
});

test("a client that disconnects midway leaves nothing half done", async () => {
  for (const act of ["look", "hold", "settle"]) {
    const requests = of(`goes away, ${act}`, ["closed", "budget"]);
    const goes = { ...(await gate(() => void sent.destroy())), act, policy: "budget" };
    const headers = {
      authorization: `Bearer ${TOKEN}`,
      "content-type": "application/json",
      "x-tollgate-test-now": NOW,
      "x-fault": JSON.stringify(goes),
    };
    const sent = request({ port: tollgate.port, method: "POST", path: "/v1/batch", headers });
    sent.end(JSON.stringify({ requests }));
    await assert.rejects(once(sent, "response"), { code: "ECONNRESET" });
    await assertLevels(requests, [9, 9], act);
  }
});

test("a repeated batch gets the same answer and takes once", async () => {
  const requests = of("again", ["closed", "budget"]);
  const id = { headers: { "idempotency-key": "again" } };
  const first = await batch(requests, id);
  assert.deepEqual([first.status, first.body.replayed], [200, undefined], first.text);
  for (const one of requests) await tollgate.consume({ ...one, cost: 9 });
  // While the first could still undo it, the second commits the shared hold as well, so that it stays.
  for (const [ms, acts] of [
    [0, "look look hold hold settle settle"],
    [9_999, "look look hold hold settle settle"],
    [10_000, "look look hold hold"],
  ]) {
    const again = await batch(requests, { ...id, now: NOW + ms });
    assert.deepEqual([again.status, again.body.replayed], [200, true], again.text);
    assert.equal(again.headers["x-acts"], acts, `${ms} ms`);
  }
  assert.deepEqual(await levels(requests), [0, 0]);
});

test("a batch sent twice at once takes once, and is not undone when one of the two fails", async () => {
  const lost = [
    { fault: "throws", after: true },
    { fault: "retryable", after: true },
  ];
  for (const [n, fault] of [...lost, { fault: "late", ms: 300 }, { fault: "hangs" }].entries()) {
    const requests = of(`twice ${n}`, ["closed", "budget"]);
    const key = { "idempotency-key": `twice ${n}` };
    const faults = JSON.stringify({ ...fault, act: "settle", policy: "budget" });
    const first = batch(requests, { headers: { ...key, "x-fault": faults } });
    await pause(100);
    const second = await batch(requests, { headers: key });
    const statuses = [(await first).status, second.status];
    if (statuses.includes(200)) await assertLevels(requests, [9, 9], `${fault} ${statuses}`);
    assert.ok(
      statuses.every((status) => status === 200 || status === 503),
      `${fault} ${statuses}`,
    );
    assert.equal((await batch(requests, { headers: key })).status, 200);
    assert.deepEqual(await levels(requests), [9, 9], fault);
  }
});

test("a batch whose holds have expired is not granted, and takes nothing", async () => {
  const requests = of("ended", ["closed", "budget"]);
  const expire = async () => {
    for (const one of requests) await tollgate.post("inspect", one, { now: NOW + 10_000 });
  };
  const answer = await batch(requests, withFaults({ ...(await gate(expire, 2)), act: "settle" }));
  assert.deepEqual([answer.status, answer.body.cause], [503, "failed"], answer.text);
  await assertLevels(requests, [10, 10]);
});

test("a retry of a partly committed batch says what was taken if it is refused, and otherwise completes it", async () => {
  const requests = of("in part", ["closed", "budget"]);
  const headers = { "idempotency-key": "in part" };
  const faults = [
    { fault: "throws", act: "settle", policy: "budget" },
    { fault: "throws", act: "cancel", policy: "closed" },
  ];
  const half = await batch(requests, { headers: { ...headers, "x-fault": JSON.stringify(faults) } });
  assert.equal(half.status, 503, half.text);
  await assertLevels(requests, [9, 10]);
  await spend(requests[1]);
  const refused = await batch(requests, { headers });
  assert.equal(refused.status, 429, refused.text);
  assert.match(refused.body.detail, /^an earlier attempt took what is marked as replayed; now policy budget /);
  const said = ({ replayed, allowed }) => [replayed, allowed];
  assert.deepEqual(refused.body.results.map(said), [
    [true, true],
    [undefined, false],
  ]);
  await tollgate.post("reset", requests[1]);
  assert.equal((await batch(requests, { headers })).status, 200);
  assert.deepEqual(await levels(requests), [9, 9]);
});

test("a batch of one that fails open has its result, like any batch", async () => {
  const { status, body } = await batch([{ policy: "open", key: "one" }], withFaults({ fault: "throws" }));
  const degraded = "failed";
  assert.deepEqual(
    [status, body],
    [200, { allowed: true, degraded, results: [{ allowed: true, policy: "open", degraded }] }],
  );
});

test("an overloaded key fails a batch open only if every policy in it lists overloaded", async () => {
  for (const [policies, status] of [
    [["open"], 503],
    [["flooded"], 200],
    [["open", "open"], 503],
    [["flooded", "open"], 503],
    [["flooded", "closed"], 503],
    [["flooded", "flooded"], 200],
  ]) {
    const requests = policies.map((policy, n) => ({ policy, key: `flooded ${n}` }));
    const answer = await batch(requests, withFaults({ fault: "overloaded", times: 1 }));
    assert.equal(answer.status, status, `${policies}: ${answer.text}`);
    assert.equal(status === 200 ? answer.body.degraded : answer.body.cause, "overloaded");
    assert.deepEqual(await levels(requests), Array(policies.length).fill(10));
  }
  // Nor does a policy that names this cause fail open for another.
  const other = await batch([{ policy: "flooded", key: "other" }], withFaults({ fault: "throws" }));
  assert.deepEqual([other.status, other.body.cause], [503, "failed"], other.text);
});
