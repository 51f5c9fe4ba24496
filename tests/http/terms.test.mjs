// Members of policies beside their limits: one budget for all, jitter; and a cost of zero in one limit of several.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOW, start } from "./workerd.mjs";

const limit = (name, rate, period, more) => ({ name, rate, period, ...more });
const tollgate = await start({
  policies: {
    all: { rate: 3, period: "1h", key: [] },
    other: { rate: 1, period: "1h", key: [] },
    api: { rate: 3, period: "1h" },
    spread: { rate: 1, period: "10s", jitter: "5s" },
    long: { rate: 1, period: "10s", jitter: "5s", refusal_cache: "1m" },
    llm: { limits: [limit("requests", 3, "1m"), limit("tokens", 1, "1s", { capacity: 10, max_debt: "unlimited" })] },
    window: { kind: "fixed_window", rate: "100/day burst 2days", offset: "25h" },
  },
});
const { consume, peek, post } = {
  consume: (body, options) => tollgate.post("consume", body, options),
  peek: (body, options) => tollgate.post("peek", body, options),
  post: (verb, body, options) => tollgate.post(verb, body, options),
};

test("a policy with one budget takes no key, and any other needs one", async () => {
  assert.equal((await consume({ policy: "all" })).body.remaining, 2);
  assert.equal((await consume({ policy: "all", key: [] })).body.remaining, 1);
  assert.equal((await peek({ policy: "all" })).body.remaining, 1);
  assert.equal((await peek({ policy: "other" })).body.remaining, 1);
  const { status, body } = await consume({ policy: "all", key: "alice" });
  assert.deepEqual([status, body.detail], [400, "`key` must be left out: the policy has one budget for all"]);
  for (const [key, detail] of [
    [undefined, "the field `key` is missing"],
    [[], "`key` is a list of 0; it must have 1 to 8 parts"],
  ]) {
    const { status, body } = await consume({ policy: "api", key });
    assert.deepEqual([status, body.detail], [400, detail]);
  }
  const requests = [{ policy: "all" }, { policy: "other" }, { policy: "api", key: "in a batch" }];
  const batch = await post("batch", { requests });
  assert.deepEqual(
    batch.body.results.map(({ remaining }) => remaining),
    [0, 0, 2],
  );
  assert.equal((await consume({ policy: "all" })).status, 429);
  assert.equal((await post("refund", { policy: "all", cost: 2 })).body.tokens, 2);
  assert.equal((await post("inspect", { policy: "all" })).body.limits[0].remaining, 2);
});

test("jitter lengthens the waits that are reported, and delays no grant", async () => {
  for (const policy of ["spread", "long"]) {
    const key = `of ${policy}`;
    assert.equal((await consume({ policy, key }, { now: NOW })).status, 200);
    const told = new Set();
    for (let n = 0; n < 30; n++) {
      const { status, body, headers } = await consume({ policy, key }, { now: NOW });
      assert.equal(status, 429);
      assert.ok(NOW + 10_000 <= body.retry_at && body.retry_at <= NOW + 15_000, `${body.retry_at - NOW}`);
      assert.equal(body.retry_after_ms, body.retry_at - NOW);
      assert.equal(headers["retry-after"], String(Math.ceil(body.retry_after_ms / 1000)));
      told.add(body.retry_at);
    }
    assert.ok(told.size > 20, `${told.size} moments`);
    assert.equal((await peek({ policy, key }, { now: NOW })).body.retry_at, NOW + 10_000);
    assert.equal((await consume({ policy, key }, { now: NOW + 9_999 })).status, 429);
    assert.equal((await consume({ policy, key }, { now: NOW + 10_000 })).status, 200);
  }
});

test("a limit with a cost of zero has no part in the decision, not even from memory", async () => {
  const ask = (requests, tokens) => ({ policy: "llm", key: "alice", cost: { requests, tokens } });
  const at = { now: NOW };
  assert.equal((await post("charge", ask(0, 1_000), at)).body.tokens, 1_000);
  const looked = await consume(ask(0, 0), at);
  assert.deepEqual([looked.status, looked.body.retry_at], [429, NOW + 990_000]);
  const granted = await consume(ask(1, 0), at);
  assert.equal(granted.status, 200, granted.text);
  assert.deepEqual(
    granted.body.limits.map(({ name, allowed, remaining, owed }) => [name, allowed, remaining, owed]),
    [
      ["requests", true, 2, undefined],
      ["tokens", true, 0, 990],
    ],
  );
  assert.equal((await consume(ask(1, 1), at)).body.retry_at, NOW + 991_000);
  const requests = [ask(1, 0), { policy: "api", key: "bob" }];
  assert.equal((await post("batch", { requests }, at)).status, 200);
  assert.equal((await consume({ ...ask(1, 0), mode: "reserve", max_wait_ms: 0 }, at)).body.ready_at, NOW);
  const refused = await consume(ask(1, 0), at);
  assert.deepEqual([refused.status, refused.body.retry_at], [429, NOW + 20_000], "by requests alone");
});

test("an unlimited debt is reported as its amount, and a burst in time as tokens", async () => {
  const numbers = async (policy) => (await post("inspect", { policy, key: "numbers" })).body.limits;
  assert.equal((await numbers("llm"))[1].max_debt, Math.floor(2 ** 51 / 1000) - 10);
  const [window] = await numbers("window");
  assert.deepEqual([window.rate, window.period_ms, window.capacity], [100, 86_400_000, 200]);
  const { body } = await post("charge", { policy: "window", key: "opens" }, { now: NOW });
  assert.equal(body.reset_at % 86_400_000, 3_600_000, "an hour after midnight, as with an offset of 1h");
});
