// Modes of limits: enforced, in shadow (they only report what they would do), and off.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOW, start } from "./workerd.mjs";

const DAY = 86_400_000;
const limit = (name, capacity, more) => ({ name, rate: capacity, period: "1day", ...more });
const OLD = limit("old", 5, { max_debt: 5 });
const NEW = limit("new", 2, { max_debt: 5 });
const tollgate = await start({
  policies: {
    plain: { limits: [OLD] },
    tried: { limits: [OLD, { ...NEW, mode: "shadow" }] },
    alone: { rate: 2, period: "1day", mode: "shadow" },
    off: { rate: 2, period: "1day", mode: "off" },
    quota: { limits: [limit("month", 2, { mode: "soft" }), limit("day", 9)] },
    mixed: {
      mode: "shadow",
      limits: [limit("a", 2, { mode: "enforce" }), limit("b", 1), limit("c", 1, { mode: "off" })],
    },
  },
});

/** The verdict of a limit in shadow with this capacity and this much left. */
const said = (name, capacity, remaining, more) => ({
  ...(name === undefined ? {} : { name }),
  allowed: true,
  cost: 1,
  limit: capacity,
  remaining,
  near_limit: remaining * 5 < capacity,
  reset_at: NOW + ((capacity - remaining) * DAY) / capacity,
  ...more,
});
const wait = (ms) => ({ allowed: false, retry_at: NOW + ms, retry_after_ms: ms });

/** The reservations of `plain` that correspond to those of `tried`. */
const twins = new Map();

/** Asks `tried` and `plain` alike: except for the limit in shadow, the answers are the same. */
async function both(verb, ask) {
  const { reservation } = ask;
  const answer = await tollgate.post(verb, { policy: "tried", ...ask });
  const plain = await tollgate.post(verb, {
    policy: "plain",
    ...ask,
    ...(reservation && { reservation: twins.get(reservation) }),
  });
  const { shadow, ...body } = answer.body;
  if (body.reservation && !reservation) twins.set(body.reservation, plain.body.reservation);
  const comparable = ({ status, headers }, body) => {
    const fields = ["ratelimit", "ratelimit-policy", "retry-after"].map((name) => headers[name]);
    const all = JSON.stringify({ status, fields, body });
    return all.replaceAll("tried", "plain").replaceAll(/"[0-9a-f]{13}"/g, '"id"');
  };
  assert.equal(comparable(answer, body), comparable(plain, plain.body), `${verb} ${JSON.stringify(ask)}`);
  return { status: answer.status, body, shadow };
}

test("a limit in shadow decides, counts and reports, and never refuses", async () => {
  const key = "alice";
  for (const [cost, status, shadow] of [
    [1, 200, said("new", 2, 1)],
    [2, 200, said("new", 2, 1, { cost: 2, ...wait(DAY / 2) })],
    [1, 200, said("new", 2, 0)],
    [1, 200, said("new", 2, 0, wait(DAY / 2))],
    [1, 429, said("new", 2, 0, wait(DAY / 2))],
  ]) {
    const answer = await both("consume", { key, cost });
    assert.deepEqual([answer.status, answer.shadow], [status, [shadow]]);
  }
  await tollgate.kill();
  await tollgate.restart();
  const { body } = await tollgate.peek({ policy: "tried", key, cost: 0 });
  assert.deepEqual(body.shadow, [said("new", 2, 0, { cost: 0 })], "it was stored");
});

test("each verb answers as without the limit in shadow, which acts as if it were enforced", async () => {
  const key = "verbs";
  for (const [verb, ask, expected] of [
    ["peek", { cost: 4 }, { allowed: true, remaining: 2, cost: 4, never: true }],
    ["consume", { cost: 4, mode: "up_to" }, { allowed: true, tokens: 2, remaining: 0 }],
    ["refund", { cost: 9 }, { allowed: true, tokens: 2, remaining: 2 }],
    ["charge", { cost: 3 }, { allowed: true, tokens: 3, remaining: 0, owed: 1 }],
    ["reset", {}, { allowed: true, remaining: 2 }],
    ["consume", { cost: 4, mode: "borrow" }, { allowed: true, remaining: 0, owed: 2, ready_at: NOW }],
    ["reset", {}, { allowed: true, remaining: 2 }],
    ["consume", { cost: 4, mode: "reserve", max_wait_ms: 0 }, { allowed: false, remaining: 2 }],
    ["reset", {}, { allowed: true, remaining: 2 }],
    ["consume", { cost: 5, mode: "reserve" }, { allowed: true, remaining: 0, owed: 3, ready_at: NOW + 1.5 * DAY }],
  ]) {
    const { status, body, shadow } = await both(verb, { key, ...ask });
    assert.equal(status, 200);
    const { never, ...members } = expected;
    if (never) {
      assert.deepEqual([shadow[0].allowed, shadow[0].retry_at], [false, undefined], "more than its capacity");
      continue;
    }
    const found = Object.fromEntries(Object.keys(members).map((name) => [name, shadow[0][name]]));
    assert.deepEqual(found, members, `${verb} ${JSON.stringify(ask)}`);
    if (body.ready_at !== undefined) assert.equal(body.ready_at, NOW, "the request does not wait for it");
  }
});

test("a reservation is settled in shadow too, if shadow would have granted it", async () => {
  const key = "work";
  const reserve = { key, cost: 2, mode: "reserve", max_wait_ms: 0 };
  const first = (await both("consume", reserve)).body.reservation;
  const second = await both("consume", reserve);
  assert.equal(second.shadow[0].allowed, false);
  const [settled] = (await both("settle", { key, reservation: first, cost: 1 })).shadow;
  assert.deepEqual([settled.tokens, settled.remaining], [1, 1]);
  const { shadow } = await both("settle", { key, reservation: second.body.reservation, cost: 1 });
  assert.equal(shadow, undefined, "it has taken nothing");
  const { body } = await tollgate.peek({ policy: "tried", key, cost: 0 });
  assert.equal(body.shadow[0].remaining, 1);
});

test("a repetition is granted as before, and charged in shadow once", async () => {
  const options = { headers: { "idempotency-key": "once" } };
  const ask = { policy: "alone", key: "again" };
  const first = await tollgate.consume(ask, options);
  assert.deepEqual(first.body.shadow, [said(undefined, 2, 1)]);
  const second = await tollgate.consume(ask, options);
  assert.deepEqual([second.status, second.body.replayed, second.body.shadow], [200, true, undefined]);
  const { body } = await tollgate.peek({ ...ask, cost: 0 });
  assert.equal(body.shadow[0].remaining, 1);
});

test("a policy that enforces nothing grants everything, and has no numbers and no fields to report", async () => {
  const granted = { allowed: true, near_limit: false, now: NOW, reset_at: null };
  for (const [policy, shadows] of [
    ["alone", [said(undefined, 2, 1), said(undefined, 2, 0), said(undefined, 2, 0, wait(DAY / 2))]],
    ["off", [undefined, undefined, undefined]],
  ]) {
    for (const shadow of shadows) {
      const { status, headers, body } = await tollgate.consume({ policy, key: "bob" });
      assert.equal(status, 200);
      assert.deepEqual(body, { ...granted, policy, cost: 1, ...(shadow && { shadow: [shadow] }) });
      assert.deepEqual([headers.ratelimit, headers["ratelimit-policy"]], [undefined, undefined]);
    }
    const { status, body } = await tollgate.consume({ policy, key: "carol", cost: 1_000, mode: "up_to" });
    assert.deepEqual([status, body.tokens], [200, 1_000]);
    const reserved = await tollgate.consume({ policy, key: "carol", cost: 9, mode: "reserve" });
    assert.deepEqual([reserved.status, reserved.body.ready_at], [200, NOW]);
    const { reservation } = reserved.body;
    const settled = await tollgate.post("settle", { policy, key: "carol", reservation, cost: 3 });
    assert.deepEqual([settled.status, settled.body.cost, settled.body.tokens], [200, 3, 3]);
    const again = await tollgate.post("cancel", { policy, key: "carol", reservation });
    assert.equal(again.status, 409);
  }
});

test("costs may name every limit whatever its mode, and must name those that are enforced", async () => {
  const ask = (cost) => tollgate.consume({ policy: "mixed", key: "costs", cost });
  const named = await ask({ a: 1, b: 7, c: 9 });
  assert.equal(named.status, 200);
  assert.deepEqual(
    named.body.limits.map(({ name }) => name),
    ["a"],
  );
  assert.deepEqual([named.body.shadow[0].cost, named.body.shadow[0].allowed], [7, false]);
  assert.deepEqual((await ask({ a: 1 })).body.shadow[0].cost, 0);
  const missing = await ask({ b: 1 });
  assert.deepEqual([missing.status, missing.body.detail], [400, "the cost must name every limit of policy mixed: a"]);
  const unknown = await ask({ a: 1, d: 1 });
  const detail = 'policy mixed has no limit "d"; its limits are a, b, c';
  assert.deepEqual([unknown.status, unknown.body.detail], [400, detail]);
});

test("inspect shows what is enforced, what is in shadow, and what is off", async () => {
  const key = "look";
  await tollgate.consume({ policy: "mixed", key });
  const { body } = await tollgate.post("inspect", { policy: "mixed", key, snapshot: true });
  const standing = (limits) => limits.map(({ name, remaining }) => [name, remaining]);
  assert.deepEqual(standing(body.limits), [["a", 1]]);
  assert.deepEqual(standing(body.shadow), [["b", 0]]);
  assert.deepEqual(body.off, ["c"]);
  assert.deepEqual(
    body.snapshot.map(({ name }) => name),
    ["a"],
    "what a client may predict refusals from",
  );
});

test("a new policy is tried beside the old one, in a batch over one key or several", async () => {
  for (const keys of [
    ["one", "one"],
    ["user", "tenant"],
  ]) {
    const batch = (cost) =>
      tollgate.post("batch", {
        requests: [
          { policy: "plain", key: keys[0], cost },
          { policy: "alone", key: keys[1], cost },
        ],
      });
    const first = await batch(1);
    assert.equal(first.status, 200);
    assert.deepEqual(first.body.results[1].shadow, [said(undefined, 2, 1)]);
    const second = await batch(3);
    assert.equal(second.status, 200);
    assert.deepEqual([second.body.results[0].remaining, second.body.results[1].shadow[0].allowed], [1, false]);
    const third = await batch(2);
    assert.equal(third.status, 429);
    assert.deepEqual(third.body["violated-policies"], ["plain/old"]);
    assert.equal(third.body.results[1].allowed, true);
    assert.equal((await batch(1)).body.results[1].shadow[0].remaining, 0, "the refused one took nothing");
  }
});

test("an object of another version never refuses for a limit that either version has in shadow", async () => {
  const older = { policies: { p: { limits: [OLD] } } };
  const newer = { policies: { p: { limits: [OLD, { ...NEW, mode: "shadow" }] } }, build: "next-format" };
  for (const [objects, other] of [
    [older, newer],
    [newer, older],
  ]) {
    const versions = await start({ ...objects, other });
    const ask = async (verb, headers) => (await versions.post(verb, { policy: "p", key: "dave" }, { headers })).status;
    for (let left = 5; left >= 0; left--) {
      const expected = left ? 200 : 429;
      for (const headers of [{}, { "x-version": "other" }]) assert.equal(await ask("peek", headers), expected);
      assert.equal(await ask("consume", left % 2 ? {} : { "x-version": "other" }), expected);
    }
    await versions.stop();
  }
});

test("a soft limit lets everything pass that the others grant, and says by how much it is exceeded, over a kill", async () => {
  const ask = (cost) => tollgate.post("consume", { policy: "quota", key: "soft", cost });
  const over = ({ status, body, headers }) => [status, body.remaining, body.over, headers.ratelimit];
  assert.deepEqual(over(await ask(1)), [
    200,
    8,
    undefined,
    '"quota/month";r=1;tollgate-over=0, "quota/day";r=8;t=9600',
  ]);
  assert.deepEqual(over(await ask(4)), [200, 4, 3, '"quota/month";r=0;tollgate-over=3, "quota/day";r=4;t=9600']);
  await tollgate.kill();
  await tollgate.restart();
  const refused = await ask(5);
  assert.deepEqual([refused.status, refused.body.over], [429, 3]);
  const { body } = await tollgate.post("inspect", { policy: "quota", key: "soft" });
  assert.deepEqual(
    body.limits.map(({ name, soft, owed }) => [name, soft, owed]),
    [
      ["month", true, 3],
      ["day", undefined, 0],
    ],
  );
});
