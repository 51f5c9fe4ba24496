// Twin
import assert from "node:assert/strict";
import { test } from "node:test";
import { Budget, makeClock, watch } from "../../build/package/index.js";
import { NOW, start } from "../http/workerd.mjs";
import { random as randomOf, seedOf } from "../random.mjs";
import { Wire } from "./wire.mjs";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

const tollgate = await start({
  policies: {
    api: { rate: 10, period: "10s" }, // one a second, up to 10
    one: { rate: 1, period: "1h" },
    debt: { rate: 10, period: "10s", max_debt: 20 },
    open: { rate: 1, period: "1h", on_error: "open" },
    llm: {
      limits: [
        { name: "requests", rate: 3, period: "1s" },
        { name: "tokens", rate: 100, period: "1m", kind: "fixed_window", offset: "0s" },
      ],
    },
  },
});

let keys = 0;
/** A network, and a twin on it that has synced once on an unused key. */
async function synced({ policy = "api", trustMs, ...options } = {}) {
  const wire = new Wire(tollgate, options);
  const ask = { policy, key: `key ${keys++}` };
  const twin = wire.twin({ ...ask, ...(trustMs && { trustMs }) });
  await wire.until(twin.sync());
  return { wire, twin, ask, other: wire.client() };
}

/** How many consume requests were sent. */
const asked = (wire) => wire.sent.filter(({ path }) => path === "/v1/consume").length;
/** The statuses of those that arrived. */
const statuses = (wire) => wire.sent.filter(({ path }) => path === "/v1/consume").map(({ status }) => status);

test("asks for everything until the first response, then only for what will be granted", async () => {
  const wire = new Wire(tollgate);
  const twin = wire.twin({ policy: "api", key: "unknown" });
  assert.deepEqual(
    [twin.peek(), twin.remaining(), twin.fullAt()],
    [{ allowed: true, tokens: 0, readyAt: wire.now }, 0, Infinity],
  );
  const first = await wire.until(twin.consume(4));
  assert.equal(first.status, 200);
  assert.deepEqual([twin.remaining(), twin.fullAt()], [6, wire.now - 50 + 4_000]); // taken when the request was sent
  const sentAt = wire.now;
  const answers = await wire.until(Promise.all([4, 3, 2].map((cost) => twin.consume(cost))));
  const retryAt = sentAt - 50 + 1_000;
  assert.deepEqual(
    answers.map(({ status, predicted }) => [status, predicted]),
    [
      [200, undefined],
      [429, true],
      [200, undefined],
    ],
  );
  assert.deepEqual(answers[1], {
    status: 429,
    predicted: true,
    allowed: false,
    retryAt,
    retry_after_ms: retryAt - sentAt,
  });
  assert.equal(asked(wire), 3);
});

test("alone on a key, predicts every answer and every retryAt exactly", async (t) => {
  const random = randomOf(seedOf(t));
  const policies = Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`p${i}`, policyOf(random)]));
  const tollgate = await start({ policies });
  const seen = { granted: 0, refused: 0, never: 0, neverAgain: 0 };
  for (const [policy, { limits, ...only }] of Object.entries(policies)) {
    const upMs = random.below(200);
    const wire = new Wire(tollgate, { upMs, theirsMs: random.below(2 * HOUR) - HOUR });
    wire.travel = () => ({ upMs, downMs: random.below(400) }); // responses may overtake each other
    const ask = { policy, key: "alice" };
    const twin = wire.twin({ ...ask, trustMs: Infinity });
    const other = wire.client();
    await wire.until(twin.sync());
    const aheadMs = wire.theirsMs + upMs;
    const most = Math.max(...(limits ?? [only]).map(({ rate, capacity = rate }) => capacity));
    const checks = [];
    for (let step = 0; step < 40; step++) {
      await wire.pass(
        random.pick([0, 1, random.below(30), random.below(1_000), random.below(20_000), random.chance(0.1) ? HOUR : 0]),
      );
      if (random.chance(0.05)) {
        // another client takes, into debt too, and the twin syncs
        other.charge({ ...ask, cost: random.below(most + 1) });
        await wire.until(twin.sync());
      }
      const each = () => random.below(random.pick([2, 4, most + 1]));
      const cost = random.chance(0.02)
        ? most + 1
        : limits && random.chance(0.5)
          ? Object.fromEntries(limits.map(({ name }) => [name, each()]))
          : each();
      const said = other.peek({ ...ask, cost });
      const expectedAnswer = twin.peek(cost);
      const place = `${JSON.stringify({ policy: policies[policy], step, cost })} ${wire.now}`;
      const answer = twin.consume(cost);
      checks.push(async () => {
        const { status, retry_at, max_cost } = await said;
        const { allowed, retryAt, maxCost } = expectedAnswer;
        const expected =
          status === 200 ? [true] : status === 429 ? [false, (retry_at ?? Infinity) - aheadMs] : [false, Infinity];
        assert.deepEqual([allowed, retryAt].slice(0, expected.length), expected, place);
        if (status === 400 && only.rate) assert.equal(maxCost, max_cost, place);
        assert.deepEqual(
          [(await answer).status, (await answer).predicted],
          allowed ? [200, undefined] : [429, true],
          place,
        );
        seen[status === 200 ? "granted" : status === 400 ? "never" : retry_at ? "refused" : "neverAgain"]++;
      });
    }
    await wire.pass(1_000);
    for (const check of checks) await check();
    assert.ok(statuses(wire).every((status) => status === 200));
  }
  t.diagnostic(JSON.stringify(seen));
  assert.ok(seen.granted > 200 && seen.refused > 200 && seen.never > 5 && seen.neverAgain > 5, JSON.stringify(seen));
  await tollgate.stop();
});

/** A policy of one to three limits. */
function policyOf(random) {
  const limit = () => {
    const rate = random.chance(0.1) ? 0 : 1 + random.below(20);
    const capacity = Math.max(1, rate, random.below(60));
    const limit = {
      rate,
      capacity,
      period: random.pick(["7ms", "100ms", "999ms", "3s", "1m", "1h"]),
      max_debt: random.pick([0, 0, 5, 40]),
    };
    if (random.chance(0.3)) limit.initial = random.below(capacity + 1);
    if (random.chance(0.4)) limit.kind = "fixed_window";
    if (limit.kind && random.chance(0.5)) limit.offset = "5ms";
    return limit;
  };
  if (random.chance(0.5)) return limit();
  return { limits: ["a", "b", "c"].slice(0, 1 + random.below(3)).map((name) => ({ name, ...limit() })) };
}

test("under any network and competition, withholds only what would be refused if everything in flight is granted", async (t) => {
  const random = randomOf(seedOf(t));
  const upMs = 5; // the quickest way up
  const seen = { 200: 0, 429: 0, withheld: 0 };
  for (let round = 0; round < 24; round++) {
    const policy = random.pick(["api", "debt"]);
    const limit = { rate: 10, periodMs: 10_000, maxDebt: policy === "debt" ? 20 : 0 };
    const { wire, twin, ask, other } = await synced({ policy, upMs, theirsMs: random.below(DAY) });
    const began = wire.now;
    const [slowest, slowestBack] = [random.pick([1, 50, 500]), random.pick([1, 50, 1_000])];
    wire.travel = () => ({ upMs: upMs + random.below(slowest), downMs: random.below(slowestBack) });
    const withheld = [];
    for (let step = 0; step < 50; step++) {
      await wire.pass(random.pick([0, random.below(20), random.below(500), random.below(3_000)]));
      const cost = 1 + random.below(4);
      if (random.chance(0.2)) {
        other[random.pick(["consume", "charge"])]({ ...ask, cost });
        continue;
      }
      const sent = wire.sent.length;
      const answer = twin.consume(cost);
      const [request] = wire.sent.slice(sent);
      if (request) answer.then(() => (request.heardAt = wire.now));
      else withheld.push({ cost, now: wire.now, sent });
    }
    await wire.pass(3_000);
    for (const { cost, now, sent } of withheld) {
      const budget = new Budget(began, limit);
      const arrivesAt = now + upMs;
      const isThere = ({ arrivedAt }) => arrivedAt <= arrivesAt;
      for (const { path, arrivedAt, body } of wire.arrived.filter(isThere)) {
        if (path !== "/v1/inspect") budget.decide(arrivedAt, body.cost, path.slice("/v1/".length));
      }
      const own = wire.sent.slice(0, sent).filter(({ body }) => body.snapshot && body.cost);
      for (const request of own) {
        const isInFlight = !isThere(request) || (request.status === 429 && request.heardAt > now);
        if (isInFlight) budget.decide(arrivesAt, request.body.cost, "charge");
      }
      assert.equal(budget.decide(arrivesAt, cost).allowed, false, `round ${round}, ${cost} at ${now - began}`);
    }
    seen.withheld += withheld.length;
    for (const status of statuses(wire)) seen[status]++;
  }
  t.diagnostic(JSON.stringify(seen));
  assert.ok(Math.min(...Object.values(seen)) > 50, JSON.stringify(seen));
});

test("what others take is known with the next response", async () => {
  const { wire, twin, ask, other } = await synced();
  await wire.until(other.consume({ ...ask, cost: 8 }));
  assert.equal(twin.peek(5).allowed, true);
  const answer = await wire.until(twin.consume(5));
  assert.deepEqual([answer.status, answer.remaining], [429, 2]);
  const retryAt = wire.now - 100 + 3_000; // 8 were taken a round trip of 100 ms ago
  assert.deepEqual(twin.peek(5), { allowed: false, retryAt });
  assert.equal(answer.retry_at, retryAt + 20); // when a request sent then arrives
  await wire.to(retryAt - 1);
  assert.equal((await twin.consume(5)).predicted, true);
  await wire.to(retryAt);
  assert.equal((await wire.until(twin.consume(5))).status, 200);
  assert.deepEqual(statuses(wire), [200, 429, 200]);
});

test("what others give back is known once a request has been sent after trustMs", async () => {
  for (const [policy, give] of [
    ["one", "refund"],
    ["one", "reset"],
    ["llm", "reset"],
  ]) {
    const { wire, twin, ask, other } = await synced({ policy, trustMs: 5_000 });
    const cost = policy === "one" ? 1 : { requests: 0, tokens: 100 };
    await wire.until(twin.consume(cost));
    const sentAt = wire.now - 50;
    await wire.until(other[give]({ ...ask, ...(give === "refund" && { cost }) }));
    await wire.to(sentAt + 4_999);
    assert.equal((await twin.consume(cost)).predicted, true, policy);
    await wire.pass(1);
    assert.deepEqual(twin.peek(cost), { allowed: true, tokens: 0, readyAt: wire.now });
    const [first, second] = [twin.consume(cost), twin.consume(cost)];
    assert.equal((await second).predicted, true, "one is enough to know");
    assert.equal((await wire.until(first)).status, 200);
    assert.equal((await twin.consume(cost)).predicted, true);
    assert.deepEqual(
      statuses(wire).filter((status) => status !== 200),
      [],
    );
    assert.equal(asked(wire), 2);
  }
});

test("requests in flight are debited, in whatever order responses come", async () => {
  for (const back of [
    [10, 20, 30, 40],
    [40, 30, 20, 10],
    [20, 40, 10, 30],
    [10, 10, 10, 10],
  ]) {
    for (const apartMs of [0, 3]) {
      const { wire, twin } = await synced();
      const downs = [...back];
      wire.travel = () => ({ upMs: 20, downMs: downs.shift() });
      const began = wire.now;
      const left = [];
      for (let i = 0; i < 4; i++) {
        await wire.to(began + i * apartMs);
        twin.consume(2);
        left.push(twin.remaining());
      }
      assert.deepEqual(left, [8, 6, 4, 2]);
      for (; wire.now < began + 80; await wire.pass(1))
        assert.equal(twin.remaining(), 2, `${back} at ${wire.now - began}`);
      assert.equal(twin.peek(3).retryAt, began + 1_000);
      assert.deepEqual(statuses(wire), [200, 200, 200, 200]);
    }
  }
});

test("a response older than the known state is ignored", async () => {
  const { wire, twin } = await synced();
  const ways = [
    [20, 500],
    [20, 30],
    [500, 30],
    [20, 30],
  ]; // the first response comes last, and the third request arrives after the fourth
  wire.travel = () => {
    const [upMs, downMs] = ways.shift();
    return { upMs, downMs };
  };
  twin.consume(4);
  await wire.until(twin.consume(3));
  assert.equal(twin.remaining(), 3);
  await wire.pass(500);
  assert.equal(twin.remaining(), 3);
  const late = twin.consume(1);
  await wire.until(twin.consume(1));
  assert.equal(twin.remaining(), 2, "a later request is assumed to arrive later"); // wrong here, which the next response corrects
  await wire.until(late);
  assert.equal(twin.remaining(), 2); // 1, plus the refill since the beginning
  assert.deepEqual(statuses(wire), [200, 200, 200, 200]);
});

test("a request that may have overtaken a slow one is not debited twice", async () => {
  const { wire, twin } = await synced();
  const ways = [
    { upMs: 500, downMs: 10 },
    { upMs: 20, downMs: 900 },
  ];
  wire.travel = () => ways.shift();
  const slow = twin.consume(4);
  await wire.pass(100);
  const quick = twin.consume(3); // arrives 380 ms earlier
  const { remaining } = await wire.until(slow);
  assert.deepEqual([remaining, twin.remaining(), twin.peek(3).allowed], [3, 3, true]);
  assert.equal((await wire.until(quick)).status, 200);
  assert.equal(twin.remaining(), 3);
});

test("a lost request stays debited until the next response, since it may have been granted", async () => {
  for (const [fate, left] of [
    ["lost", 3],
    ["unheard", 0],
    ["doubled", 0],
  ]) {
    const { wire, twin } = await synced({ policy: "one" });
    const all = { policy: "llm" };
    const { wire: wires, twin: several } = await synced(all);
    for (const [each, subject, cost] of [
      [wire, twin, 1],
      [wires, several, { requests: 3, tokens: 3 }],
    ]) {
      const { travel } = each;
      each.travel = () => ({ ...travel(), fate });
      const answer = each.until(subject.consume(cost));
      if (fate === "doubled")
        assert.equal((await answer).status, 429, "the second was refused, and the answer to the first was lost");
      else await assert.rejects(answer, TypeError);
      assert.equal(subject.remaining(), 0);
      assert.equal((await subject.consume(cost)).predicted, true);
      each.travel = travel;
      await each.until(subject.sync());
    }
    assert.equal(twin.remaining(), left ? 1 : 0, fate);
    assert.equal(several.remaining(), left, fate);
  }
});

test("an invalid request is debited only until the response", async () => {
  for (const status of [400, 401, 404, 405, 409, 413, 415, 422]) {
    const { wire, twin } = await synced({ policy: "one" });
    const { travel } = wire;
    wire.travel = () => ({
      ...travel(),
      fate: { type: "urn:problem-type:tollgate:some", title: "", status, detail: "" },
    });
    const answer = twin.consume();
    assert.equal(twin.remaining(), 0);
    assert.equal((await wire.until(answer)).status, status);
    assert.deepEqual([twin.remaining(), twin.peek().allowed], [1, true], status);
  }
});

test("an undecided request stays debited until the next response", async () => {
  const open = { allowed: true, policy: "api", degraded: "timeout", status: 200 };
  for (const fate of [{ status: 503, cause: "failed" }, { status: 500 }, open]) {
    const { wire, twin } = await synced();
    const { travel } = wire;
    wire.travel = () => ({ ...travel(), fate: { type: "about:blank", title: "", detail: "", ...fate } });
    const [before] = [twin.peek(11)];
    assert.equal((await wire.until(twin.consume(6))).status, fate.status);
    assert.deepEqual([twin.remaining(), twin.peek(5).allowed, twin.peek(11)], [4, false, before]);
    wire.travel = travel;
    await wire.until(twin.consume(4));
    assert.equal(twin.remaining(), 6);
  }
});

test("a request with an idempotency key is always sent, since it may have been granted before", async () => {
  const { wire, twin } = await synced({ policy: "one" });
  const { travel } = wire;
  wire.travel = () => ({ ...travel(), fate: "unheard" });
  await assert.rejects(wire.until(twin.consume(1, { idempotencyKey: "order 1" })));
  wire.travel = travel;
  assert.equal(twin.peek().allowed, false);
  const { status, replayed } = await wire.until(twin.consume(1, { idempotencyKey: "order 1" }));
  assert.deepEqual([status, replayed, twin.remaining()], [200, true, 0]);
  assert.equal((await wire.until(twin.consume(1, { idempotencyKey: "order 2" }))).status, 429);
  assert.equal((await twin.consume(1)).predicted, true);
});

test("moments are by the local clock, even if the server's is hours ahead or behind", async () => {
  for (const theirsMs of [-5 * HOUR, -1, 0, 7, 5 * HOUR]) {
    for (const oursMs of [0, -3 * HOUR, 2 * DAY]) {
      const { wire, twin } = await synced({ theirsMs, oursMs });
      const sentAt = wire.clock.now();
      const { now } = await wire.until(twin.consume(10));
      assert.equal(now, sentAt - oursMs + 20 + theirsMs);
      assert.equal(twin.peek(2).retryAt, sentAt + 2_000);
      await wire.to(sentAt - oursMs + 1_999);
      assert.equal((await twin.consume(2)).predicted, true);
      await wire.pass(1);
      assert.equal((await wire.until(twin.consume(2))).status, 200);
      assert.equal(asked(wire), 2);
    }
  }
});

test("the clock offset is that of the quickest request", async () => {
  const { wire, twin } = await synced({ upMs: 400, downMs: 100 });
  const ways = [
    [20, 300],
    [100, 10],
    [20, 0],
  ];
  const takenAt = []; // as if each request took 20 ms
  for (const [upMs, downMs] of [[400, 100], ...ways]) {
    wire.travel = () => ({ upMs, downMs });
    takenAt.push(wire.now + upMs - 20);
    await wire.until(twin.consume(1));
  }
  assert.equal(twin.peek(10).retryAt, takenAt[0] + 4_000);
  await wire.to(takenAt[0] + 4_000);
  assert.equal((await wire.until(twin.consume(10))).status, 200);
});

test("a step of the server's clock is followed with the next response", async () => {
  for (const stepMs of [1_000, -1_000, 61_000, -61_000, 2 * HOUR, -2 * HOUR]) {
    const { wire, twin, ask, other } = await synced();
    await wire.until(twin.consume(10));
    wire.theirsMs += stepMs;
    const { status, now } = await wire.until(twin.consume(10, { idempotencyKey: "asks in any case" }));
    assert.deepEqual([status, now], [stepMs > 10_000 ? 200 : 429, wire.now - 30 + stepMs]);
    const { retryAt } = twin.peek(10);
    const said = await wire.until(other.peek({ ...ask, cost: 10 }));
    assert.equal(retryAt, said.retry_at - 20 - stepMs);
    await wire.to(retryAt);
    assert.equal((await wire.until(twin.consume(10))).status, 200);
  }
});

test("after a day of drift the error is at most one round trip", async () => {
  for (const ppm of [100, -100]) {
    const { wire, twin, ask } = await synced();
    const began = wire.now;
    wire.theirsMs = 0;
    let wasted = 0;
    for (let hour = 1; hour <= 96; hour++) {
      await wire.to(began + hour * (HOUR / 4));
      wire.theirsMs = Math.round(((wire.now - began) * ppm) / 1e6);
      if ((await wire.until(twin.consume(10))).status !== 200) wasted++;
      const { retryAt } = twin.peek(1);
      const { retry_at } = await wire.until(wire.client().peek({ ...ask, cost: 1 }));
      const exactly = retry_at - wire.theirsMs - 20; // the right moment to send it
      assert.ok(Math.abs(retryAt - exactly) <= 50, `${retryAt - exactly} ms off after ${hour} quarters of an hour`);
    }
    assert.equal(wasted, 0);
    assert.ok(Math.abs(wire.theirsMs) === 8_640);
  }
});

test("after the clock has slept, the known state continues from the new time", async () => {
  const { wire, ask } = await synced();
  let [asleepMs, slowMs] = [0, 0];
  const clock = {
    ...wire.clock,
    ...{
      now: makeClock(
        () => wire.now,
        () => wire.now - NOW - asleepMs - slowMs,
      ).now,
    },
  };
  const twin = wire.twin({ ...ask, clock });
  await wire.until(twin.consume(10));
  assert.equal(twin.remaining(), 0);
  await wire.pass(HOUR);
  asleepMs = HOUR; // no time on the monotonic clock
  assert.deepEqual([twin.remaining(), clock.now()], [10, wire.now]);
  assert.equal((await wire.until(twin.consume(10))).status, 200);
  slowMs = 50_000; // too little to be followed
  await wire.until(twin.sync());
  assert.equal(clock.now(), wire.now - 50_000);
  await wire.until(twin.consume(1));
  await wire.pass(20_000);
  asleepMs += 15_000; // a short sleep makes it enough
  assert.equal(clock.now(), wire.now);
  await wire.until(twin.consume(10));
  await wire.pass(1);
  const retryAt = twin.peek(1).retryAt;
  const { retry_at } = await wire.until(wire.client().peek(ask));
  assert.equal(retryAt, retry_at - 20);
});

test("a changed policy is followed with the next response, and costs that do not fit the known one are sent", async () => {
  const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
  const wire = new Wire(tollgate);
  const twin = wire.twin({ policy: "api", key: "alice" });
  await wire.until(twin.consume(4));
  const change = async (policy) => {
    await tollgate.kill();
    await tollgate.restart({ policies: { api: policy } });
  };
  await change({ rate: 1, period: "1m", capacity: 20 });
  await wire.until(twin.consume(1));
  assert.deepEqual([twin.remaining(), twin.peek(6).retryAt], [5, wire.now - 50 + 57_000]); // a twentieth of a token was there already
  const limits = [
    { name: "requests", rate: 5, period: "1m" },
    { name: "tokens", rate: 100, period: "1m" },
  ];
  await change({ limits });
  const [one, named] = [twin.consume(1), twin.consume({ requests: 2, tokens: 40 })];
  assert.deepEqual([(await wire.until(one)).status, (await wire.until(named)).status], [200, 200]);
  assert.equal(twin.remaining(), 2);
  assert.equal((await twin.consume({ requests: 1, tokens: 60 })).predicted, true);
  const { retryAt } = twin.peek({ requests: 1, tokens: 60 });
  const { retry_at } = await wire.until(
    wire.client().peek({ policy: "api", key: "alice", cost: { requests: 1, tokens: 60 } }),
  );
  assert.equal(retryAt, retry_at - 20);
  assert.equal((await wire.until(twin.consume({ requests: 1 }))).status, 400); // the server reports the error
  await change({ rate: 3, period: "1s" });
  const inFlight = twin.consume({ requests: 1, tokens: 1 });
  await wire.until(twin.sync());
  assert.equal((await wire.until(inFlight)).status, 400);
  assert.deepEqual([twin.remaining(), twin.peek(4)], [3, { allowed: false, retryAt: Infinity, maxCost: 3 }]);
  await tollgate.stop();
});

test("watch wakes exactly at readyAt, and with every response that changes something", async () => {
  const { wire, twin, ask, other } = await synced({ theirsMs: HOUR });
  const store = watch(twin, 3);
  assert.deepEqual(store.get(), { ok: true, remaining: 10, readyAt: 0 });
  const seen = [];
  const began = wire.now;
  const end = store.subscribe(() => seen.push([wire.now - began, store.get()]));
  twin.consume(9);
  await wire.pass(1_000); // another client takes one
  await wire.until(other.consume(ask));
  assert.equal((await wire.until(twin.consume(1))).status, 200);
  await wire.pass(30_000);
  end();
  const now = (ms) => began + ms;
  assert.deepEqual(seen, [
    [0, { ok: false, remaining: 1, readyAt: now(2_000) }],
    [1_050, { ok: false, remaining: 1, readyAt: now(3_000) }], // debited
    [1_100, { ok: false, remaining: 0, readyAt: now(4_000) }], // and what the other client took
    [4_000, { ok: true, remaining: 3, readyAt: 0 }],
    [11_000, { ok: true, remaining: 10, readyAt: 0 }],
  ]);
  assert.equal(asked(wire), 3);
});

test("sync returns the state, takes nothing, and keeps what is in flight debited", async () => {
  const { wire, twin, ask } = await synced({ policy: "llm" });
  const consumed = twin.consume({ requests: 1, tokens: 30 });
  const { limits, snapshot, ...rest } = await wire.until(twin.sync());
  assert.deepEqual(Object.keys(rest), ["policy", "now", "open_reservations", "status"]);
  assert.deepEqual(
    limits.map(({ remaining }) => remaining),
    [2, 70],
  );
  assert.equal(snapshot.length, 2);
  assert.equal(twin.remaining(), 2);
  assert.equal((await consumed).status, 200);
  const nobody = wire.twin({ ...ask, policy: "nobody" });
  assert.equal((await wire.until(nobody.sync())).status, 404);
  assert.equal(nobody.peek(1_000).allowed, true);
});
