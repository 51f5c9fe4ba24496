// The live view's reading of answers, without a page: a simulated service with its own clock and a slow network.
import "./modules.mjs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { count, law } from "../random.mjs";

const { Budget } = await import("tollgate");
const { Watched } = await import("../../www/page/src/live/watched.ts");

/** A key of a service whose clock is ahead, and a client with these delays. */
class World {
  time = 1_800_000_000_000;
  aheadMs;
  delays = [0, 0];
  /** How long this computer takes from one reading of the clock to the next. */
  slownessMs = 0;
  /** Whether the key is "banned" or "unlimited". */
  standing = "";
  /** When the service last stored the key's state, if not now: it does so when tokens are taken, not when they come back. */
  storedAt;
  /** The verbs that the credential does not allow. */
  forbidden = [];
  /** The requests sent. */
  sent = [];
  budget;
  #reservations = new Map();

  constructor(limits, aheadMs) {
    this.aheadMs = aheadMs;
    this.budget = new Budget(this.now, limits);
  }

  get now() {
    return this.time + this.aheadMs;
  }

  clock = {
    now: () => {
      this.time += this.slownessMs;
      return this.time;
    },
    at: () => () => {},
  };

  client = Object.fromEntries(
    ["inspect", "consume", "settle", "cancel", "refund"].map((verb) => [
      verb,
      async (request) => {
        this.sent.push(verb);
        this.time += this.delays[0];
        const answer = this.#answer(verb, request);
        this.time += this.delays[1];
        return answer;
      },
    ]),
  );

  #answer(verb, { cost = 1, mode, reservation }) {
    const { now } = this;
    if (this.forbidden.includes(verb)) return { status: 403, detail: `not for ${verb}` };
    const told = (status, more) => ({
      status,
      now,
      policy: "p",
      remaining: this.budget.remaining(now),
      ...more,
      snapshot: this.#snapshot(),
    });
    if (verb === "inspect") return told(200);
    if (verb === "consume" && this.standing) {
      const isBanned = this.standing === "banned";
      if (!isBanned) this.budget.decide(now, { cost: Math.min(cost, this.budget.remaining(now)) });
      const more = isBanned ? { allowed: false, remaining: 0, detail: "no" } : { allowed: true, remaining: undefined };
      const numbers = { rate: 0, capacity: isBanned ? 0 : Number.MAX_SAFE_INTEGER };
      const snapshot = this.#snapshot().map((limit) => ({ ...limit, ...numbers, tokens: numbers.capacity }));
      return { ...told(isBanned ? 429 : 200, { ...more, [this.standing]: true }), snapshot };
    }
    if (verb === "consume") {
      const decision = this.budget.decide(now, { cost, verb: mode ?? "consume" });
      if (!decision.allowed) return told(429, { allowed: false, detail: "no", retry_after_ms: decision.retryAfterMs });
      const id = String(this.#reservations.size);
      if (mode === "reserve") this.#reservations.set(id, cost);
      const reserved = { reservation: id, ready_at: decision.readyAt, expires_at: decision.readyAt + 1e9 };
      return told(200, { allowed: true, ...(mode === "reserve" && reserved) });
    }
    const reserved = this.#reservations.get(reservation) ?? 0;
    const more = { settle: cost - reserved, cancel: -reserved, refund: -cost }[verb];
    // A closed reservation may have lost some tokens to a full bucket since.
    const lost = verb === "refund" ? 0 : Math.min(Math.max(0, -more), Number(reservation) % 3);
    const { tokens } = this.budget.decide(now, { verb: more > 0 ? "charge" : "refund", cost: Math.abs(more) - lost });
    const given = verb === "settle" ? reserved + (more > 0 ? tokens : more) : tokens;
    return told(200, { allowed: true, tokens: given });
  }

  #snapshot() {
    return this.budget.save(this.storedAt ?? this.now).map((state, i) => {
      const { name, kind = "token_bucket", rate, periodMs, capacity, maxDebt } = this.budget.limits[i];
      return { name, kind, rate, period_ms: periodMs, capacity, max_debt: maxDebt, ...state };
    });
  }
}

law(
  "what is admitted stays below its bound on any network, and no request made here counts as made by others",
  { seed: 31, cases: 300 },
  async ({ below, pick, chance }, seen) => {
    const kind = pick(["token_bucket", "fixed_window"]);
    const [rate, periodMs] = [1 + below(30), pick([1000, 4000, 86_400_000])];
    const maxDebt = kind === "token_bucket" ? below(20) : 0;
    const world = new World(
      [
        {
          kind,
          rate,
          periodMs,
          capacity: rate + below(20),
          maxDebt,
          offsetMs: kind === "fixed_window" ? below(periodMs) : 0,
        },
      ],
      below(8000) - 4000,
    );
    const hasOthers = chance(0.5);
    world.delays = [below(1000), below(1000)]; // the first answer is slow
    const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
    await watched.look();
    let asked = 0;
    for (let i = 0; i < 60; i++) {
      world.time += below(pick([50, 3000]));
      world.delays = [below(300), below(300)];
      const { now } = world;
      if (hasOthers && chance(0.3))
        world.budget.decide(now, { verb: pick(["consume", "charge", "refund"]), cost: below(6) });
      if (chance(0.2)) await watched.look();
      else {
        const verb = pick(["consume", "consume", "reserve", "settle", "cancel", "refund"]);
        if (["settle", "cancel"].includes(verb) && !watched.canSettle()) continue;
        const { allowed } = await watched.ask(verb, below(8));
        if (allowed !== undefined) asked += 1;
        count(seen, `${verb} ${allowed}`);
      }
      const { track } = watched;
      for (const { at, admitted } of track.events)
        assert.ok(admitted[0] <= track.bound(0, at), `${at}: ${admitted[0]} of at most ${track.bound(0, at)}`);
      if (!hasOthers) assert.equal(track.events.length, asked, JSON.stringify(track.events.slice(-3)));
    }
  },
  (seen) => {
    for (const of of ["consume true", "consume false", "reserve true", "settle true", "cancel true", "refund true"])
      assert.ok(seen[of] > 50, of);
  },
);

test("the bound starts with the refill since the key was last used, whichever answer comes first", async () => {
  for (const [agoMs, kind, level] of [
    [60_000, "token_bucket", 5],
    [2_000, "token_bucket", 3],
    [500, "token_bucket", 1],
    [60_000, "fixed_window", 5],
  ])
    for (const first of ["look", "ask"]) {
      const world = new World([{ kind, rate: 1, periodMs: 1000, capacity: 5 }], 100);
      const { now } = world;
      world.budget.decide(now, { cost: 4 });
      world.time += agoMs;
      world.storedAt = now;
      const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
      if (first === "look") await watched.look();
      world.storedAt = undefined;
      await watched.ask("consume", level);
      const { track } = watched;
      assert.equal(track.bound(0, 0), level, `${kind}, ${agoMs} ms ago, ${first}`);
      assert.deepEqual(track.events.at(-1).admitted, [level]);
    }
});

test("a clock that stood still or was set is noticed with the next answer, however slow", async () => {
  for (const stoodStillMs of [20_000, -20_000]) {
    const world = new World([{ rate: 10, periodMs: 1000, capacity: 50 }], 100);
    world.delays = [10, 10];
    const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
    await watched.look();
    assert.equal(watched.quickest.aheadMs, 100);
    world.aheadMs += stoodStillMs; // as this clock sees it
    world.delays = [90, 30];
    await watched.look();
    assert.deepEqual(watched.quickest, { roundTripMs: 120, aheadMs: 130 + stoodStillMs });
    // An answer whose time is plausible changes nothing.
    world.delays = [30, 130];
    await watched.look();
    assert.equal(watched.quickest.roundTripMs, 120);
  }
});

law(
  "a prediction and the level it leaves belong to one moment, however slow this computer is",
  { seed: 71, cases: 200 },
  async ({ below, pick }, seen) => {
    const world = new World([{ rate: 1 + below(9), periodMs: 1000, capacity: 1 + below(9) }], below(8000) - 4000);
    world.delays = [below(100), below(100)];
    world.slownessMs = pick([1, 10, 100]);
    const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
    await watched.look();
    for (let i = 0; i < 40; i++) {
      world.time += below(200);
      const cost = below(6);
      const { predicted } = await watched.ask("consume", cost);
      count(seen, `${predicted.allowed}`);
      if (!predicted.allowed)
        assert.ok(predicted.remaining < cost, `${cost} is refused with ${predicted.remaining} left`);
    }
  },
  (seen) => {
    assert.ok(seen.true > 1000 && seen.false > 1000);
  },
);

law(
  "over an even network every prediction is exact, with and without permission to inspect",
  { seed: 91, cases: 200 },
  async ({ below, pick, chance }, seen) => {
    const world = new World([{ rate: 1 + below(9), periodMs: 1000, capacity: 8 + below(9), maxDebt: 5 }], below(8000));
    world.delays = [below(100), below(100)];
    if (chance(0.5)) world.forbidden = ["inspect"];
    const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
    await watched.look();
    for (let i = 0; i < 40; i++) {
      world.time += below(pick([50, 300, 9000]));
      const verb = pick(["consume", "consume", "consume", "reserve", "settle", "cancel", "refund"]);
      if (["settle", "cancel"].includes(verb) && !watched.canSettle()) continue;
      const { predicted, allowed, remaining } = await watched.ask(verb, below(8));
      if (!predicted) continue;
      assert.deepEqual(predicted, { allowed, remaining });
      count(seen, `${world.forbidden} ${allowed}`);
    }
    assert.ok(world.forbidden.length === 0 || world.sent.filter((verb) => verb === "inspect").length === 1);
  },
  (seen) => {
    for (const of of [" true", " false", "inspect true", "inspect false"]) assert.ok(seen[of] > 100, of);
  },
);

test("without permission to inspect, says so once and follows the requests made here", async () => {
  const world = new World([{ rate: 10, periodMs: 1000, capacity: 50 }], 100);
  world.forbidden = ["inspect"];
  const watched = new Watched(world.client, { policy: "p" }, world.clock);
  for (let i = 0; i < 3; i++) await watched.look();
  assert.deepEqual(world.sent, ["inspect"]);
  assert.deepEqual([watched.blind, watched.problem, watched.isOver], ["403: not for inspect", "", false]);
  const first = await watched.ask("consume", 20);
  assert.deepEqual([first.allowed, first.remaining, first.predicted], [true, 30, undefined]);
  assert.equal(watched.track.level(0, watched.now()), 30);
  const second = await watched.ask("consume", 31);
  assert.deepEqual(
    [second.allowed, second.remaining, second.predicted],
    [false, 30, { allowed: false, remaining: 30 }],
  );
  assert.deepEqual(world.sent, ["inspect", "consume", "consume"]);
});

test("when a credential expires, keeps what was seen and sends nothing more", async () => {
  const world = new World([{ rate: 10, periodMs: 1000, capacity: 50 }], 100);
  const watched = new Watched(world.client, { policy: "p" }, world.clock);
  await watched.ask("consume", 20);
  world.client.inspect = async () => world.sent.push("inspect") && { status: 401, detail: "expired" };
  for (let i = 0; i < 3; i++) await watched.look();
  assert.deepEqual(world.sent, ["consume", "inspect"]);
  assert.deepEqual([watched.isOver, watched.problem, watched.track.events.length], [true, "401: expired", 1]);
});

test("sends nothing more after a refusal that would only repeat", async () => {
  for (const status of [400, 401, 404]) {
    const world = new World([{ rate: 10, periodMs: 1000 }], 0);
    const client = { inspect: async () => world.sent.push("inspect") && { status, detail: "no" } };
    const watched = new Watched(client, { policy: "p", key: "k" }, world.clock);
    for (let i = 0; i < 3; i++) await watched.look();
    assert.deepEqual([watched.problem, watched.isOver, world.sent.length], [`${status}: no`, true, 1]);
  }
  const world = new World([{ rate: 10, periodMs: 1000 }], 0);
  const client = { inspect: async () => world.sent.push("inspect") && { status: 503, detail: "not now" } };
  const watched = new Watched(client, { policy: "p", key: "k" }, world.clock);
  for (let i = 0; i < 3; i++) await watched.look();
  assert.deepEqual([watched.problem, watched.isOver, world.sent.length], ["503: not now", false, 3]);
});

test("a policy that enforces no limit is said to have nothing to follow, and nothing more is sent", async () => {
  const world = new World([{ rate: 10, periodMs: 1000 }], 0);
  const { now } = world;
  const client = {
    inspect: async () => world.sent.push("inspect") && { status: 200, now, policy: "tried", limits: [] },
  };
  const watched = new Watched(client, { policy: "tried", key: "k" }, world.clock);
  for (let i = 0; i < 3; i++) await watched.look();
  assert.deepEqual(
    [watched.problem, watched.isOver, world.sent.length],
    ["tried enforces no limit: there is nothing to follow", true, 1],
  );
});

test("what others take between two looks is one decision", async () => {
  const world = new World([{ rate: 10, periodMs: 86_400_000, capacity: 50 }], 100);
  const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
  await watched.look();
  for (let i = 0; i < 3; i++) world.budget.decide(world.now, { cost: 10 });
  await watched.look();
  const events = watched.track.events.map(({ verb, cost, admitted, decision }) => [
    verb,
    cost,
    admitted[0],
    decision.allowed,
  ]);
  assert.deepEqual(events, [["consume", 30, 30, true]]);
});

test("a key that is blocked or without limits keeps its history, and the twin its numbers", async () => {
  for (const [standing, allowed, left] of [
    ["banned", false, 30],
    ["unlimited", true, 0],
  ]) {
    const world = new World([{ rate: 10, periodMs: 86_400_000, capacity: 50, maxDebt: 100 }], 100);
    const watched = new Watched(world.client, { policy: "p", key: "k" }, world.clock);
    await watched.look();
    await watched.ask("consume", 20);
    const { track } = watched;
    world.standing = standing;
    for (let i = 0; i < 2; i++) {
      world.time += 1000;
      const asked = await watched.ask("consume", 40);
      assert.equal(asked.allowed, allowed);
      await watched.look();
    }
    assert.equal(watched.track, track, standing);
    // None of it counts as done by others.
    const events = track.events.map(({ verb, cost, decision }) => [verb, cost, decision.allowed]);
    assert.deepEqual(events, [["consume", 20, true], ...Array(2).fill(["consume", 40, allowed])]);
    assert.deepEqual([track.events.at(-1).admitted[0], watched.predicted()], [50 - left, left], standing);
  }
});
