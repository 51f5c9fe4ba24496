// Reservations: taken now, settled later at the real cost, once; and the cost of an unsettled one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { allowed, assertAnswer, problem } from "./answers.mjs";
import { NOW, start } from "./workerd.mjs";

const POLICIES = {
  // A budget that never refills shows every token.
  keep: { rate: 0, period: "1s", capacity: 20, max_debt: 10, reservation_ttl: "10s" },
  back: { rate: 0, period: "1s", capacity: 20, max_debt: 10, reservation_ttl: "10s", unsettled: "refund" },
  queue: { rate: 1, period: "1s", capacity: 5, max_debt: 10 },
  short: { rate: 1, period: "1s", capacity: 5, max_debt: 10, reservation_ttl: "2s", unsettled: "refund" },
  pair: {
    limits: [
      { name: "requests", rate: 0, period: "1s", capacity: 10 },
      { name: "tokens", rate: 0, period: "1s", capacity: 100, max_debt: 50 },
    ],
  },
  many: { rate: 0, period: "1s", capacity: 2_000 },
};
const FIELD = { q: 20, "tollgate-capacity": 20 }; // of keep and back
const tollgate = await start({ policies: POLICIES });

const unknown = problem(
  404,
  "unknown-reservation",
  "Unknown reservation",
  "this policy and key have no such reservation, or it expired: for an hour it can be settled or cancelled, not extended",
);

const closed = problem(
  409,
  "reservation-closed",
  "Reservation closed",
  "this reservation was already settled or cancelled; only the same request can be repeated",
);

async function reserve(policy, key, cost, options) {
  const { status, text, body } = await tollgate.consume({ policy, key, cost, mode: "reserve" }, options);
  assert.equal(status, 200, text);
  assert.match(body.reservation, /^[0-9a-f]{13}$/);
  return body;
}

/** The level of the first limit, negative in debt, and how many reservations are open. */
async function standing(policy, key, options) {
  const { limits, open_reservations } = (await tollgate.post("inspect", { policy, key }, options)).body;
  return [limits[0].remaining - limits[0].owed, open_reservations];
}

test("each has its own id, is ready in its turn, and may be settled for a while after that", async () => {
  const ids = new Set();
  for (const [cost, ready] of [
    [4, 0],
    [4, 3_000],
    [7, 10_000],
  ]) {
    const { reservation, ready_at, expires_at } = await reserve("queue", "alice", cost);
    assert.deepEqual([ready_at, expires_at], [NOW + ready, NOW + ready + 600_000]);
    ids.add(reservation);
  }
  assert.equal(ids.size, 3);
  assert.deepEqual(await standing("queue", "alice"), [-10, 3]);
});

test("settle leaves the budget as if the real cost had been taken at once", async () => {
  for (const [real, left] of [
    [0, 20],
    [4, 16],
    [5, 15],
    [6, 14],
    [20, 0],
    [25, -5],
    [30, -10],
    [99, -10], // the work is done: it stops at the largest debt
  ]) {
    const key = `real cost ${real}`;
    const { reservation } = await reserve("keep", key, 5);
    assert.deepEqual(await standing("keep", key), [15, 1]);
    const answer = await tollgate.post("settle", { policy: "keep", key, reservation, cost: real });
    const verdict = {
      policy: "keep",
      cost: real,
      tokens: 20 - left, // its final cost
      ...(real > 20 - left ? { unpaid: real - (20 - left) } : {}),
      limit: 20,
      remaining: Math.max(left, 0),
      ...(left < 0 ? { owed: -left } : {}),
      now: NOW,
      reset_at: left === 20 ? NOW : null,
    };
    assertAnswer(answer, allowed(verdict, FIELD), key);
    assert.deepEqual(await standing("keep", key), [left, 0], key);
  }
});

test("cancel gives everything back", async () => {
  const { reservation } = await reserve("keep", "cancels", 5);
  const verdict = { policy: "keep", cost: 0, tokens: 5, limit: 20, remaining: 20, now: NOW, reset_at: NOW };
  const answer = await tollgate.post("cancel", { policy: "keep", key: "cancels", reservation });
  assertAnswer(answer, allowed(verdict, FIELD));
  assert.deepEqual(await standing("keep", "cancels"), [20, 0]);
});

test("each id is valid once, and only for its policy and key; a repetition is a replay", async () => {
  const of = { policy: "keep", key: "bob" };
  const settle = (reservation, ask = of) => tollgate.post("settle", { ...ask, reservation, cost: 1 });
  const settleAsReserved = (reservation) => tollgate.post("settle", { ...of, reservation });
  const cancel = (reservation, ask = of) => tollgate.post("cancel", { ...ask, reservation });
  const ids = [];
  for (let i = 0; i < 4; i++) ids.push((await reserve("keep", "bob", 4)).reservation);
  await reserve("back", "bob", 1);
  for (const other of [
    { policy: "back", key: "bob" },
    { policy: "keep", key: "carol" },
  ]) {
    for (const end of [settle, cancel]) assertAnswer(await end(ids[0], other), unknown, JSON.stringify(other));
  }
  for (const id of ["0000000000000", "fffffffffffff", "1"]) assertAnswer(await settle(id), unknown, id);
  assert.deepEqual(await standing("keep", "bob"), [4, 5], "nothing has changed");
  const ends = [settle, cancel, settleAsReserved];
  for (const [end, id, left] of [
    [settle, ids[0], 7],
    [cancel, ids[1], 11],
    [settleAsReserved, ids[2], 11],
    [cancel, ids[3], 15],
  ]) {
    const first = await end(id);
    assert.equal(first.status, 200, first.text);
    for (let i = 0; i < 2; i++) {
      const again = await end(id);
      assert.deepEqual([again.status, again.body], [200, { ...first.body, replayed: true }]);
      for (const other of ends.filter((other) => other !== end)) assertAnswer(await other(id), closed, id);
    }
    assert.equal((await standing("keep", "bob"))[0], left);
  }
});

test("extend makes it last longer and may take more: from all limits, or from none", async () => {
  const of = { policy: "pair", key: "extended" };
  const levels = async () => {
    const { limits, open_reservations } = (await tollgate.post("inspect", of)).body;
    return [...limits.map(({ remaining }) => remaining), open_reservations];
  };
  const { reservation, expires_at } = await reserve(of.policy, of.key, { requests: 1, tokens: 40 });
  const extend = (cost, minute, more) =>
    tollgate.post("extend", { ...of, reservation, cost, ...more }, { now: NOW + minute * 60_000 });
  assert.equal(expires_at, NOW + 600_000);
  for (const [cost, minute, left] of [
    [undefined, 9, [9, 60, 1]],
    [{ requests: 0, tokens: 0 }, 18, [9, 60, 1]],
    [{ requests: 0, tokens: 50 }, 27, [9, 10, 1]],
  ]) {
    const { status, text, body } = await extend(cost, minute);
    assert.equal(status, 200, text);
    assert.deepEqual([body.reservation, body.expires_at], [reservation, NOW + (minute + 10) * 60_000]);
    assert.deepEqual([body.ready_at, body.tokens, body.replayed], [undefined, undefined, undefined]);
    assert.deepEqual(await levels(), left);
  }
  const refused = await extend({ requests: 1, tokens: 11 }, 30);
  assert.deepEqual([refused.status, refused.body.limits.map(({ remaining }) => remaining)], [429, [9, 10]]);
  assert.deepEqual([refused.body.reservation, refused.body.expires_at], [undefined, undefined]);
  assert.deepEqual(await levels(), [9, 10, 1]);
  assert.equal((await extend({ requests: 0, tokens: 101 }, 30)).status, 400);
  assert.deepEqual(await extend(undefined, 36.99).then(({ status }) => status), 200, "refused, it was left as it was");
  assertAnswer(await extend(1, 40, { policy: "keep" }), unknown);
  const settled = await tollgate.post("settle", { ...of, reservation, cost: { requests: 1, tokens: 70 } });
  assert.deepEqual([settled.status, await levels()], [200, [9, 30, 0]]);
  assertAnswer(await extend(undefined, 40), closed);
  assertAnswer(await extend({ requests: 1, tokens: 1 }, 40, { reservation: "1" }), unknown);
  assert.deepEqual(await levels(), [9, 30, 0]);
});

test("settle without a cost charges what was reserved", async () => {
  const ask = { policy: "pair", key: "judy" };
  const cost = { requests: 1, tokens: 60 };
  const { reservation } = (await tollgate.consume({ ...ask, mode: "reserve", cost })).body;
  const { status, body } = await tollgate.post("settle", { ...ask, reservation });
  assert.equal(status, 200);
  assert.deepEqual(
    body.limits.map(({ name, cost, tokens, remaining }) => [name, cost, tokens, remaining]),
    [
      ["requests", 1, 1, 9],
      ["tokens", 60, 60, 40],
    ],
  );
});

test("of many concurrent settlements and cancellations, only one kind succeeds", async () => {
  const { reservation } = await reserve("keep", "race", 10);
  const ends = Array.from({ length: 32 }, (_, index) => {
    const ask = { policy: "keep", key: "race", reservation };
    return index % 2 ? tollgate.post("cancel", ask) : tollgate.post("settle", { ...ask, cost: 0 });
  });
  const statuses = (await Promise.all(ends)).map(({ status }) => status).sort();
  assert.deepEqual(statuses, [...Array(16).fill(200), ...Array(16).fill(409)]);
  assert.deepEqual(await standing("keep", "race"), [20, 0]);
});

test("cancelled tokens go to the next caller; no promised ready_at moves", async () => {
  const key = "dave";
  const send = (mode, cost, id, options) => {
    const headers = { "idempotency-key": id };
    return tollgate.consume({ policy: "queue", key, cost, mode }, { headers, ...options });
  };
  const told = [];
  for (const [index, cost] of [5, 3, 2].entries()) told.push((await send("reserve", cost, `${index}`)).body);
  assert.deepEqual(
    told.map(({ ready_at }) => ready_at - NOW),
    [0, 3_000, 5_000],
  );
  await tollgate.post("cancel", { policy: "queue", key, reservation: told[1].reservation });
  const again = (await send("reserve", 2, "2")).body;
  assert.deepEqual([again.ready_at, again.expires_at, again.replayed], [NOW + 5_000, NOW + 605_000, true]);
  const next = await reserve("queue", key, 3);
  assert.equal(next.ready_at, NOW + 5_000, "8 s if nothing had been given back");
  const settle = { policy: "queue", key, reservation: told[2].reservation, cost: 2 };
  assert.equal((await tollgate.post("settle", settle, { now: NOW + 604_999 })).status, 200);
});

test("tokens given back are clipped to the capacity", async () => {
  const { reservation } = await reserve("queue", "erin", 4);
  const now = NOW + 3_000; // 3 of the 4 have come back already
  const answer = await tollgate.post("cancel", { policy: "queue", key: "erin", reservation }, { now });
  assert.deepEqual([answer.body.tokens, answer.body.remaining], [1, 5], answer.text);
});

test("at expires_at it costs all or nothing, and it can still be settled for an hour", async () => {
  for (const [policy, left] of [
    ["keep", 15],
    ["back", 20],
  ]) {
    const settle = (key, reservation, now) => tollgate.post("settle", { policy, key, reservation, cost: 2 }, { now });
    const before = await reserve(policy, "before", 5);
    assert.equal(before.expires_at, NOW + 10_000);
    assert.deepEqual(await standing(policy, "before", { now: NOW + 9_999 }), [15, 1]);
    assert.equal((await settle("before", before.reservation, NOW + 9_999)).status, 200);
    assert.deepEqual(await standing(policy, "before", { now: NOW + 10_000 }), [18, 0], "settled is settled");
    const [at, long] = [await reserve(policy, "at", 5), await reserve(policy, "long", 5)];
    assert.deepEqual(await standing(policy, "at", { now: NOW + 10_000 }), [left, 0]);
    for (const [key, { reservation }, now] of [
      ["at", at, NOW + 10_000],
      ["long", long, NOW + 3_609_999],
    ]) {
      for (const more of [{}, { replayed: true }]) {
        const { status, body } = await settle(key, reservation, now);
        const { late, replayed, tokens, remaining } = body;
        assert.deepEqual(
          { status, late, tokens, remaining, ...(replayed && { replayed }) },
          {
            status: 200,
            late: true,
            tokens: 2,
            remaining: 18,
            ...more,
          },
        );
      }
      assert.deepEqual(await standing(policy, key, { now }), [18, 0]);
    }
    const forgotten = await reserve(policy, "forgotten", 5);
    assertAnswer(await settle("forgotten", forgotten.reservation, NOW + 3_610_000), unknown);
    assert.deepEqual(await standing(policy, "forgotten", { now: NOW + 3_610_000 }), [left, 0]);
  }
});

test("the time to settle begins when it is ready", async () => {
  const first = await reserve("short", "frank", 5);
  const second = await reserve("short", "frank", 4);
  assert.deepEqual([first.expires_at, second.expires_at], [NOW + 2_000, NOW + 6_000]);
  // The first gives back 5 at 2 000, as it was not settled: -4 + 2 + 5.
  assert.deepEqual(await standing("short", "frank", { now: NOW + 1_999 }), [-3, 2]);
  assert.deepEqual(await standing("short", "frank", { now: NOW + 2_000 }), [3, 1]);
  assert.deepEqual(await standing("short", "frank", { now: NOW + 5_999 }), [5, 1]);
  assert.deepEqual(await standing("short", "frank", { now: NOW + 6_000 }), [5, 0]);
});

test("each limit is settled at its own real cost", async () => {
  const ask = { policy: "pair", key: "grace" };
  const { reservation, limits } = (
    await tollgate.consume({ ...ask, mode: "reserve", cost: { requests: 1, tokens: 60 } })
  ).body;
  assert.deepEqual(
    limits.map(({ remaining }) => remaining),
    [9, 40],
  );
  const settled = await tollgate.post("settle", { ...ask, reservation, cost: { requests: 1, tokens: 130 } });
  assert.deepEqual([settled.status, settled.body.allowed], [200, true]);
  assert.deepEqual(
    settled.body.limits.map(({ name, cost, tokens, remaining, owed }) => [name, cost, tokens, remaining, owed]),
    [
      ["requests", 1, 1, 9, undefined],
      ["tokens", 130, 130, 0, 30],
    ],
  );
});

test("a key has at most a thousand open reservations", async () => {
  const detail = "this key has 1000 open reservations, the maximum, with their extensions: settle or cancel some";
  const tooMany = problem(409, "too-many-reservations", "Too many reservations", detail);
  const ids = [];
  for (let i = 0; i < 20; i++) {
    const bodies = await Promise.all(Array.from({ length: 50 }, () => reserve("many", "henry", 1)));
    ids.push(...bodies.map(({ reservation }) => reservation));
  }
  assert.equal(new Set(ids).size, 1_000);
  const ask = { policy: "many", key: "henry" };
  assertAnswer(await tollgate.consume({ ...ask, mode: "reserve" }), tooMany);
  assert.deepEqual(await standing("many", "henry"), [1_000, 1_000], "and that takes nothing");
  assert.equal((await tollgate.consume(ask)).status, 200, "other modes are served");
  await tollgate.post("cancel", { ...ask, reservation: ids[0] });
  await reserve("many", "henry", 1);
});

test("open and closed reservations survive kill -9", async () => {
  const restart = async () => {
    await tollgate.kill();
    await tollgate.restart();
  };
  const open = [];
  for (const policy of ["keep", "back"]) {
    for (const end of ["settle", "cancel", "none"]) {
      const of = { policy, key: `${policy}, ${end}` };
      open.push({ of, end, reservation: (await reserve(policy, of.key, 5)).reservation });
    }
  }
  await restart();
  for (const { of, end, reservation } of open) {
    assert.deepEqual(await standing(of.policy, of.key, { now: NOW + 9_999 }), [15, 1], of.key);
    const cost = end === "settle" ? 1 : undefined;
    if (end !== "none") assert.equal((await tollgate.post(end, { ...of, reservation, cost })).status, 200, of.key);
  }
  await restart(); // unsettled ones expire while nothing runs
  for (const { of, end, reservation } of open) {
    const left = { settle: 19, cancel: 20, none: 11 }[end];
    const options = { now: NOW + 10_000 };
    const settle = (cost) => tollgate.post("settle", { ...of, reservation, cost }, options);
    const cancel = () => tollgate.post("cancel", { ...of, reservation }, options);
    if (end === "none") {
      const { status, body } = await settle(9);
      assert.deepEqual([status, body.late, body.tokens], [200, true, 9], of.key);
    } else {
      assertAnswer(await settle(9), closed, of.key);
      if (end !== "settle") assertAnswer(await settle(1), closed, of.key);
      if (end !== "cancel") assertAnswer(await cancel(), closed, of.key);
      const { status, body } = await { settle: () => settle(1), cancel }[end]();
      assert.deepEqual([status, body.replayed, body.tokens], [200, true, { settle: 1, cancel: 5 }[end]], of.key);
    }
    assert.deepEqual(await standing(of.policy, of.key, options), [left, 0], of.key);
  }
});

test("settle, cancel and extend need a reservation's id", async () => {
  const bad = (detail) => problem(400, "bad-request", "Bad request", detail);
  const of = { policy: "keep", key: "ivan" };
  const notId = (found) => `\`reservation\` must be a reservation's id of 13 hex digits, not ${found}`;
  for (const [verb, more, detail] of [
    ["settle", { cost: 1 }, "the field `reservation` is missing: the id in the answer that reserved the tokens"],
    ["settle", { reservation: "", cost: 1 }, notId('""')],
    ["settle", { reservation: "+1", cost: 1 }, notId('"+1"')],
    ["cancel", { reservation: "10000000000000" }, notId('"10000000000000"')],
    [
      "cancel",
      { reservation: "1", cost: 1 },
      'the body cannot have the field "cost"; its fields are policy, key, reservation, snapshot, limits',
    ],
    ["extend", { cost: 1 }, "the field `reservation` is missing: the id in the answer that reserved the tokens"],
    ["cancel", {}, "the field `reservation` is missing: the id in the answer that reserved the tokens"],
  ]) {
    assertAnswer(await tollgate.post(verb, { ...of, ...more }), bad(detail), `${verb} ${JSON.stringify(more)}`);
  }
});
