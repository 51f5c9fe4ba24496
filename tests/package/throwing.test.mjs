// A client that throws anything but grants, and helpers on top of one.
import assert from "node:assert/strict";
import { test } from "node:test";
import { acquire, Client, NotGrantedError, orThrow, TollgateError, Twin } from "../../build/package/index.js";
import { FakeClock, START } from "./clock.mjs";

const GRANTED = { policy: "api", allowed: true, remaining: 4, now: START };
const REFUSED = { policy: "api", allowed: false, remaining: 0, now: START, detail: "later" };
const problem = (more) => ({ type: "urn:problem-type:tollgate:x", title: "Wrong", detail: "wrong", ...more });

/** A client whose service gives these answers, one after another. */
function clientOf(answers, options = { throws: true }) {
  const sent = [];
  const fetcher = {
    fetch: async (url, { body }) => {
      sent.push([url.split("/").at(-1), JSON.parse(body)]);
      const [status, members] = answers.shift();
      return Response.json(members, { status, headers: { "retry-after": "2" } });
    },
  };
  return { client: new Client({ url: "https://tollgate", token: "t", fetcher, ...options }), sent, left: answers };
}

const ask = { policy: "api", key: "alice" };

test("consume and peek return a grant, and throw any other answer with its moment", async () => {
  for (const verb of ["consume", "peek"])
    for (const [status, answer, expected] of [
      [429, { ...REFUSED, retry_at: START + 700, retry_after_ms: 700 }, ["refused", START + 700, 700]],
      [429, REFUSED, ["refused", Infinity, Infinity]], // rate 0, or banned
      [400, problem({ max_cost: 9 }), ["not_granted", Infinity, Infinity]],
      [503, problem({ cause: "timeout" }), ["not_granted", Infinity, Infinity]],
    ]) {
      const { client } = clientOf([
        [200, GRANTED],
        [status, answer],
      ]);
      assert.equal((await client[verb](ask)).remaining, 4);
      const error = await client[verb](ask).then(assert.fail, (error) => error);
      assert.ok(error instanceof NotGrantedError && error instanceof TollgateError);
      const { code, retryAt, retryAfterMs, answer: thrown, message } = error;
      assert.deepEqual([code, retryAt, retryAfterMs], expected, `${verb} ${status}`);
      assert.deepEqual({ ...thrown }, { ...answer, status });
      assert.equal(thrown.headers.get("retry-after"), "2");
      assert.equal(error.cause, thrown);
      assert.equal(message, `${status}: ${answer.detail}`);
    }
});

test("a request allowed without a decision is a grant", async () => {
  const { client } = clientOf([[200, { policy: "api", allowed: true, degraded: "timeout" }]]);
  assert.equal((await client.consume(ask)).degraded, "timeout");
});

test("other verbs return their problems, and without the option all answers are values", async () => {
  const { client } = clientOf([
    [404, problem()],
    [429, { ...REFUSED, results: [] }],
  ]);
  assert.equal((await client.refund(ask)).status, 404);
  assert.equal((await client.batch({ requests: [ask] })).status, 429);
  for (const options of [{}, { throws: false }, { throws: undefined }]) {
    const { client } = clientOf([[429, REFUSED]], options);
    assert.equal((await client.consume(ask)).status, 429);
  }
});

test("waits and twins are the same whether or not their client throws", async () => {
  for (const throws of [true, false]) {
    const clock = new FakeClock(START);
    const refused = { ...REFUSED, retry_at: START + 700, retry_after_ms: 700 };
    const { client, sent, left } = clientOf(
      [
        [429, refused],
        [429, refused],
        [200, GRANTED],
        [429, refused],
      ],
      { throws },
    );
    const waiting = clock.follow(acquire(client, { ...ask, clock }));
    for (let i = 0; i < 20; i++) await clock.advance(50);
    assert.deepEqual([waiting.value?.status, waiting.error], [200, undefined]);
    assert.deepEqual(
      sent.map(([verb, { mode }]) => [verb, mode]),
      [
        ["consume", undefined],
        ["consume", "reserve"],
        ["consume", undefined],
      ],
    );
    const twin = new Twin(client, { ...ask, clock });
    assert.equal((await twin.consume()).status, 429);
    assert.equal(left.length, 0);
  }
});

test("spend throws if nothing was reserved, and does not begin the work", async () => {
  const { client, sent } = clientOf([[429, REFUSED]]);
  await assert.rejects(
    client.spend(ask, () => assert.fail("the work began")),
    { code: "refused" },
  );
  assert.equal(sent.length, 1);
});

test("orThrow does the same for an answer by RPC, which is plain data", () => {
  assert.equal(orThrow({ ...GRANTED, status: 200, headers: {} }).remaining, 4);
  const answer = { ...REFUSED, status: 429, retry_at: START + 5, retry_after_ms: 5, headers: { "retry-after": "1" } };
  assert.throws(() => orThrow(answer), { code: "refused", retryAt: START + 5, retryAfterMs: 5, answer });
  assert.throws(() => orThrow({ ...problem(), status: 503, headers: {} }), { code: "not_granted" });
});
