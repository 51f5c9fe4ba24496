// An Idempotency-Key: a repeated request gets its first answer again and takes nothing more.
import assert from "node:assert/strict";
import { test } from "node:test";
import { allowed, assertAnswer, problem } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  api: { rate: 10, period: "10s", max_debt: 10 },
  other: { rate: 10, period: "10s" },
  once: { rate: 0, period: "1s", capacity: 10_000, max_debt: 100 },
  minute: { rate: 0, period: "1s", capacity: 100, idempotency_ttl: "1m" },
  week: { rate: 0, period: "1s", capacity: 100, idempotency_ttl: "7days" },
};
const API = { q: 10, w: 10, "tollgate-capacity": 10 };
const tollgate = await start({ policies: POLICIES });

const withId = (id, at = 0) => ({ headers: { "idempotency-key": id }, now: NOW + at });

async function restart() {
  await tollgate.kill();
  await tollgate.restart();
}

/** The tokens left in a budget, negative in debt. */
async function left(policy, key, options) {
  const [{ remaining, owed }] = (await tollgate.post("inspect", { policy, key }, options)).body.limits;
  return remaining - owed;
}

test("a replay is the first answer with the current remaining, and takes nothing, even after kill -9", async () => {
  const ask = { policy: "api", key: "alice", cost: 3 };
  const expected = (at, remaining, full, more) => {
    const verdict = { policy: "api", cost: 3, limit: 10, remaining, now: NOW + at, reset_at: NOW + full, ...more };
    return allowed(verdict, API, 1);
  };
  assertAnswer(await tollgate.consume(ask, withId("a", 0)), expected(0, 7, 3_000));
  for (let i = 0; i < 2; i++) {
    assertAnswer(await tollgate.consume(ask, withId("a", 500)), expected(500, 7, 3_000, { replayed: true }));
  }
  await tollgate.consume({ ...ask, cost: 2 }, { now: NOW + 500 });
  await restart();
  assertAnswer(await tollgate.consume(ask, withId("a", 1_000)), expected(1_000, 6, 5_000, { replayed: true }));
  // A grant stays a grant, even if it would be refused now.
  await tollgate.consume({ ...ask, cost: 6 }, { now: NOW + 1_000 });
  assertAnswer(await tollgate.consume(ask, withId("a", 1_000)), expected(1_000, 0, 11_000, { replayed: true }));
  assert.equal((await tollgate.consume(ask, withId("b", 1_000))).status, 429, "another key is another request");
});

test("every verb that moves tokens moves them once", async () => {
  const of = { policy: "api", key: "bob" };
  const reserved = (await tollgate.consume({ ...of, mode: "reserve", cost: 1 })).body.reservation;
  const another = (await tollgate.consume({ ...of, mode: "reserve", cost: 1 })).body.reservation;
  // One by one from 8 of 10; each is sent three times, the third after a kill.
  const rows = [
    ["extend", { reservation: another, cost: 1 }, 7, { reservation: another, expires_at: NOW + 600_000 }],
    ["consume", { mode: "take", cost: 1 }, 6],
    ["consume", { mode: "up_to", cost: 9 }, 0, { tokens: 6 }],
    ["consume", { mode: "borrow", cost: 4 }, -4, { ready_at: NOW }],
    ["consume", { mode: "reserve", cost: 3 }, -7, { ready_at: NOW + 7_000 }],
    ["charge", { cost: 9 }, -10, { tokens: 3, unpaid: 6 }],
    ["settle", { reservation: reserved, cost: 0 }, -9, { tokens: 0 }],
    ["cancel", { reservation: another }, -7, { tokens: 2 }],
    ["refund", { cost: 5 }, -2, { tokens: 5 }],
    ["reset", {}, 10, { tokens: 12 }],
    ["refund", { cost: 5 }, 10, { tokens: 0 }],
  ];
  for (const [index, [verb, more, level, said = {}]] of rows.entries()) {
    const first = await tollgate.post(verb, { ...of, ...more }, withId(`row ${index}`));
    const cost = more.cost ?? 0;
    const verdict = {
      policy: "api",
      cost,
      ...said,
      limit: 10,
      remaining: Math.max(level, 0),
      ...(level < 0 ? { owed: -level } : {}),
      now: NOW,
      reset_at: NOW + (10 - level) * 1_000,
    };
    const t = 1 + Math.max(0, -level); // a token a second, once the debt is paid
    if (more.mode === "reserve") {
      const { reservation } = first.body;
      Object.assign(verdict, { reservation, expires_at: NOW + 607_000 });
    }
    assertAnswer(first, allowed(verdict, API, t), `${verb} ${JSON.stringify(more)}`);
    for (const isKilled of [false, true]) {
      if (isKilled) await restart();
      const again = await tollgate.post(verb, { ...of, ...more }, withId(`row ${index}`));
      assertAnswer(again, allowed({ ...verdict, replayed: true }, API, t), `${verb} again`);
    }
  }
});

test("a refusal is not remembered: the same request is decided anew", async () => {
  const ask = { policy: "api", key: "carol", cost: 3 };
  await tollgate.consume({ ...ask, cost: 10 });
  for (let i = 0; i < 2; i++) {
    const { status, body } = await tollgate.consume(ask, withId("c", 2_999));
    assert.deepEqual([status, body.remaining, body.replayed], [429, 2, undefined]);
  }
  for (const replayed of [undefined, true]) {
    const { status, body } = await tollgate.consume(ask, withId("c", 3_000));
    assert.deepEqual([status, body.remaining, body.replayed], [200, 0, replayed]);
  }
});

test("peeks are not remembered", async () => {
  const ask = { policy: "api", key: "dave", cost: 1 };
  for (const verb of ["peek", "peek", "consume", "peek"]) {
    assert.equal((await tollgate.post(verb, ask, withId("d"))).body.replayed, undefined, verb);
  }
  assert.equal((await tollgate.consume(ask, withId("d"))).body.replayed, true);
});

test("a different request under the same key is a 422 and takes nothing; an equivalent one is a replay", async () => {
  const detail = "this Idempotency-Key was used for another request; use a new one for each request";
  const reused = problem(422, "idempotency-key-reused", "Idempotency key reused", detail);
  const of = { policy: "api", key: "erin" };
  await tollgate.consume({ ...of, cost: 1 }, withId("e"));
  for (const isKilled of [false, true]) {
    if (isKilled) await restart();
    for (const [verb, more] of [
      ["consume", { cost: 1, policy: "other" }],
      ["consume", { cost: 2 }],
      ["consume", { cost: 0 }],
      ["consume", { cost: 1, mode: "up_to" }],
      ["consume", { cost: 1, mode: "reserve" }],
      ["consume", { cost: 1, mode: "borrow" }],
      ["charge", { cost: 1 }],
      ["refund", { cost: 1 }],
      ["reset", {}],
    ]) {
      assertAnswer(
        await tollgate.post(verb, { ...of, ...more }, withId("e")),
        reused,
        `${verb} ${JSON.stringify(more)}`,
      );
    }
    for (const body of [
      '{"key":"erin", "policy":"api"}',
      '{"policy":"api","key":"er\\u0069n","cost":1.0,"mode":"take"}',
    ]) {
      const answer = await tollgate.send({ path: "/v1/consume?again", body, ...withId("e") });
      assert.deepEqual([answer.status, answer.body.replayed], [200, true], answer.text);
    }
    assert.equal(await left("api", "erin"), 9);
  }
});

test("the same idempotency key under another policy or key is another request", async () => {
  for (const ask of [
    { policy: "api", key: "frank" },
    { policy: "api", key: "grace" },
  ]) {
    for (const replayed of [undefined, true]) {
      const { status, body } = await tollgate.consume(ask, withId("f"));
      assert.deepEqual([status, body.replayed, body.remaining], [200, replayed, 9], JSON.stringify(ask));
    }
  }
});

test("it is valid for an hour, and no number of others evicts it", async () => {
  const COUNT = 200;
  const ask = { policy: "once", key: "hour", cost: 1 };
  const send = (n, at) => tollgate.consume(ask, withId(`hour ${n}`, at));
  for (let n = 0; n < COUNT; n++) assert.equal((await send(n, 0)).body.replayed, undefined);
  for (const isKilled of [false, true]) {
    if (isKilled) await restart();
    for (let n = 0; n < COUNT; n++) assert.equal((await send(n, 3_599_999)).body.replayed, true, `${n}`);
  }
  assert.equal(await left("once", "hour"), 10_000 - COUNT);
  const { status, body } = await send(0, 2 * 3_600_000);
  assert.deepEqual([status, body.replayed], [200, undefined], "afterwards it is a new request");
});

test("a repeated batch may name its budgets in any order", async () => {
  const requests = [
    { policy: "once", key: "order", cost: 1 },
    { policy: "api", key: "order", cost: 2 },
    { policy: "other", key: "order b", cost: 3 },
  ];
  const send = async (...order) => {
    const { status, body } = await tollgate.post(
      "batch",
      { requests: order.map((index) => requests[index]) },
      withId("order"),
    );
    return [status, body.replayed, body.results.map(({ cost }) => cost)];
  };
  assert.deepEqual(await send(0, 1, 2), [200, undefined, [1, 2, 3]]);
  assert.deepEqual(await send(2, 1, 0), [200, true, [3, 2, 1]]);
  await restart();
  assert.deepEqual(await send(1, 0, 2), [200, true, [2, 1, 3]]);
  assert.deepEqual([await left("once", "order"), await left("api", "order")], [9_999, 8]);
});

test("it has 1 to 255 bytes", async () => {
  const bad = problem(400, "bad-request", "Bad request", "an Idempotency-Key has 1 to 255 bytes of UTF-8");
  const ask = { policy: "other", key: "henry" };
  for (const [id, remaining] of [
    ["x", 9],
    ["x".repeat(255), 8],
    ['"550e8400-e29b-41d4-a716-446655440000"', 7],
  ]) {
    for (const replayed of [undefined, true]) {
      const { status, body } = await tollgate.consume(ask, withId(id));
      assert.deepEqual([status, body.remaining, body.replayed], [200, remaining, replayed], id);
    }
  }
  for (const id of ["", "x".repeat(256)]) assertAnswer(await tollgate.consume(ask, withId(id)), bad, id);
  assert.equal(await left("other", "henry"), 7);
});

test("a batch is replayed as a whole, over one key or several, even after kill -9", async () => {
  for (const keys of [
    ["one", "one"],
    ["several a", "several b"],
  ]) {
    const requests = [
      { policy: "api", key: keys[0], cost: 4 },
      { policy: "other", key: keys[1], cost: 1 },
    ];
    const result = (policy, cost, remaining) => {
      const reset_at = NOW + (10 - remaining) * 1_000;
      return { allowed: true, policy, cost, limit: 10, remaining, near_limit: false, now: NOW, reset_at };
    };
    const expected = (more) => ({
      status: 200,
      headers: { "content-type": "application/json" },
      body: { allowed: true, now: NOW, ...more, results: [result("api", 4, 6), result("other", 1, 9)] },
    });
    const id = `batch ${keys}`;
    assertAnswer(await tollgate.post("batch", { requests }, withId(id)), expected());
    for (const isKilled of [false, true]) {
      if (isKilled) await restart();
      for (let i = 0; i < 2; i++) {
        assertAnswer(await tollgate.post("batch", { requests }, withId(id)), expected({ replayed: true }), `${keys}`);
      }
    }
    // Nothing is held either, or it would come back later.
    assert.deepEqual([await left("api", keys[0]), await left("other", keys[1])], [6, 9]);
    assert.equal(await left("other", keys[1], { now: NOW + 500 }), 9);
  }
});

test("a refused batch is not remembered, and a 422 leaves nothing behind", async () => {
  const once = (key, cost) => ({ policy: "once", key, cost });
  const send = (requests, id) => tollgate.post("batch", { requests }, withId(id));
  const requests = [once("b1", 10), once("b2", 10)];
  await tollgate.post("charge", once("b2", 9_995));
  assert.equal((await send(requests, "refused")).status, 429);
  assert.equal((await send(requests, "refused")).status, 429);
  await tollgate.post("refund", once("b2", 9_995));
  for (const replayed of [undefined, true]) {
    const { status, body } = await send(requests, "refused");
    assert.deepEqual([status, body.replayed], [200, replayed]);
  }
  assert.deepEqual([await left("once", "b1"), await left("once", "b2")], [9_990, 9_990]);
  for (const mistake of [
    [once("b1", 10), once("b2", 11)],
    [once("b1", 11), once("b2", 10)],
    [once("b3", 10), once("b2", 11), once("b0", 10)],
  ]) {
    assert.equal((await send(mistake, "refused")).status, 422, JSON.stringify(mistake));
  }
  const levels = await Promise.all(["b0", "b1", "b2", "b3"].map((key) => left("once", key)));
  assert.deepEqual(levels, [10_000, 9_990, 9_990, 10_000]);
});

test("2 000 requests, each sent twice at once: each is charged once", async () => {
  const PAIRS = 2_000;
  // Every other one to the same key.
  const keyOf = (n) => (n % 2 ? "pairs" : `pairs ${n % 40}`);
  const charged = new Map();
  let next = 0;
  const caller = async () => {
    for (let n = next++; n < PAIRS; n = next++) {
      const ask = { policy: "once", key: keyOf(n) };
      const pair = await Promise.all([0, 1].map(() => tollgate.consume(ask, withId(`pair ${n}`))));
      assert.deepEqual(
        pair.map(({ status }) => status),
        [200, 200],
        pair[0].text,
      );
      const replays = pair.filter(({ body }) => body.replayed);
      assert.equal(replays.length, 1, `pair ${n}: one is the replay of the other`);
      charged.set(ask.key, (charged.get(ask.key) ?? 0) + 1);
    }
  };
  await Promise.all(Array.from({ length: 16 }, caller));
  assert.deepEqual([charged.size, charged.get("pairs"), charged.get("pairs 0")], [21, 1_000, 50]);
  for (const [key, count] of charged) assert.equal(await left("once", key), 10_000 - count, key);
});

test("batches sent twice at once take once", async () => {
  const keys = ["t1", "t2", "t3"];
  const requests = keys.map((key) => ({ policy: "once", key, cost: 2 }));
  for (let round = 1; round <= 40; round++) {
    const pair = await Promise.all([0, 1].map(() => tollgate.post("batch", { requests }, withId(`twice ${round}`))));
    assert.deepEqual(
      pair.map(({ status }) => status),
      [200, 200],
      pair.map(({ text }) => text).join("\n"),
    );
    const levels = await Promise.all(keys.map((key) => left("once", key)));
    assert.deepEqual(levels, Array(3).fill(10_000 - 2 * round), `round ${round}`);
  }
});

test("killed midway, and all sent again: each is charged once", async () => {
  for (let round = 0; round < 3; round++) {
    const ask = { policy: "once", key: `killed ${round}` };
    const send = (n) => tollgate.consume(ask, withId(`killed ${n}`));
    const answered = new Set();
    let next = 0;
    let killed;
    // Each goes on until it gets no answer: a request in flight at the kill may have been carried out.
    const caller = async () => {
      for (;;) {
        const n = next++;
        try {
          await send(n);
        } catch (error) {
          if (killed) return;
          throw error;
        }
        answered.add(n);
        if (answered.size === 20) killed = tollgate.kill();
      }
    };
    await Promise.all(Array.from({ length: 16 }, caller));
    await killed;
    await tollgate.restart();
    assert.equal(next, answered.size + 16);
    for (let n = 0; n < next; n++) {
      const { status, body } = await send(n);
      assert.equal(status, 200);
      if (answered.has(n)) assert.equal(body.replayed, true, `request ${n} was answered before`);
    }
    assert.equal(await left("once", ask.key), 10_000 - next);
  }
});

test("an answer is repeated for as long as the policy says, and a batch for as long as any of its policies", async () => {
  const [MINUTE, HOUR, WEEK] = [60_000, 3_600_000, 7 * 86_400_000];
  const one = (policy, key) => ["consume", { policy, key }];
  const batch = (...requests) => ["batch", { requests }];
  const [minute, week] = ["minute", "week"].map((policy) => ({ policy, key: "irene" }));
  for (const [name, ttl, [verb, body]] of [
    ["minute", MINUTE, one("minute", "irene")],
    ["once", HOUR, one("once", "irene")],
    ["week", WEEK, one("week", "irene")],
    ["both", WEEK, batch(minute, week)],
    ["keys", WEEK, batch(minute, { ...week, key: "jack" })],
  ]) {
    const ask = async (at) => {
      const { status, body: answer, text } = await tollgate.post(verb, body, withId(`for ${name}`, at));
      assert.equal(status, 200, text);
      return Boolean(answer.replayed ?? answer.results?.every(({ replayed }) => replayed));
    };
    assert.equal(await ask(0), false, name);
    await restart();
    assert.equal(await ask(ttl - 1), true, name);
    assert.equal(await ask(ttl), false, name);
  }
});
