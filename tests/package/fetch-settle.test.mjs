// limitFetch: the cost that is known by the response.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { SharedLimiter } from "../../build/package/shared.js";
import { FakeClock } from "./clock.mjs";
import { make, origin } from "./fetching.mjs";

const NAMED = [
  { name: "requests", rate: 10, periodMs: 1000 },
  { name: "tokens", rate: 100, periodMs: 1000, maxDebt: 50 },
];
const left = (limiter) => limiter.save().map(({ tokens }) => tokens);

/** Lets all that was settled arrive. */
async function settled() {
  for (let i = 0; i < 5; i++) await setImmediate();
}

test("what was taken is corrected by the response", async () => {
  // biome-ignore format: a table
  const table = [
    // cost                          real                            left
    [{ requests: 1, tokens: 40 },    { requests: 1, tokens: 15 },    [9, 85]],
    [{ requests: 1, tokens: 40 },    { requests: 1, tokens: 90 },    [9, 10]],
    [{ requests: 1, tokens: 40 },    { requests: 2, tokens: 130 },   [8, -30]],
    [{ requests: 3, tokens: 40 },    { requests: 1, tokens: 50 },    [9, 50]],
    [{ requests: 1, tokens: 40 },    { requests: 1, tokens: 40 },    [9, 60]],
    [{ requests: 1, tokens: 40 },    0,                              [10, 100]],
    [2,                              { requests: 1, tokens: 50 },    [9, 50]],
    [5,                              7,                              [3, 93]],
    [5,                              2,                              [8, 98]],
  ];
  for (const [cost, real, expected] of table) {
    for (const settle of [() => real, async () => real]) {
      const { api, url, limiter } = make([], { cost, settle }, NAMED);
      await api(url);
      await settled();
      assert.deepEqual(left(limiter), expected, JSON.stringify([cost, real]));
    }
  }
});

test("settle reads a copy of the body, also while it streams to the caller", async () => {
  const clock = new FakeClock();
  const limiter = new Limiter(NAMED, { clock, maxConcurrent: 1 });
  const streams = [];
  const body = new ReadableStream({ start: (controller) => void streams.push(controller) });
  const seen = [];
  const settle = async (response) => {
    for await (const chunk of response.body) seen.push(`${Buffer.from(chunk)}`);
    return { requests: 1, tokens: Number(seen.at(-1)) };
  };
  const api = limitFetch(limiter, { fetch: async () => new Response(body), cost: { requests: 1, tokens: 50 }, settle });
  const response = await api(origin);
  const reader = response.body.getReader();
  const read = [];
  for (const text of ["a", "20"]) {
    streams[0].enqueue(Buffer.from(text));
    read.push(`${Buffer.from((await reader.read()).value)}`);
    await settled();
    assert.deepEqual([seen, left(limiter)], [read, [9, 50]]);
  }
  streams[0].close();
  assert.equal((await reader.read()).done, true);
  await settled();
  assert.deepEqual(
    [read, left(limiter)],
    [
      ["a", "20"],
      [9, 80],
    ],
  );
  await limiter.onIdle();
});

test("every attempt is settled by its own response", async () => {
  const settle = ({ status }) => (status === 200 ? 7 : 0);
  const { api, url, limiter, settle: until } = make([[429, { "retry-after": "0" }]], { cost: 5, settle });
  await until(api(url));
  await settled();
  assert.equal(limiter.remaining(), 93);
});

test("a copy that settle does not read is cancelled", async () => {
  const { limiter } = make([]);
  const cancelled = [];
  const body = new ReadableStream({ cancel: (reason) => void cancelled.push(reason) });
  const response = await limitFetch(limiter, { fetch: async () => new Response(body), settle: () => 1 })(origin);
  await settled();
  assert.deepEqual(cancelled, [], "the caller may still read");
  await response.body.cancel();
  assert.equal(cancelled.length, 1);
});

test("when the caller cancels, the transfer ends, its slot is free, and the copy ends with what was read", async (t) => {
  const warned = t.mock.method(console, "warn", () => {});
  const read = async (body, chunks) => {
    const reader = body.getReader();
    for (let i = 0; i < chunks; i++) await reader.read();
    return reader;
  };
  const cancels = {
    cancel: (body) => body.cancel("enough"),
    "a reader's cancel": async (body) => (await read(body, 3)).cancel("enough"),
    break: async (body) => {
      let chunks = 0;
      for await (const _ of body) if (++chunks === 3) break;
    },
  };
  for (const [name, cancel] of Object.entries(cancels)) {
    for (const type of ["bytes", undefined]) {
      for (const options of [{ maxConcurrent: 1 }, {}]) {
        for (const isLate of [false, true]) {
          const limiter = new Limiter(NAMED, { clock: new FakeClock(), ...options });
          const cancelled = [];
          const endless = new ReadableStream({
            type,
            pull: (controller) => controller.enqueue(new Uint8Array(1)),
            cancel: (reason) => void cancelled.push(reason),
          });
          const { promise: begun, resolve: begin } = Promise.withResolvers();
          const settle = async (response) => {
            if (isLate) await begun;
            return { requests: 1, tokens: (await response.text()).length };
          };
          const fetch = async () => new Response(endless);
          const { body } = await limitFetch(limiter, { fetch, settle, cost: { requests: 1, tokens: 50 } })(origin);
          await cancel(body);
          begin();
          await settled();
          const row = JSON.stringify([name, type, options, isLate]);
          assert.equal(cancelled.length, 1, row);
          const [requests, tokens] = left(limiter);
          assert.equal(requests, 9, row);
          // A stream reads a chunk ahead.
          if (name === "cancel") assert.ok(tokens >= 98, `${row}: ${tokens}`);
          else assert.ok(tokens <= 97 && tokens >= 94, `${row}: ${tokens}`);
          await limiter.acquire();
        }
      }
    }
  }
  assert.equal(warned.mock.callCount(), 0);
});

test("settle may cancel its copy, or read it into its own buffer, and the caller reads on", async () => {
  const ways = [
    async ({ body }) => {
      const reader = body.getReader();
      await reader.read();
      await reader.cancel();
    },
    async ({ body }) => {
      for await (const _ of body) break;
    },
    async ({ body }) => {
      const reader = body.getReader({ mode: "byob" });
      while (!(await reader.read(new Uint8Array(9))).done);
    },
  ];
  for (const way of ways) {
    const { limiter } = make([]);
    const chunks = [Buffer.from("a"), Buffer.from("b")];
    const body = new ReadableStream({
      type: "bytes",
      pull(controller) {
        const next = chunks.shift();
        if (next) return controller.enqueue(new Uint8Array(next));
        controller.close();
        controller.byobRequest?.respond(0);
      },
    });
    const settle = async (response) => {
      await way(response);
      return 7;
    };
    const response = await limitFetch(limiter, { fetch: async () => new Response(body), settle })(origin);
    assert.equal(await response.text(), "ab");
    await settled();
    assert.equal(limiter.remaining(), 93);
  }
});

test("if settle fails, the cost stays, and the console says why unless the request was aborted", async (t) => {
  const warned = t.mock.method(console, "warn", () => {});
  const error = new Error("no usage");
  const fail = () => {
    throw error;
  };
  const real = (cost) => () => cost;
  for (const [settle, expected] of [
    [fail, error],
    [async () => fail(), error],
    [real(-1), { code: "cost_too_small" }],
    [real(NaN), { code: "cost_not_whole" }],
    [real(undefined), { code: "cost_not_whole", message: /, not undefined$/ }],
    [real({ requests: 1 }), { code: "cost_not_whole" }],
  ]) {
    const { api, url, limiter } = make([], { cost: { requests: 1, tokens: 5 }, settle }, NAMED);
    assert.equal(await (await api(url)).text(), "answer 1");
    await settled();
    assert.deepEqual(left(limiter), [9, 95]);
    const [, reason] = warned.mock.calls.at(-1).arguments;
    assert.throws(() => {
      throw reason;
    }, expected);
  }
  const before = warned.mock.callCount();
  const abort = new AbortController();
  const aborted = async () => {
    abort.abort();
    fail();
  };
  const { api, url } = make([], { settle: aborted });
  await api(url, { signal: abort.signal });
  await settled();
  assert.equal(warned.mock.callCount(), before);
});

test("a budget of all tabs is settled, too; a limiter that cannot charge is rejected", async () => {
  const clock = new FakeClock();
  const limiter = new SharedLimiter("settle", { rate: 10, periodMs: 1000 }, { clock });
  await limitFetch(limiter, { fetch: async () => new Response(), cost: 5, settle: () => 2 })(origin);
  await settled();
  assert.equal(limiter.remaining(), 8);
  const { acquire, pause } = limiter;
  assert.throws(() => limitFetch({ clock, acquire, pause }, { settle: () => 1 }), { code: "settle_unknown" });
});
