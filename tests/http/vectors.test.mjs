// The shared vectors, tests/vectors/*.json, through HTTP.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { start } from "./workerd.mjs";

const folder = new URL("../vectors/", import.meta.url);
const cases = readdirSync(folder)
  .filter((name) => name.endsWith(".json"))
  .flatMap((name) =>
    JSON.parse(readFileSync(new URL(name, folder), "utf8")).cases.map((each) => ({ ...each, file: name })),
  );

/** The limit in POLICIES. */
function policy({ kind, rate, period_ms, capacity, max_debt, initial, offset_ms, grains, ...others }) {
  assert.deepEqual(others, {}, "a limit with fields that this test does not pass on");
  // Its refusals are never from memory.
  if (kind === "rolling_window") return { kind, rate, period: `${period_ms}ms`, grains };
  // A refusal from memory must be the same answer.
  const policy = { kind, rate, period: `${period_ms}ms`, capacity, max_debt, initial, refusal_cache: "1m" };
  // Natively a window without an offset has the phase 0; here it would have the key's.
  if (kind === "fixed_window") policy.offset = `${offset_ms ?? 0}ms`;
  if (kind === "first_use_window") Object.assign(policy, { kind: "fixed_window", offset: "first_use" });
  return policy;
}

/** A verb's request, and what its grants report beside what is left: `tokens` if they may be fewer, and when they are ready. */
const VERBS = {
  peek: { path: "/v1/peek", says: [] },
  consume: { path: "/v1/consume", says: [] },
  reserve: { path: "/v1/consume", mode: "reserve", says: ["ready_at"] },
  borrow: { path: "/v1/consume", mode: "borrow", says: ["ready_at"] },
  consume_up_to: { path: "/v1/consume", mode: "up_to", says: ["tokens"] },
  charge: { path: "/v1/charge", says: ["tokens"] },
  refund: { path: "/v1/refund", says: ["tokens"] },
  reset: { path: "/v1/reset", says: ["tokens"] },
};

const tollgate = await start({
  policies: Object.fromEntries(cases.map(({ limit }, i) => [`case-${i}`, policy(limit)])),
});
const send = (path, ask, now) => tollgate.send({ path, body: JSON.stringify(ask), now });

for (const [index, { file, name, limit, steps }] of cases.entries()) {
  const capacity = limit.capacity ?? limit.rate;
  test(`${file}: ${name}`, async () => {
    const bucket = { policy: `case-${index}`, key: name };
    for (const [number, step] of steps.entries()) {
      const answer = await send(VERBS[step.verb].path, ask(bucket, step), step.at);
      const place = `step ${number + 1}: ${answer.text}`;
      const { remaining } =
        answer.status === 400 ? (await send("/v1/peek", { ...bucket, cost: 0 }, step.at)).body : answer.body;
      assert.deepEqual(
        { ...decision(answer), remaining },
        { ...expected(step, capacity), remaining: step.remaining },
        place,
      );
      if (answer.status !== 400) assert.equal(answer.body.limit, capacity, place);
      // Never, though the cost was not too large: no more than is left will ever come.
      const { never } = step.expect;
      const { reset_at, owed } = answer.body;
      if (never && answer.status === 429) {
        assert.equal(never.max, remaining, place);
        if (owed === undefined) assert.equal(reset_at, remaining === capacity ? step.at : null, place);
        else assert.ok(reset_at === null || reset_at > step.at, place);
      }
    }
  });

  test(`${file}: ${name}; and a peek before it agrees and changes nothing`, async () => {
    const bucket = { policy: `case-${index}`, key: `${name}, looked at` };
    for (const [number, step] of steps.entries()) {
      const { path, mode } = VERBS[step.verb];
      const requests = path === "/v1/consume" ? ["/v1/peek", "/v1/peek", path] : [path];
      for (const path of requests) {
        const answer = await send(path, ask(bucket, step), step.at);
        assert.deepEqual(
          decision(answer),
          expected(step, capacity),
          `step ${number + 1}, ${path} ${mode}: ${answer.text}`,
        );
      }
    }
  });
}

function ask(bucket, { verb, cost, max_wait_ms }) {
  return { ...bucket, cost: verb === "reset" ? undefined : cost, mode: VERBS[verb].mode, max_wait_ms };
}

/** The decision in an answer. */
function decision({ status, headers, body }) {
  const { allowed, cost, tokens, ready_at, retry_at, retry_after_ms, now, max_cost } = body;
  const retry_after = headers["retry-after"];
  return { status, allowed, cost, tokens, ready_at, retry_at, retry_after_ms, retry_after, now, max_cost };
}

/** The decision that answers a step. */
function expected({ at, verb, cost, expect: { allow, wait, never } }, capacity) {
  const nothing = decision({ status: undefined, headers: {}, body: {} });
  // More than the policy can ever grant: known without reading the bucket.
  if (never && never.max > 0 && never.max >= capacity && verb !== "consume_up_to")
    return { ...nothing, status: 400, max_cost: never.max };
  const decided = { ...nothing, cost: verb === "reset" ? 0 : cost, now: at };
  if (never) return { ...decided, status: 429, allowed: false };
  if (wait) {
    const retry_after_ms = wait.retry_at - at;
    const retry_after = String(Math.max(1, Math.ceil(retry_after_ms / 1_000)));
    return { ...decided, status: 429, allowed: false, retry_at: wait.retry_at, retry_after_ms, retry_after };
  }
  const { says } = VERBS[verb];
  if (!says.includes("tokens")) assert.equal(allow.tokens, cost, "all or nothing");
  if (!says.includes("ready_at")) assert.equal(allow.ready_at, at, "at once");
  return { ...decided, status: 200, allowed: true, ...Object.fromEntries(says.map((name) => [name, allow[name]])) };
}

test("at least one case ran", () => {
  assert.ok(cases.length > 0);
  console.log(`${cases.length} cases, ${cases.reduce((sum, { steps }) => sum + steps.length, 0)} steps`);
});
