// Twin: what it knows, and what it learns from each response.
import assert from "node:assert/strict";
import { test } from "node:test";
import { watch } from "../../build/package/index.js";
import { start } from "../http/workerd.mjs";
import { checked } from "./buckets.mjs";
import { asked, HOUR, statuses, synced, tollgate } from "./twins.mjs";
import { Wire } from "./wire.mjs";

test("asks for everything until the first response, then only for what will be granted", async () => {
  const wire = new Wire(tollgate);
  const twin = wire.twin({ policy: "api", key: "unknown" });
  assert.deepEqual(
    [twin.peek(), twin.remaining(), twin.fullAt()],
    [{ allowed: true, tokens: 0, readyAt: wire.now, remaining: 0, retryAfterMs: 0 }, 0, Infinity],
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
    retryAfterMs: retryAt - sentAt,
    remaining: 2,
    retry_after_ms: retryAt - sentAt,
  });
  assert.equal(asked(wire), 3);
});

test("what others take is known with the next response", async () => {
  const { wire, twin, ask, other } = await synced();
  await wire.until(other.consume({ ...ask, cost: 8 }));
  assert.equal(twin.peek(5).allowed, true);
  const answer = await wire.until(twin.consume(5));
  assert.deepEqual([answer.status, answer.remaining], [429, 2]);
  const retryAt = wire.now - 100 + 3_000; // 8 were taken a round trip of 100 ms ago
  assert.deepEqual(checked(twin).peek(5), { allowed: false, retryAt });
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
    assert.deepEqual(checked(twin).peek(cost), { allowed: true, tokens: 0, readyAt: wire.now });
    const [first, second] = [twin.consume(cost), twin.consume(cost)];
    assert.equal((await second).predicted, true, "one request is enough");
    assert.equal((await wire.until(first)).status, 200);
    assert.equal((await twin.consume(cost)).predicted, true);
    assert.deepEqual(
      statuses(wire).filter((status) => status !== 200),
      [],
    );
    assert.equal(asked(wire), 2);
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

test("a changed policy is followed with the next response, and unknown costs are sent", async () => {
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
  assert.deepEqual([twin.remaining(), twin.peek(16).retryAt], [15, wire.now - 50 + 57_000]); // 1/20 of a token was left
  const limits = [
    { name: "requests", rate: 10, period: "1m" }, // goes on with the five that were taken while it had no name
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
  await change({ rate: 1, period: "2m", capacity: 20 });
  const inFlight = twin.consume({ requests: 1, tokens: 1 });
  await wire.until(twin.sync());
  assert.equal((await wire.until(inFlight)).status, 400);
  assert.deepEqual(
    [twin.remaining(), checked(twin).peek(21)],
    [12, { allowed: false, retryAt: Infinity, maxCost: 20 }],
  );
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
    [1_000, { ok: false, remaining: 2, readyAt: now(2_000) }], // a token comes
    [1_050, { ok: false, remaining: 1, readyAt: now(3_000) }], // debited
    [1_100, { ok: false, remaining: 0, readyAt: now(4_000) }], // and what the other client took
    [2_000, { ok: false, remaining: 1, readyAt: now(4_000) }],
    [3_000, { ok: false, remaining: 2, readyAt: now(4_000) }],
    ...[3, 4, 5, 6, 7, 8, 9, 10].map((remaining) => [1_000 * (remaining + 1), { ok: true, remaining, readyAt: 0 }]),
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
  const unknown = wire.twin({ ...ask, policy: "unknown" });
  assert.equal((await wire.until(unknown.sync())).status, 404);
  assert.equal(unknown.peek(1_000).allowed, true);
});
