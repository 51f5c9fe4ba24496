// A roll-out: for minutes, frontends and objects of two versions run side by side. Their formats differ, or their
// policies, or both; no request is wrongly refused or granted because of it. Two builds run here: the frontends of both
// ask the objects of one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { administered } from "../../src/worker/operators.mjs";
import { start } from "./workerd.mjs";

/** Nothing refills within the time of a test. */
const tokens = (capacity) => ({ rate: 1, period: "1day", capacity });
const list = (limits) => ({
  limits: Object.entries(limits).map(([name, capacity]) => ({ name, ...tokens(capacity) })),
});

/** Changes by a newer version: its policies and those of the older one. */
const CHANGES = {
  "nothing but the format": [{ api: tokens(9) }, { api: tokens(9) }],
  "a policy is added": [{ api: tokens(9) }, { api: tokens(9), added: tokens(5) }],
  "a limit is added": [{ api: list({ a: 20 }) }, { api: list({ a: 20, b: 9 }) }],
  "a second limit, so that both have names": [{ api: tokens(9) }, { api: list({ a: 9, b: 7 }) }],
  "the limits have another order": [{ api: list({ a: 12, b: 9 }) }, { api: list({ b: 9, a: 12 }) }],
  "a limit has another name": [{ api: list({ a: 9, b: 20 }) }, { api: list({ c: 9, b: 20 }) }],
  "a limit has other numbers": [{ api: list({ a: 9, b: 20 }) }, { api: list({ a: 15, b: 20 }) }],
  "all at once": [
    { api: tokens(9), list: list({ a: 9, b: 12 }), removed: tokens(5) },
    { api: tokens(7), list: list({ b: 11, c: 9 }), added: tokens(5) },
  ],
};

/** Every policy of these, with the same `on_error`. */
const withOnError = (policies, on_error) =>
  Object.fromEntries(Object.entries(policies).map(([name, policy]) => [name, { ...policy, on_error }]));

/** The limits of a policy: `[name, capacity]`. Without a name of its own, a limit has none. */
const limitsOf = ({ limits, capacity }) => limits?.map(({ name, capacity }) => [name, capacity]) ?? [["", capacity]];

/**
 * The expected result: an object decides under its own policy, or, if it has none with the same limits in the same
 * order, under the frontend's. Tokens spent of a limit stay spent, under either policy; one without a name is `a`.
 */
class Model {
  #spent = new Map();

  /** Whether a request for `cost` of each limit is granted. */
  consume(policy, cost, { objects, frontend }) {
    const [own, asked] = [objects.policies, frontend.policies].map((all) => all[policy] && limitsOf(all[policy]));
    const names = (limits) => JSON.stringify(limits?.map(([name]) => name));
    const limits = names(own) === names(asked) ? own : asked;
    const left = limits.map(([name, capacity]) => [
      `${policy}/${name || "a"}`,
      capacity - (this.#spent.get(`${policy}/${name || "a"}`) ?? 0),
    ]);
    const isGranted = left.every(([, tokens]) => tokens >= cost);
    for (const [name] of isGranted ? left : []) this.#spent.set(name, (this.#spent.get(name) ?? 0) + cost);
    return isGranted;
  }
}

/** Runs `use` with the frontends of two versions and the objects of the first, which {@link rollOut} replaces by the other's. */
async function sideBySide(versions, use) {
  let [objects, other] = versions;
  const tollgate = await start({ ...objects, other });
  await use({
    /** Asks a frontend of this version. The answer is a decision, made by an object. */
    async post(verb, ask, frontend, headers = {}) {
      if (frontend === other) headers = { ...headers, "x-version": "other" };
      const answer = await tollgate.post(verb, ask, { headers });
      const { status, text, body } = answer;
      assert.ok([200, 429].includes(status) && !body.degraded, `${status} ${text}\n${tollgate.log}`);
      return answer;
    },
    /** Restarts the objects with the other version. */
    async rollOut() {
      [objects, other] = [other, objects];
      await tollgate.kill();
      await tollgate.restart({ ...objects, other });
    },
    get objects() {
      return objects;
    },
  });
  await tollgate.stop();
}

const VERSIONS = ["test-clock", "next-format"];

for (const [change, both] of Object.entries(CHANGES)) {
  for (const [direction, isBack] of [
    ["out", false],
    ["back", true],
  ]) {
    test(`rolled ${direction}: ${change}`, async () => {
      for (const on_error of ["closed", "open"]) {
        const versions = both.map((policies, i) => ({ policies: withOnError(policies, on_error), build: VERSIONS[i] }));
        if (isBack) versions.reverse();
        await sideBySide(versions, async (service) => {
          const names = [...new Set(both.flatMap(Object.keys))];
          const model = new Model();
          let count = 0;
          const askAll = async () => {
            for (let round = 0; round < 5; round++) {
              for (const policy of names) {
                for (const frontend of versions) {
                  if (!frontend.policies[policy]) continue;
                  const cost = 1 + (round % 2);
                  count++;
                  const expected = model.consume(policy, cost, { objects: service.objects, frontend });
                  const { status } = await service.post("consume", { policy, key: "alice", cost }, frontend);
                  assert.equal(status, expected ? 200 : 429, `request ${count}: ${policy}, ${cost}`);
                }
              }
            }
          };
          await askAll();
          await service.rollOut();
          await askAll();
        });
      }
    });
  }
}

/** Runs `use` with the versions of a change, rolled out and rolled back. */
async function inBothDirections(change, use) {
  const versions = CHANGES[change].map((policies, i) => ({ policies, build: VERSIONS[i] }));
  for (const order of [versions, versions.toReversed()]) await sideBySide(order, (service) => use(service, ...order));
}

for (const change of ["nothing but the format", "a limit is added", "the limits have another order"]) {
  /** The tokens left in the limit that both versions have. */
  const left = async (service, key, frontend) => {
    const { limits } = (await service.post("inspect", { policy: "api", key }, frontend)).body;
    return limits.find(({ name = "a" }) => name === "a").remaining;
  };

  test(`an Idempotency-Key is known to both versions: ${change}`, async () => {
    await inBothDirections(change, async (service, from, to) => {
      for (const [key, first, second] of [
        ["alice", from, to],
        ["bob", to, from],
      ]) {
        const consume = async (frontend) => {
          const ask = { policy: "api", key, cost: 2 };
          const { status, body } = await service.post("consume", ask, frontend, { "idempotency-key": "an order" });
          assert.equal(status, 200);
          return body.replayed ?? false;
        };
        assert.equal(await consume(first), false);
        const [atFirst, atSecond] = [await left(service, key, first), await left(service, key, second)];
        for (const frontend of [second, first]) assert.equal(await consume(frontend), true);
        await service.rollOut();
        for (const frontend of [second, first]) assert.equal(await consume(frontend), true);
        assert.deepEqual([await left(service, key, first), await left(service, key, second)], [atFirst, atSecond]);
        await service.rollOut();
      }
    });
  });

  test(`a reservation of one version is settled or cancelled by the other: ${change}`, async () => {
    await inBothDirections(change, async (service, from, to) => {
      for (const [key, first, second] of [
        ["alice", from, to],
        ["bob", to, from],
      ]) {
        const before = await left(service, key, first);
        const reserve = async (cost) =>
          (await service.post("consume", { policy: "api", key, cost, mode: "reserve" }, first)).body.reservation;
        const [settled, cancelled, later] = [await reserve(3), await reserve(2), await reserve(1)];
        assert.equal(await left(service, key, first), before - 6);
        await service.post("settle", { policy: "api", key, reservation: settled, cost: 1 }, second);
        await service.post("cancel", { policy: "api", key, reservation: cancelled }, second);
        assert.equal(await left(service, key, first), before - 2);
        await service.rollOut();
        await service.post("cancel", { policy: "api", key, reservation: later }, second);
        assert.equal(await left(service, key, first), before - 1);
        await service.rollOut();
      }
    });
  });

  test(`a batch of either version takes from all of its keys or from none: ${change}`, async () => {
    await inBothDirections(change, async (service, from, to) => {
      const batch = async (frontend, ...costs) => {
        const requests = costs.map((cost, i) => ({ policy: "api", key: `user ${i}`, cost }));
        return (await service.post("batch", { requests }, frontend)).status;
      };
      const spent = (await left(service, "user 2", from)) - 4;
      const older = from.build === VERSIONS[0] ? from : to; // which has no limit that is smaller
      await service.post("consume", { policy: "api", key: "user 2", cost: spent }, older);
      const all = () => Promise.all([0, 1, 2].map((i) => left(service, `user ${i}`, from)));
      const before = await all();
      const taken = [0, 0, 0];
      for (const frontend of [from, to]) {
        assert.equal(await batch(frontend, 1, 2, 0), 200);
        [1, 2, 0].forEach((cost, i) => {
          taken[i] += cost;
        });
        assert.equal(await batch(frontend, 1, 1, 5), 429);
        assert.deepEqual(
          await all(),
          before.map((tokens, i) => tokens - taken[i]),
        );
      }
    });
  });
}

test("an operator gets the answer of a registry that does not say whether it is news, and the frontend asks for what has changed", async () => {
  for (const [answer, polls] of [
    ["200j\n\n{}\n", 1],
    [["200j\n\n{}\n", true], 1],
    [["200j\n\n{}\n", false], 0],
  ]) {
    let polled = 0;
    const frontend = {
      rust: () => ({ operator_ms: 1_000 }),
      registry: { administer: async () => answer },
      changed: async () => polled++,
    };
    assert.equal(await administered(frontend, ["{}"], "id"), "200j\n\n{}\n");
    assert.equal(polled, polls, JSON.stringify(answer));
  }
});
