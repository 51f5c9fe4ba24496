// Many callers at once: admitted exactly as often as the limit allows, no more and no less.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOW, start } from "./workerd.mjs";

const CALLERS = 64;
const POLICIES = {
  api: { rate: 10, period: "1s", capacity: 50 },
  odd: { rate: 3, period: "70ms", capacity: 20 },
  daily: { kind: "fixed_window", rate: 50, period: "1day", offset: "0s" },
  pair: { rate: 1, period: "1day", capacity: 2 },
};

/** All callers at once, each with its next request as soon as the last is answered; the answers in no order. */
async function callers(count, next) {
  const answers = [];
  const caller = async () => {
    for (let request = next(); request; request = next()) answers.push(await request);
  };
  await Promise.all(Array.from({ length: count }, caller));
  return answers;
}

/** The `next` of {@link callers}: sends each of `asks` once. */
function each(asks, send) {
  const rest = asks.values();
  return () => {
    const { done, value } = rest.next();
    return done ? undefined : send(value);
  };
}

const granted = (answers) => answers.filter(({ status }) => status === 200);

test("one key, clock stopped: one grant per token, each with a different number left", async () => {
  const tollgate = await start({ policies: POLICIES });
  for (let round = 0; round < 10; round++) {
    const policy = round % 2 ? "daily" : "api";
    const asks = Array(2 * CALLERS).fill({ policy, key: `round ${round}` });
    const answers = await callers(
      CALLERS,
      each(asks, (ask) => tollgate.consume(ask)),
    );
    assert.equal(answers.length, 2 * CALLERS);
    const left = granted(answers).map(({ body }) => body.remaining);
    assert.deepEqual(
      left.sort((a, b) => b - a),
      Array.from({ length: 50 }, (_, i) => 49 - i),
      `round ${round}`,
    );
    const others = answers.filter(({ status }) => status !== 200);
    for (const { status, body } of others) assert.deepEqual([status, body.remaining], [429, 0]);
  }
  await tollgate.stop();
});

test("one key, clock running: each second grants exactly what was refilled", async () => {
  const tollgate = await start({ policies: POLICIES });
  for (let second = 0; second < 10; second++) {
    const now = NOW + second * 1_000;
    const asks = Array(CALLERS).fill({ policy: "api", key: "alice" });
    const answers = await callers(
      CALLERS,
      each(asks, (ask) => tollgate.consume(ask, { now })),
    );
    assert.equal(granted(answers).length, second === 0 ? 50 : 10, `second ${second}`);
  }
  await tollgate.stop();
});

test("one key, many costs and peeks: nothing is granted twice, nothing available is refused", async () => {
  const tollgate = await start({ policies: POLICIES });
  for (let round = 0; round < 10; round++) {
    const key = `round ${round}`;
    const asks = Array.from({ length: 2 * CALLERS }, (_, i) => ({
      policy: "api",
      key,
      cost: ((i * (round + 3)) % 9) + 1,
    }));
    let taken = 0;
    const send = async (ask) => {
      const verb = ask.cost === 4 ? "peek" : "consume";
      const answer = await tollgate[verb](ask);
      if (verb === "consume" && answer.status === 200) taken += ask.cost;
      return answer;
    };
    const answers = await callers(CALLERS, each(asks, send));
    const { body: end } = await tollgate.peek({ policy: "api", key, cost: 0 });
    assert.equal(taken + end.remaining, 50);
    for (const { status, body } of answers) {
      // Tokens only decrease, so every refused cost is more than is left at the end.
      if (status === 429)
        assert.ok(body.cost > body.remaining && body.remaining >= end.remaining, JSON.stringify(body));
    }
  }
  await tollgate.stop();
});

test("many keys at once: each is granted exactly what its own limit allows", async () => {
  const tollgate = await start({ policies: POLICIES });
  const keys = Array.from({ length: 50 }, (_, i) => `user ${i}`);
  const asks = Array(4)
    .fill(keys)
    .flat()
    .map((key) => ({ policy: "pair", key }));
  const admitted = new Map(keys.map((key) => [key, 0]));
  await callers(
    CALLERS,
    each(asks, async (ask) => {
      const { status } = await tollgate.consume(ask);
      assert.ok(status === 200 || status === 429, `${status}`);
      if (status === 200) admitted.set(ask.key, admitted.get(ask.key) + 1);
    }),
  );
  assert.deepEqual([...new Set(admitted.values())], [2]);
  await tollgate.stop();
});

test("in real time, as deployed: exactly what the model admits at the times of the answers", async () => {
  const tollgate = await start({ policies: POLICIES, build: "deployed" });
  const ends = Date.now() + 1_000;
  const send = () => (Date.now() < ends ? tollgate.consume({ policy: "odd", key: "alice" }) : undefined);
  const answers = await callers(CALLERS, send);
  const moments = answers.map(({ body }) => body.now);
  const [first, last] = [Math.min(...moments), Math.max(...moments)];
  assert.ok(last - first > 500 && answers.length > CALLERS, `${answers.length} answers in ${last - first} ms`);

  // The promise.
  const count = granted(answers).length;
  assert.ok(count <= 20 + Math.floor((3 * (last - first)) / 70), `${count} in ${last - first} ms`);
  assert.ok(count < answers.length, "some were refused, or this shows nothing");

  // And the model, in seventieths of a token: at each moment as many callers as there are tokens.
  let [level, at] = [20 * 70, first];
  for (const now of [...new Set(moments)].sort((a, b) => a - b)) {
    level = Math.min(20 * 70, level + 3 * (now - at));
    at = now;
    const here = answers.filter(({ body }) => body.now === now);
    const expected = Math.min(here.length, Math.floor(level / 70));
    assert.equal(granted(here).length, expected, `at ${now - first} ms, ${here.length} asked for ${level} seventieths`);
    level -= expected * 70;
  }
  await tollgate.stop();
});
