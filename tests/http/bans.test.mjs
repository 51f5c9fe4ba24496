// Bans: a policy locks out keys that are refused often, for longer each time. The worked example is that of docs/policies.md.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { parse } from "smol-toml";
import { newToken } from "./credentials.mjs";
import { NOW, start } from "./workerd.mjs";

const [, documented] = readFileSync(new URL("../../docs/policies.md", import.meta.url), "utf8").match(
  /\n## Bans\n.*?```toml\n(.*?)```/s,
);
const [, batch] = readFileSync(new URL("../../docs/policies.md", import.meta.url), "utf8").match(
  /\n## Bans\n.*?```json\n(.*?)```/s,
);
const POLICIES = {
  ...parse(documented).vars.POLICIES,
  short: { rate: 1, period: "30s", ban: { after: 2, within: "10m", for: "1m" } },
  slow: { rate: 1, period: "1day", ban: { after: 2, within: "10m", for: "1m" } },
  cached: { rate: 1, period: "1day", ban: { after: 1, within: "1s", for: "1m" }, refusal_cache: "1s" },
};
const operator = newToken("consume", "adjust", "admin");
const settings = { policies: POLICIES, tokens: { ops: operator.entry }, token: operator.text };
const MINUTE = 60_000;

test("the documented sign-in: passwords of an account are guessed ever more slowly", async () => {
  const tollgate = await start(settings);
  /** An attempt with a wrong password, `at` ms after the first. */
  const attempt = async (at, address = "192.0.2.1") => {
    const body = batch.replace("192.0.2.1", address);
    const answer = await tollgate.post("batch", JSON.parse(body), { now: NOW + at });
    const [byAddress, byAccount] = answer.body.results;
    assert.equal(answer.status, answer.body.allowed ? 200 : 429);
    return { ...answer, byAddress, byAccount, isBanned: byAccount.banned === true };
  };
  for (let at = 0; at < 5; at++) assert.equal((await attempt(at)).status, 200);
  let at = 5;
  for (const minutes of [1, 2, 4, 8, 16, 30, 30]) {
    for (let refusal = 1; refusal <= 5; ) {
      const { status, isBanned, byAccount } = await attempt(at);
      if (status === 200) {
        at += 1;
        continue; // what has come back meanwhile
      }
      assert.equal(isBanned, refusal === 5, `refusal ${refusal} at ${at}`);
      refusal++;
      if (!isBanned) continue;
      const until = NOW + at + minutes * MINUTE;
      const asked = { policy: "login-account", key: "alice" };
      const { body } = await tollgate.post("inspect", asked, { now: NOW + at });
      assert.equal(body.banned_until, until);
      assert.ok(byAccount.retry_at >= until, "when the limit has a token, or the ban is over");
    }
    // For the owner, too, and from everywhere; and no attempt makes it longer.
    for (const address of ["192.0.2.1", "198.51.100.7"]) {
      const { isBanned, byAddress } = await attempt(at + minutes * MINUTE - 1, address);
      assert.deepEqual([isBanned, byAddress.allowed], [true, true]);
    }
    at += minutes * MINUTE;
  }
  // The right password at last: the account begins anew.
  const reset = await tollgate.post("reset", { policy: "login-account", key: "alice" }, { now: NOW + at });
  assert.equal(reset.status, 200);
  for (let i = 0; i < 5; i++) assert.equal((await attempt(at, "203.0.113.9")).status, 200);
  for (let refusal = 1; refusal <= 5; refusal++) {
    const { isBanned, byAccount } = await attempt(at, "203.0.113.9");
    assert.equal(isBanned, refusal === 5);
    assert.equal(byAccount.retry_at - NOW - at, 2 * MINUTE, "a token is back later than a ban of a minute ends");
  }
  await tollgate.stop();
});

test("a banned key is told so like one that an operator has banned, and operators see it and lift it", async () => {
  const tollgate = await start(settings);
  const ask = { policy: "short", key: "mallory" };
  const at = (ms) => ({ now: NOW + ms });
  for (const status of [200, 429, 429]) assert.equal((await tollgate.consume(ask, at(0))).status, status);
  const { status, headers, body } = await tollgate.consume(ask, at(1_500));
  const until = NOW + MINUTE;
  assert.deepEqual(
    [status, headers["retry-after"], headers.ratelimit, headers["ratelimit-policy"]],
    [429, "59", '"short";r=0;t=59', '"short";q=0;tollgate-capacity=0'],
  );
  assert.deepEqual(
    [body.banned, body.limit, body.remaining, body.retry_at, body.detail],
    [true, 0, 0, until, "this key is banned from policy short; retry in 58500 ms"],
  );
  const { body: inspected } = await tollgate.post("inspect", ask, at(1_500));
  assert.deepEqual([inspected.banned, inspected.banned_until], [true, until]);
  const { body: explained } = await tollgate.post("keys/explain", ask, at(1_500));
  assert.match(
    explained.explanation,
    /^Refused: this key is blocked from the policy short until 2023-11-14 22:14:20 UTC\.$/,
  );
  const { body: seen } = await tollgate.post("keys/inspect", { key: "mallory" }, at(1_500));
  assert.deepEqual([seen.policies[0].banned, seen.policies[0].banned_until], [true, until]);
  assert.equal((await tollgate.post("keys/reset", ask, at(1_500))).status, 200);
  assert.equal((await tollgate.consume(ask, at(1_500))).status, 200);
  await tollgate.stop();
});

test("neither kill -9 nor an eviction forgets a refusal or a ban, and each refusal costs a row until then", async () => {
  const tollgate = await start({
    ...settings,
    around: fileURLToPath(new URL("counting-rows.mjs", import.meta.url)),
    flags: ["unsafe_module"],
  });
  const direct = (path) => fetch(`http://127.0.0.1:${tollgate.port}${path}`);
  const rows = async () => (await (await direct("/rows")).json()).written;
  const lost = {
    kill: async () => {
      await tollgate.kill();
      await tollgate.restart();
    },
    evict: () => direct("/evict"),
  };
  for (const [how, lose] of Object.entries(lost)) {
    const ask = { policy: "slow", key: how };
    for (const [at, expected, more] of [
      [0, [200, undefined], undefined], // the first row of a key sets an alarm
      [1, [429, undefined], 1],
      [2, [429, true], 1],
      [3, [429, true], 0],
      [2 + MINUTE - 1, [429, true], 0],
      [2 + MINUTE, [429, undefined], 1],
      [2 + MINUTE, [429, true], 1],
      [2 + 3 * MINUTE - 1, [429, true], 0],
      [2 + 3 * MINUTE, [429, undefined], 1],
    ]) {
      const before = await rows();
      const { status, body } = await tollgate.consume(ask, { now: NOW + at });
      assert.deepEqual([status, body.banned], expected, `${how} ${at}`);
      if (more !== undefined) assert.equal((await rows()) - before, more, `${how} ${at}`);
      await lose();
    }
  }
  await tollgate.stop();
});

test("while it lasts, a ban is repeated from memory", async () => {
  const tollgate = await start(settings);
  const said = async (at) => {
    const { status, body } = await tollgate.consume({ policy: "cached", key: "k" }, { now: NOW + at });
    return [status, body.banned, body.source];
  };
  assert.deepEqual(await said(0), [200, undefined, undefined]);
  assert.deepEqual(await said(1), [429, true, undefined]);
  assert.deepEqual(await said(2), [429, true, "cache"]);
  assert.deepEqual(await said(1_001), [429, true, undefined]);
  const { text } = await tollgate.send({ path: "/v1/metrics", method: "GET" });
  assert.match(text, /tollgate_decisions_total\{policy="cached",outcome="banned"\} 3\n/);
  await tollgate.stop();
});
