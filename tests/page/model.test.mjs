// The playground without a page: its simulation and its texts.
import "./modules.mjs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { stringify } from "smol-toml";
import { count, law } from "../random.mjs";
import { headers, served } from "./page.mjs";

const { Bucket } = await import("tollgate");
const { Play } = await import("../../www/page/src/playground/play.ts");
const { formOf, namesOf, otherKind, read, tomlOf } = await import("../../www/page/src/playground/policy.ts");
const { PRESETS } = await import("../../www/page/src/playground/presets.ts");
const { Hindsight } = await import("../../www/page/src/playground/hindsight.ts");
const { Simulation } = await import("../../www/page/src/playground/simulation.ts");
const { START, waitOf } = await import("../../www/page/src/levels/track.ts");
const { MOST, TRACES, fromCsv, passedOver, trace } = await import("../../www/page/src/playground/trace.ts");
const { decode, encode, SPEEDS } = await import("../../www/page/src/playground/link.ts");
const { announced } = await import("../../www/page/src/levels/words.ts");
const { answerOf, RESERVATION } = await import("../../www/page/src/playground/answer.ts");

const policyOf = async (toml) => {
  const { policy, mistakes } = await read(toml);
  assert.equal(mistakes, undefined);
  return policy;
};
const costFor = ({ limits }) =>
  limits[0].name === undefined ? 1 : Object.fromEntries(limits.map(({ name }) => [name, name === "tokens" ? 1500 : 1]));

test("every trace of every preset stays below the bound, plays within its length, and is the same again", async () => {
  for (const { id, toml } of PRESETS) {
    const policy = await policyOf(toml);
    for (const [kind] of TRACES.filter(([kind]) => kind !== "csv")) {
      const { asks, durationMs } = trace(kind, policy.limits, costFor(policy));
      assert.ok(asks.length <= MOST && asks.every(({ at }) => at >= 0 && at <= durationMs), `${id} ${kind}`);
      const play = new Play([policy], asks.slice(0, 5000), []);
      play.advance(durationMs);
      const [simulation] = play.simulations;
      for (const { at, admitted } of simulation.events)
        for (const [i, tokens] of admitted.entries())
          assert.ok(tokens <= simulation.bound(i, at), `${id} ${kind} ${at}: ${tokens}`);
      assert.deepEqual(trace(kind, policy.limits, costFor(policy)).asks, asks);
    }
  }
});

test("at its own speed, each preset shows a refusal or a wait, and ends, within a minute", async () => {
  for (const { id, toml, trace: kind, speed } of PRESETS) {
    const policy = await policyOf(toml);
    const { asks, durationMs } = trace(kind, policy.limits, costFor(policy));
    assert.ok(SPEEDS.includes(speed), id);
    const seconds = (ms) => ms / speed / 1000;
    const play = new Play([policy], asks, []);
    play.advance(durationMs);
    const { events } = play.simulations[0];
    const first = events.find((event) => waitOf(event) > 0);
    assert.ok(first && seconds(first.at) <= 60, `${id}: ${first && seconds(first.at)} s`);
    assert.ok(seconds(durationMs) <= 60, `${id}: ${seconds(durationMs)} s in all`);
  }
});

test("webhooks are reserved, wait their turn one by one, and owe as much as they may", async () => {
  const { toml, trace: kind } = PRESETS.find(({ id }) => id === "webhooks");
  const policy = await policyOf(toml);
  const { asks, durationMs } = trace(kind, policy.limits, 1);
  const play = new Play([policy], asks, []);
  play.advance(durationMs);
  const { events, reservations } = play.simulations[0];
  assert.deepEqual([...new Set(events.map(({ verb }) => verb))], ["reserve"]);
  const starts = reservations.map(({ readyAt }) => readyAt);
  for (const [i, at] of starts.entries()) if (i > 0) assert.ok(at - starts[i - 1] >= 200, `${starts[i - 1]}, ${at}`);
  assert.equal(Math.min(...events.map(({ states }) => states[0].tokens)), -20);
  assert.ok(events.some(({ decision }) => !decision.allowed));
});

test("only what takes tokens counts as granted", async () => {
  const simulation = new Simulation(await policyOf('[p]\nrate = 5\nperiod = "1h"\nmax_debt = 3'));
  for (const [verb, granted, refused] of [
    ["consume", 1, 0],
    ["reserve", 2, 0],
    ["settle", 2, 0],
    ["reserve", 3, 0],
    ["cancel", 3, 0],
    ["refund", 3, 0],
    ["borrow", 4, 0],
    ["charge", 5, 0],
    ["consume", 5, 1],
    ["reset", 5, 1],
  ]) {
    simulation.ask({ at: 0, verb, cost: verb === "settle" ? 3 : 2 });
    const event = simulation.events.at(-1);
    assert.deepEqual([event.verb, event.granted, event.refused], [verb, granted, refused]);
  }
});

test("a decision's text says what is left in which limit", async () => {
  const said = async (toml, ask) => {
    const simulation = new Simulation(await policyOf(toml));
    return announced(simulation.ask({ at: 0, verb: "consume", ...ask }), simulation.limits);
  };
  const { toml: llm } = PRESETS.find(({ id }) => id === "llm");
  for (const [toml, ask, text] of [
    ['[p]\nrate = "5/s"', { cost: 2 }, "consume 2: granted, 3 left"],
    ['[p]\nrate = "5/s"', { cost: 6 }, "consume 6: refused, can never pass, 5 left"],
    [
      llm,
      { cost: { requests: 1, tokens: 1500 } },
      "consume 1 requests, 1,500 tokens: granted, 9 left in requests, 28,500 left in tokens",
    ],
    [
      llm,
      { verb: "reserve", cost: { requests: 12, tokens: 0 } },
      "reserve 12 requests, 0 tokens: granted, usable in 2 sec, 0 left in requests, 30,000 left in tokens",
    ],
  ])
    assert.equal(await said(toml, ask), text);
});

test("a reservation that ends by itself is shown as expired", async () => {
  const toml = '[p]\nrate = 0\nperiod = "1s"\ncapacity = 10\nreservation_ttl = "5s"\nunsettled = "refund"';
  const simulation = new Simulation(await policyOf(toml));
  simulation.ask({ at: 0, verb: "consume", cost: 1 });
  simulation.ask({ at: 0, verb: "reserve", cost: 4 });
  simulation.expire(5000);
  assert.equal(announced(simulation.events.at(-1), simulation.limits), "expired: 9 left");
});

test("a fixed window admits twice its capacity at its edge, a token bucket of the same numbers does not", async () => {
  const bucket = await policyOf('[p]\nrate = 100\nperiod = "1m"');
  const window = await policyOf('[p]\nkind = "fixed_window"\noffset = "0s"\nrate = 100\nperiod = "1m"');
  const { asks } = trace("burst", bucket.limits, 1);
  const play = new Play([bucket, window], asks, []);
  play.advance(70_000);
  const [evenly, atOnce] = play.simulations.map(({ events }) => events.at(-1).admitted[0]);
  assert.equal(atOnce, 200);
  assert.ok(evenly >= 100 && evenly < 110, String(evenly));
});

law(
  "requests made by hand in any order have the outcome of requests in order of time, and stay below the bound",
  { seed: 15, cases: 60 },
  async ({ below, pick }, seen) => {
    const policy = await policyOf(PRESETS.find(({ id }) => id === "llm").toml);
    const act = () => ({
      at: below(90_000),
      verb: pick(["consume", "reserve", "settle", "cancel", "refund"]),
      cost: { requests: below(12), tokens: below(20_000) },
    });
    const acts = Array.from({ length: 30 }, act).filter(
      ({ at }, i, all) => all.findIndex((one) => one.at === at) === i,
    );
    const play = new Play([policy], [], []);
    for (const one of acts) play.act(one);
    play.advance(200_000);
    const ordered = new Play([policy], [], acts);
    ordered.advance(200_000);
    const outcome = ({ simulations: [{ events, reservations }] }) => JSON.stringify({ events, reservations });
    assert.equal(outcome(play), outcome(ordered));
    for (const { at, verb, decision, admitted } of play.simulations[0].events) {
      for (const [i, tokens] of admitted.entries()) assert.ok(tokens <= play.simulations[0].bound(i, at));
      count(seen, decision.allowed ? verb : "refused");
    }
  },
  (seen) => assert.ok(["consume", "reserve", "settle", "cancel", "refund", "refused"].every((one) => seen[one] > 50)),
);

law(
  "the outcome depends neither on the steps in which it is played nor on looking back",
  { seed: 23, cases: 80 },
  async ({ below, pick }, seen) => {
    const unsettled = pick(["refund", "keep"]);
    const policy = await policyOf(
      `[p]\nrate = ${1 + below(9)}\nperiod = "1s"\ncapacity = 40\nmax_debt = ${below(300)}\nreservation_ttl = "${1 + below(20)}s"\nunsettled = "${unsettled}"`,
    );
    const verbs = ["consume", "reserve", "reserve", "reserve", "settle", "cancel", "refund"];
    const asks = Array.from({ length: 60 }, () => ({ at: below(60_000), verb: pick(verbs), cost: below(30) }));
    const played = (steps) => {
      const play = new Play([policy], asks, []);
      for (const to of steps) play.advance(to);
      return play;
    };
    const once = played([90_000]);
    const often = played(Array.from({ length: 900 }, (_, i) => (i + 1) * 100));
    const events = ({ simulations: [{ events, reservations }] }) => ({ events, reservations });
    assert.deepEqual(events(often), events(once));
    // A request by hand in the past is decided again, with all later ones.
    const act = { at: below(60_000), verb: "consume", cost: below(30) };
    const after = { at: act.at + below(3) * below(9000), verb: pick(verbs), cost: below(30) };
    once.act(act);
    once.act(after);
    once.advance(90_000);
    const before = new Play([policy], asks, [act, after]);
    before.advance(90_000);
    assert.deepEqual(events(once), events(before));
    const { reservations } = once.simulations[0];
    for (const { end } of reservations) count(seen, end?.how ?? "open");
  },
  (seen) => assert.ok(seen.expired > 200 && seen.settled > 50 && seen.cancelled > 50, JSON.stringify(seen)),
);

law(
  "a closed reservation counts from the start: as if everything were replayed with its final cost",
  { seed: 31, cases: 400 },
  ({ below, pick, chance }, seen) => {
    const kind = pick(["token_bucket", "fixed_window"]);
    const [rate, periodMs, maxDebt] = [1 + below(9), pick([700, 1000, 60_000]), below(10)];
    const limit = { kind, rate, periodMs, capacity: 1 + below(20), maxDebt };
    const bucket = new Bucket(START, limit);
    const per = BigInt(bucket.dropsPerToken);
    const drops = ({ tokens, drops }) => BigInt(tokens) * per + BigInt(drops);
    const at = (state, now) => {
      bucket.restore(state);
      return bucket.save(now);
    };
    let [now, state] = [START, bucket.save(START)];
    const hindsight = new Hindsight(new Bucket(START, limit), limit, state);
    const [first, done, open] = [state, [], []];
    /** The level now if this one had had this cost. */
    const again = (id, cost) => {
      let state = first;
      for (const { at: then, verb, taken, tokens, place } of done) {
        state = at(state, then);
        if (verb === "refund" || verb === "reset") {
          bucket.decide(then, { verb, cost: tokens });
          state = bucket.save(then);
        } else {
          const level = drops(state) - (place === id && id !== undefined ? BigInt(cost) * per : taken);
          const rest = ((level % per) + per) % per;
          state = { ...state, tokens: Number((level - rest) / per), drops: Number(rest) };
        }
      }
      return at(state, now);
    };
    for (let place = 0; place < 40; place += 1) {
      now += chance(0.3) ? 0 : below(pick([300, 3000, 30_000]));
      if (open.length > 0 && chance(0.4)) {
        const [{ id, tokens }] = open.splice(below(open.length), 1);
        const real = below(pick([tokens + 1, 40]));
        const floor = [drops(at(state, now)), BigInt(-maxDebt) * per].reduce((one, other) =>
          one < other ? one : other,
        );
        let cost = real;
        while (cost > tokens && drops(again(id, cost)) < floor) cost -= 1;
        const closed = hindsight.close(id, tokens, real, now);
        assert.deepEqual(closed, { cost, state: again(id, cost) });
        state = closed.state;
        done.find(({ place }) => place === id).taken = BigInt(cost) * per;
        count(seen, cost < real ? "unpaid" : real > tokens ? "more" : "less");
        continue;
      }
      const verb = chance(0.01) ? "reset" : pick(["consume", "reserve", "reserve", "charge", "refund"]);
      const cost = below(pick([3, 12]));
      const before = at(state, now);
      const { allowed, tokens } = bucket.decide(now, { verb, cost });
      const after = bucket.save(now);
      hindsight.follow(verb, cost, before, after, now);
      done.push({ at: now, verb, taken: drops(before) - drops(after), tokens: cost, place });
      state = after;
      if (verb === "reserve" && allowed) {
        hindsight.open(place, now);
        open.push({ id: place, tokens });
      }
    }
  },
  (seen) =>
    assert.ok(
      ["less", "more", "unpaid"].every((one) => seen[one] > 100),
      JSON.stringify(seen),
    ),
);

test("settling or cancelling nothing is not granted", async () => {
  const simulation = new Simulation(await policyOf('[p]\nrate = 5\nperiod = "1s"'));
  for (const verb of ["settle", "cancel"]) assert.equal(simulation.ask({ at: 0, verb, cost: 1 }), undefined);
  assert.deepEqual(simulation.events, []);
});

test("100,000 reservations are played within seconds, and replayed from the middle", async () => {
  const policy = await policyOf(
    '[p]\nrate = 1000\nperiod = "1s"\nmax_debt = 1000\nreservation_ttl = "10m"\nunsettled = "refund"',
  );
  const asks = Array.from({ length: MOST }, (_, i) => ({ at: i * 12, verb: "reserve", cost: 1 }));
  const play = new Play([policy], asks, []);
  const began = performance.now();
  play.advance(2_000_000);
  play.act({ at: 600_000, verb: "consume", cost: 1 });
  play.advance(2_000_000);
  const took = performance.now() - began;
  assert.equal(play.simulations[0].events.length, 2 * MOST + 1); // each expires
  assert.ok(took < 20_000, `${took} ms`); // it was 84 s when each expiry looked at all that were open
});

test("of decisions at the same moment the last is the nearest", async () => {
  const simulation = new Simulation(await policyOf('[p]\nrate = 5\nperiod = "1s"'));
  for (const at of [0, 1000, 1000, 1000, 3000]) simulation.ask({ at, verb: "consume", cost: 1 });
  assert.deepEqual(
    [0, 499, 900, 1900, 2100, 9000].map((at) => simulation.nearest(at, 3000)),
    [0, 0, 3, 3, 4, 4],
  );
  assert.equal(simulation.nearest(9000, 1500), 3);
});

test("an unsettled reservation ends by itself; a settled one costs what it cost", async () => {
  const policy = await policyOf(
    '[p]\nrate = 0\nperiod = "1s"\ncapacity = 10\nreservation_ttl = "5s"\nunsettled = "refund"',
  );
  const simulation = new Simulation(policy);
  const left = (at) => simulation.level(0, at);
  simulation.ask({ at: 0, verb: "reserve", cost: 4 });
  assert.equal(left(0), 6);
  simulation.ask({ at: 1000, verb: "settle", cost: 1 });
  assert.equal(left(1000), 9);
  simulation.ask({ at: 2000, verb: "reserve", cost: 4 });
  assert.equal(left(2000), 5);
  simulation.expire(7000);
  assert.equal(left(7000), 9);
  assert.deepEqual(
    simulation.reservations.map(({ end }) => end),
    [
      { at: 1000, how: "settled" },
      { at: 7000, how: "expired" },
    ],
  );
});

test("the level of a token bucket is a line, that of a window steps, and debt is below zero", async () => {
  const bucket = new Simulation(await policyOf('[p]\nrate = 4\nperiod = "1s"\nmax_debt = 3'));
  bucket.ask({ at: 0, verb: "consume", cost: 4 });
  assert.deepEqual(
    [0, 125, 250, 375, 2000].map((at) => bucket.level(0, at)),
    [0, 0.5, 1, 1.5, 4],
  );
  bucket.ask({ at: 2000, verb: "reserve", cost: 6 });
  assert.deepEqual(
    [2000, 2125, 2250].map((at) => bucket.level(0, at)),
    [-2, -1.5, -1],
  );
  const window = new Simulation(await policyOf('[p]\nkind = "fixed_window"\noffset = "0s"\nrate = 4\nperiod = "1s"'));
  window.ask({ at: 0, verb: "consume", cost: 4 });
  assert.deepEqual(
    [0, 999, 1000].map((at) => window.level(0, at)),
    [0, 0, 4],
  );
});

test("each policy can play another's requests, and any valid policy can be played", async () => {
  const tomls = [
    '[p]\nrate = 5\nperiod = "1s"',
    '[[p.limits]]\nname = "other"\nrate = 5\nperiod = "1s"',
    '[p]\nrate = 1\nperiod = "26000000days"',
    '[p]\nrate = 1\nperiod = "1s"\ncapacity = 0\nmax_debt = 4',
    '[p]\nrate = 9007199254740991\nperiod = "1ms"\ncapacity = 1',
    '[p]\nrate = 0\nperiod = "1s"\ncapacity = 0',
  ];
  const policies = await Promise.all([...PRESETS.map(({ toml }) => toml), ...tomls].map(policyOf));
  for (const policy of policies)
    for (const [kind] of TRACES) {
      const { asks, durationMs } = trace(kind, policy.limits, costFor(policy), "1\n2,3,reserve\n3,1,settle");
      const play = new Play(policies, asks.slice(0, 200), []);
      play.advance(durationMs);
      for (const [i, simulation] of play.simulations.entries())
        assert.ok(Number.isFinite(simulation.level(0, durationMs)), `${policy.name} ${kind} ${i}`);
    }
});

const COMMENTED = `# Who asks for what, agreed in May.
name = "service" # of the Worker

[vars.POLICIES]
plain = "20/s burst 40" # as the contract says

# The API.
[vars.POLICIES.api] # for everybody
\trate = 20   # not more: the database
\tperiod = "10s"
on_error = "open" # "closed" was too strict # really
capacity = 20

[vars.POLICIES."llm # two"]
reservation_ttl = "30s" # a long answer
notify = [ # whom to tell
  "refused",
]

  # Requests first.
  [["vars".POLICIES."llm # two".limits]]
  name = "requests"
  rate = 60 # a "minute" = 60
  period = '1m'

  [[vars.POLICIES."llm # two".limits]]
  name = "tokens" # of the model
  kind = "fixed_window"
  rate = 90_000
  period = "1m"
  offset = "0s"
# The end.
[env.other]
main = "x.js"
`;

test("what the form does not change stays byte for byte, including comments and order", () => {
  for (const toml of [...PRESETS.map(({ toml }) => toml), COMMENTED])
    for (const name of namesOf(toml)) assert.equal(tomlOf(toml, formOf(toml, name)), toml);
  const limit = (name, i, changes) => {
    const form = formOf(COMMENTED, name);
    const limits = form.limits.map((limit, j) =>
      i === j ? JSON.parse(JSON.stringify({ ...limit, ...changes })) : limit,
    );
    return { ...form, limits };
  };
  for (const [form, was, is] of [
    [limit("plain", 0, { rate: "30/s" }), '"20/s burst 40" #', '"30/s" #'],
    [limit("api", 0, { rate: 50 }), "rate = 20   # not", "rate = 50   # not"],
    [limit("api", 0, { period: "1 # 2" }), '"10s"', '"1 # 2"'],
    [limit("api", 0, { capacity: undefined }), "capacity = 20\n", ""],
    [limit("api", 0, { max_debt: 5 }), "capacity = 20\n", "capacity = 20\n\tmax_debt = 5\n"],
    [limit("llm # two", 0, { rate: 70 }), 'rate = 60 # a "minute"', 'rate = 70 # a "minute"'],
    [limit("llm # two", 0, { period: "2m" }), "'1m'", '"2m"'],
    [limit("llm # two", 1, { rate: 5 }), "90_000", "5"],
    [limit("llm # two", 1, { kind: undefined, offset: undefined }), / {2}kind = .*\n| {2}offset = .*\n/g, ""],
  ])
    assert.equal(tomlOf(COMMENTED, form), COMMENTED.replaceAll(was, is));
});

law(
  "changing one field changes one line, whichever field of whichever policy it is",
  { seed: 16, cases: 300 },
  ({ below, pick }, seen) => {
    const name = pick(namesOf(COMMENTED).filter((name) => name !== "plain"));
    const form = formOf(COMMENTED, name);
    const i = below(form.limits.length);
    const field = pick(["rate", "period", "capacity", "max_debt", "initial", "offset"]);
    const value = pick([below(100), `${below(100)} # "or" 'so'`, "\\", "=[", undefined]);
    const { [field]: old, ...others } = form.limits[i];
    const changed = { ...others, ...(value !== undefined && { [field]: value }) };
    const toml = tomlOf(COMMENTED, { name, limits: form.limits.map((limit, j) => (i === j ? changed : limit)) });
    assert.deepEqual({ ...formOf(toml, name).limits[i] }, changed);
    const [before, after] = [COMMENTED, toml].map((text) => text.split("\n"));
    const same = before.findIndex((line, at) => line !== after[at]);
    const more = after.length - before.length;
    const [gone, come] = [Number(old !== undefined), Number(value !== undefined)];
    assert.equal(more, come - gone, toml);
    if (same >= 0) assert.deepEqual(after.slice(same + come), before.slice(same + gone), toml);
    count(seen, same < 0 ? "nothing" : gone && come ? "changed" : gone ? "removed" : "added");
    if (gone && come && before[same]?.includes(" #")) {
      const comment = before[same].slice(before[same].indexOf(" #"));
      assert.ok(after[same].endsWith(comment), toml);
    }
  },
  (seen) =>
    assert.ok(
      ["nothing", "changed", "removed", "added"].every((one) => seen[one] > 10),
      JSON.stringify(seen),
    ),
);

test("limits are added and removed in place, and a policy of one limit becomes one of two", () => {
  const hour = { name: "limit2", rate: 1000, period: "1h" };
  const written = '[[vars.POLICIES.api.limits]]\nname = "limit2"\nrate = 1000\nperiod = "1h"\n';
  const { limits } = formOf(COMMENTED, "api");
  const two = tomlOf(COMMENTED, { name: "api", limits: [{ name: "limit1", ...limits[0] }, hour] });
  assert.equal(
    two,
    COMMENTED.replace('on_error = "open" # "closed" was too strict # really\n', "")
      .replace(
        "# for everybody\n",
        '# for everybody\non_error = "open" # "closed" was too strict # really\n\n[[vars.POLICIES.api.limits]]\n\tname = "limit1"\n',
      )
      .replace("capacity = 20\n", `capacity = 20\n\n${written}`),
  );
  const one = tomlOf(two, { name: "api", limits: [{ name: "limit1", ...limits[0] }] });
  assert.equal(one, two.replace(`${written}\n`, ""));
  const three = formOf(COMMENTED, "llm # two");
  const more = tomlOf(COMMENTED, { ...three, limits: [...three.limits, { ...hour, name: "limit3" }] });
  assert.deepEqual({ ...formOf(more, "llm # two").limits.at(-1) }, { ...hour, name: "limit3" });
  assert.ok(more.includes('offset = "0s"\n\n[[vars.POLICIES."llm # two".limits]]\nname = "limit3"'));
});

test("a policy is compared with one of the other kind, and the other policies of its text stay", () => {
  const toml =
    '[a]\nrate = 5 # five\nmax_debt = 2\n\n[b]\nkind = "fixed_window"\noffset = "6h"\nrate = 5\nmax_debt = 2';
  assert.equal(
    otherKind(toml, "a"),
    toml.replace("five\nmax_debt = 2\n", 'five\nkind = "fixed_window"\noffset = "0s"\n'),
  );
  assert.equal(otherKind(toml, "b"), toml.replace('kind = "fixed_window"\noffset = "6h"\n', ""));
  assert.equal(otherKind("[a", "a"), "[a");
});

test("however a policy is written, it is read back as the form says, and the other policies stay", () => {
  for (const toml of [
    '[vars.POLICIES]\na = { rate = 5, period = "1s" }\nb = "1/s"',
    '[vars]\nPOLICIES.a.rate = 5\nPOLICIES.a.period = "1s"\nPOLICIES.b = "1/s"\nother = 1',
    'a = "5/s"\nb = "1/s" # one',
    '[a]\r\nrate = 5 # five\r\nperiod = "1s"\r\n\r\n[b]\r\nrate = "1/s"\r\n',
    '[[a.limits]]\nname = "x"\nrate = """\n5/s"""\n\n[b]\nrate = "1/s"',
    'a = { limits = [{ name = "x", rate = 5, period = "1s" }] }\n[b]\nrate = "1/s"',
  ]) {
    for (const limits of [
      [{ rate: 7, period: "2s" }],
      [{ rate: "7/s" }],
      [{ name: "x", rate: 7, period: "2s" }],
      [
        { name: "x", rate: 7, period: "2s" },
        { name: "y", rate: 8, period: "2s", max_debt: 3 },
      ],
    ]) {
      const changed = tomlOf(toml, { name: "a", limits });
      assert.deepEqual(JSON.parse(JSON.stringify(formOf(changed, "a"))), { name: "a", limits }, changed);
      assert.deepEqual(formOf(changed, "b"), formOf(toml, "b"), changed);
      assert.deepEqual(namesOf(changed).sort(), ["a", "b"]);
    }
  }
  const windows = '[a]\r\nrate = 5 # five\r\nperiod = "1s"\r\n';
  assert.equal(
    tomlOf(windows, { name: "a", limits: [{ rate: 6, period: "1s", max_debt: 1 }] }),
    '[a]\r\nrate = 6 # five\r\nperiod = "1s"\r\nmax_debt = 1\r\n',
  );
});

test("any policy of a text can play, and an error in any of them has the reader's message and line", async () => {
  const toml = '[a]\nrate = 5\nperiod = "1s"\n\n[b]\nrate = 6\nperiod = "1s"';
  for (const [chosen, name, rate] of [
    [undefined, "a", 5],
    ["a", "a", 5],
    ["b", "b", 6],
    ["gone", "a", 5],
  ]) {
    const { policy } = await read(toml, chosen);
    assert.deepEqual([policy.name, policy.limits[0].rate, formOf(toml, chosen).name], [name, rate, name]);
  }
  for (const [toml, text, line] of [
    ['[vars.POLICIES.api]\nrate = 5\nperiod = "1 fortnight"', /POLICIES\.api\.period: /, 3],
    ['[p]\n\n[[p.limits]]\nname = "a"\nrate = "1/s"\n\n[[p.limits]]\nname = "b"\nrate = -1', /POLICIES\.p\.limits/, 9],
    [
      '[[a.limits]]\nname = "a"\nrate = "1/s"\n\n[[b.limits]]\nname = "b"\nperiod = "1s"\nrate = -1',
      /POLICIES\.b\.limits\[0\]/,
      8,
    ],
    ['[a]\nrate = "1/s"\n["a.b"]\nrate = "1/s"\nperiod = "never"', /POLICIES\.a\.b\.period: /, 5],
    ["[p]\nrate = ", /./, 2],
    ['[p]\nrate = 1\nperiod = "1s"\nmode = "off"', /enforces no limit/, undefined],
  ]) {
    const { mistakes } = await read(toml);
    assert.match(mistakes[0].text, text);
    assert.equal(mistakes[0].line, line, toml);
  }
});

test("without an offset a window opens at a moment of its own, which is shown and played", async () => {
  for (const [period, first] of [
    ["1m", 24_400],
    ["1h", 36 * 60_000 + 24_400],
  ]) {
    const toml = `[p]\nkind = "fixed_window"\nrate = 4\nperiod = "${period}"`;
    const policy = await policyOf(toml);
    assert.deepEqual(policy.ownWindows, [{ limit: "p", opensAt: first }]);
    const simulation = new Simulation(policy);
    simulation.ask({ at: 0, verb: "consume", cost: 4 });
    assert.deepEqual(
      [0, first - 1, first].map((at) => [simulation.level(0, at), simulation.bound(0, at)]),
      [
        [0, 4],
        [0, 4],
        [4, 8],
      ],
    );
    assert.deepEqual((await policyOf(`${toml}\noffset = "0s"`)).ownWindows, []);
  }
  assert.deepEqual((await policyOf('[p]\nrate = 4\nperiod = "1m"')).ownWindows, []);
});

test("a link gives back its scene, and anything else gives nothing", () => {
  const scene = {
    toml: "[p]\nrate = 1 # ☂",
    policy: "p",
    other: "[q]",
    otherPolicy: "q",
    trace: "csv",
    csv: "1,2",
    cost: { requests: 1, tokens: 2 },
    acts: [{ at: 5, verb: "reserve", cost: { requests: 1, tokens: 2 } }],
    at: 7,
    speed: 100,
    picked: [0, 1],
  };
  assert.deepEqual(decode(encode(scene)), scene);
  for (const wrong of [
    { trace: "other" },
    { at: -1 },
    { speed: 3 },
    { toml: 5 },
    { acts: [{ at: 1, verb: "steal", cost: 1 }] },
    { acts: [{ at: 1, verb: "reset", cost: 1 }] }, // no button asks it
  ])
    assert.equal(decode(encode({ ...scene, ...wrong })), undefined, JSON.stringify(wrong));
  for (const text of ["", "%", "bnVsbA"]) assert.equal(decode(text), undefined);
});

test("CSV: seconds, optionally a cost and a verb; other lines are skipped", () => {
  const text = "seconds,cost,verb\n2.5;3;reserve\n\n1\n-1,2\n0.2,x\n3,1,take\n";
  assert.deepEqual(fromCsv(text, 7), [
    { at: 1000, verb: "consume", cost: 7 },
    { at: 2500, verb: "reserve", cost: 3 },
  ]);
  assert.deepEqual(passedOver(text), [5, 6, 7]);
});

test("a scene is linkable if browsers accept its address, whatever makes it long", () => {
  const named = Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`a-limit-with-a-long-name-${i}`, 10_000]));
  for (const [csv, count, cost, is] of [
    ["1\n".repeat(460_000), 0, 1, true],
    ["1\n".repeat(480_000), 0, 1, false],
    ["1\r\n".repeat(270_000), 0, 1, true],
    ["1\r\n".repeat(333_000), 0, 1, false],
    ["", 80_000, 1, true],
    ["", 90_000, 1, false],
    ["1\n".repeat(230_000), 40_000, 1, true],
    ["1\n".repeat(230_000), 50_000, 1, false],
    ["", 4_000, named, true],
    ["", 9_000, named, false],
  ]) {
    const acts = Array.from({ length: count }, () => ({ at: 1, verb: "consume", cost }));
    const text = encode({ toml: "", trace: "csv", csv, acts, at: 0, speed: 1 });
    assert.equal(text !== undefined, is, `${csv.length} characters, ${count} requests`);
    if (is) assert.ok(text.length < 1_900_000);
  }
});

/** A request with inline limits: one as its fields, several by name. */
const ASKED = [
  {
    limits: { rate: 10, period: "10s" },
    acts: [
      ["consume", 1],
      ["consume", 9],
      ["consume", 10],
      ["consume", 11], // can never pass
      ["reserve", 11],
      ["borrow", 11],
      ["refund", 3],
      ["charge", 11],
      ["refund", 30],
      ["borrow", 10],
      ["reset"],
      ["consume", 4],
      ["reset"],
    ],
  },
  {
    limits: { rate: 10, period: "10s" },
    acts: [
      ["reserve", 4],
      ["settle", 2],
      ["reserve", 2],
      ["settle", 5],
      ["reserve", 1],
      ["cancel", 1],
    ],
  },
  {
    limits: { rate: 5, period: "1h", capacity: 1, max_debt: 20 },
    acts: [
      ["consume", 2], // more than the capacity, and not more than can be reserved
      ["borrow", 22],
      ["reserve", 22],
      ["reserve", 21],
      ["reserve", 20],
      ["consume", 1],
      ["refund", 20],
      ["borrow", 20],
      ["borrow", 20],
      ["charge", 100],
      ["reset"], // pays what is owed
      ["reset"],
    ],
  },
  {
    // It never refills: taken tokens are gone, and debt is never paid.
    limits: { rate: 0, period: "1day", capacity: 5, max_debt: 3 },
    acts: [
      ["borrow", 9],
      ["reserve", 6],
      ["consume", 6],
      ["consume", 4],
      ["consume", 2],
      ["reserve", 2],
      ["borrow", 4],
      ["borrow", 1],
      ["consume", 0],
    ],
  },
  {
    limits: { kind: "fixed_window", rate: 10, period: "1day", offset: "0s", max_debt: 4 },
    acts: [
      ["consume", 11],
      ["reserve", 15],
      ["reserve", 14],
      ["borrow", 1],
    ],
  },
  {
    limits: [
      { name: "requests", rate: 60, period: "1h", max_debt: 10 },
      { name: "tokens", rate: 100_000, period: "1day", max_debt: 10_000 },
    ],
    acts: [
      ["consume", { requests: 1, tokens: 99_000 }],
      ["consume", { requests: 2, tokens: 50_000 }],
      ["reserve", { requests: 1, tokens: 5000 }],
      ["settle", { requests: 1, tokens: 20_000 }],
      ["refund", { requests: 5, tokens: 1000 }],
      ["reserve", { requests: 7, tokens: 0 }],
      ["cancel", { requests: 7, tokens: 0 }],
      ["consume", 2],
      ["consume", 61],
      ["consume", { requests: 61, tokens: 100_001 }],
      ["consume", { requests: 1, tokens: 100_001 }],
      ["reserve", 71],
      ["reserve", { requests: 1, tokens: 110_001 }],
      ["reserve", { requests: 70, tokens: 1 }],
      ["borrow", { requests: 70, tokens: 110_001 }],
      ["refund", { requests: 90, tokens: 200_000 }],
      ["reserve", { requests: 65, tokens: 70_000 }],
      ["reserve", { requests: 40, tokens: 1 }],
      ["borrow", 1],
      ["refund", { requests: 90, tokens: 1 }],
      ["borrow", { requests: 61, tokens: 5 }],
      ["borrow", { requests: 0, tokens: 5 }],
      ["charge", { requests: 1, tokens: 200_000 }],
      ["charge", 3],
      ["reset"],
    ],
  },
];

test("the answer shown is the service's own, except for its moments", async () => {
  const { url } = await served();
  const ask = async (path, body) => {
    const response = await fetch(`${url}/v1/${path}`, {
      method: "POST",
      headers,
      body: JSON.stringify(body),
    });
    return { status: response.status, headers: response.headers, body: await response.json() };
  };
  // The playground begins at a midnight, and the windows of a day open at one.
  const days = Date.now() - START - ((Date.now() - START) % 86_400_000);
  const seen = {};
  for (const { limits, acts } of ASKED) {
    const policy = Array.isArray(limits) ? { limits } : limits;
    const simulation = new Simulation(await policyOf(stringify({ plan: policy })));
    const key = `page-${Math.random()}`;
    let reservation;
    for (const [verb, cost = 0] of acts) {
      const waits = verb === "reserve" || verb === "borrow";
      const real = await ask(waits ? "consume" : verb, {
        policy: "plan",
        limits,
        key,
        ...(verb !== "cancel" && verb !== "reset" && { cost }),
        ...(waits && { mode: verb }),
        ...((verb === "settle" || verb === "cancel") && { reservation }),
      });
      // A 400 has no moment: nothing was decided.
      const at = real.body.now === undefined ? (simulation.events.at(-1)?.at ?? 0) : real.body.now - days - START;
      const shown = answerOf(simulation, simulation.ask({ at, verb, cost }));
      if (real.body.reservation !== undefined) {
        reservation = real.body.reservation;
        real.body.reservation = RESERVATION;
      }
      delete real.body.source; // the source of the refusal: the object, or a frontend's memory
      const moved = JSON.parse(JSON.stringify(shown.body), (field, value) =>
        /(^now|_at)$/.test(field) && value !== null ? value + days : value,
      );
      const asked = `${verb} ${JSON.stringify(cost)} of ${JSON.stringify(limits)}`;
      assert.equal(shown.status, real.status, asked);
      assert.deepEqual(moved, real.body, asked);
      for (const name of ["RateLimit-Policy", "RateLimit", "Retry-After"])
        assert.equal(shown.headers[name] ?? null, real.headers.get(name), `${name} of ${asked}`);
      count(seen, `${verb} ${real.status}`);
    }
  }
  for (const verb of ["consume", "reserve", "borrow"])
    for (const status of [200, 400, 429]) assert.ok(seen[`${verb} ${status}`] > 1, `${verb} ${status}`);
});
