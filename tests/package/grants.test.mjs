// renewing: one request for all callers, in time, and again after a failure.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client } from "../../build/package/client.js";
import { renewing } from "../../build/package/grants.js";
import { FakeClock, START } from "./clock.mjs";

const encoded = (value) => Buffer.from(typeof value === "string" ? value : JSON.stringify(value)).toString("base64url");
const jwt = (claims) => `${encoded({ alg: "HS256", kid: "a" })}.${encoded(claims)}.c2lnbmF0dXJl`;
const ending = (inMs, more) => jwt({ exp: (START + inMs) / 1000, ...more });

/** A clock, a token function, and its calls of the backend: each answers when the test says so. */
function make() {
  const clock = new FakeClock(START);
  const asked = [];
  const fetchGrant = () => new Promise((resolve, reject) => asked.push({ resolve, reject }));
  return { clock, asked, token: renewing(fetchGrant, { clock }) };
}

test("all callers wait for one grant, and later ones get it at once", async () => {
  const { asked, token } = make();
  const calls = [token(), token(), token()];
  const grant = ending(60_000, { key: "Zoë ÿ?>" }); // has - and _ in base64url
  asked[0].resolve(grant);
  assert.deepEqual(await Promise.all(calls), [grant, grant, grant]);
  assert.deepEqual([await token(), asked.length], [grant, 1]);
});

test("a grant is renewed a tenth of its time before it ends, or 30 seconds", async () => {
  for (const [lifeMs, renewedAt] of [
    [60_000, 54_000],
    [300_000, 270_000],
    [86_400_000, 86_370_000],
  ]) {
    const { clock, asked, token } = make();
    const first = token();
    asked[0].resolve(ending(lifeMs));
    await first;
    await clock.to(START + renewedAt - 1);
    assert.equal(await token(), await first);
    await clock.to(START + renewedAt);
    const second = token();
    const renewed = ending(2 * lifeMs);
    asked[1].resolve(renewed);
    assert.deepEqual([await second, await token(), asked.length], [renewed, renewed, 2], `${lifeMs}`);
  }
});

test("after a failure the next call asks again, and meanwhile an unexpired grant is used", async () => {
  const { clock, asked, token } = make();
  const error = new Error("signed out");
  const failed = [token(), token()];
  asked[0].reject(error);
  for (const call of failed) await assert.rejects(call, error);
  const first = token();
  const grant = ending(60_000);
  asked[1].resolve(grant);
  await first;
  await clock.advance(59_999);
  const kept = token();
  asked[2].reject(error);
  assert.equal(await kept, grant);
  await clock.advance(1);
  const ended = token();
  asked[3].reject(error);
  await assert.rejects(ended, error);
  const thrown = renewing(() => {
    throw error;
  });
  await assert.rejects(thrown(), error);
});

test("a hung request is given up after ten seconds", async () => {
  const { clock, asked, token } = make();
  void token();
  await clock.advance(9_999);
  void token();
  assert.equal(asked.length, 1);
  await clock.advance(1);
  const second = token();
  assert.equal(asked.length, 2);
  const grant = ending(60_000);
  asked[1].resolve(grant);
  assert.equal(await second, grant);
});

test("while a renewal hangs, calls get the earlier grant after two seconds, until it ends", async () => {
  const { clock, asked, token } = make();
  const first = token();
  const earlier = ending(60_000);
  asked[0].resolve(earlier);
  await first;
  for (const [at, waitMs] of [
    [54_000, 2_000],
    [57_000, 2_000],
    [59_500, 500],
  ]) {
    await clock.to(START + at);
    let got;
    const call = token().then((grant) => {
      got = grant;
    });
    await clock.advance(waitMs - 1);
    assert.equal(got, undefined, `${at}`);
    await clock.advance(1);
    if (at + waitMs < 60_000) {
      await call;
      assert.equal(got, earlier, `${at}`);
    }
  }
  assert.equal(asked.length, 2);
  const later = ending(120_000);
  asked[1].resolve(later);
  assert.equal(await token(), later);
  assert.deepEqual(clock.timers, []);
});

test("an answer that comes late replaces no later grant", async () => {
  const { clock, asked, token } = make();
  void token();
  await clock.advance(10_000);
  const second = token();
  const later = ending(60_000);
  asked[1].resolve(later);
  assert.equal(await second, later);
  asked[0].resolve(ending(90_000));
  await clock.advance(1);
  assert.equal(await token(), later);
});

test("a grant that has expired by this clock is used once", async () => {
  const { asked, token } = make();
  const grant = ending(-3_600_000);
  for (let times = 0; times < 2; times++) {
    const call = token();
    asked[times].resolve(grant);
    assert.equal(await call, grant);
  }
});

test("anything but a grant is a precise error, which does not contain it", async () => {
  const secret = "c2VjcmV0";
  const parts = "it must be a JWT: three parts with dots between them";
  const json = "its second part must be JSON in base64url";
  const exp = "its `exp` must be a number, in seconds";
  for (const [grant, message] of [
    [undefined, parts],
    [null, parts],
    [7, parts],
    [{ grant: secret }, parts],
    ["", parts],
    [secret, parts],
    [`${secret}.${secret}`, parts],
    [`a.${secret}.${secret}.c`, parts],
    [`${secret}.${secret}.${secret}`, json],
    [`a.${secret}!.c`, json],
    [`a.${encoded(`{"exp":"${secret}`)}.c`, json],
    [jwt(null), exp],
    [jwt([secret]), exp],
    [jwt({ sub: secret }), exp],
    [jwt({ exp: secret }), exp],
    [`a.${encoded('{"exp":1e999}')}.${secret}`, exp],
  ]) {
    const error = await renewing(() => grant)().catch((error) => error);
    assert.deepEqual(
      [error.name, error.code, error.message],
      ["TollgateError", "grant_malformed", `malformed grant: ${message}`],
    );
    assert.ok(!inspect(error).includes(secret), inspect(error));
  }
});

test("a client uses one grant for all its calls", async (t) => {
  const logged = ["log", "warn", "error"].map((method) => t.mock.method(console, method, () => {}));
  const { clock, asked, token } = make();
  const sent = [];
  const fetcher = {
    fetch: async (_, { headers }) => sent.push(headers.authorization) && Response.json({ policy: "a" }),
  };
  const client = new Client({ url: "https://tollgate.example.com", token, fetcher });
  const calls = Array.from({ length: 5 }, () => client.peek({ policy: "a", key: "b" }));
  const grant = ending(60_000);
  asked[0].resolve(grant);
  await Promise.all(calls);
  await clock.advance(60_000);
  const late = client.peek({ policy: "a", key: "b" });
  asked[1].reject(new Error("signed out"));
  await assert.rejects(late, { code: "token_missing" });
  assert.deepEqual([sent, asked.length], [Array(5).fill(`Bearer ${grant}`), 2]);
  assert.ok(logged.every(({ mock }) => mock.callCount() === 0));
});
