// limitFetch: the pauses that servers ask for.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { checked } from "./buckets.mjs";
import { START } from "./clock.mjs";
import { make } from "./fetching.mjs";

const seconds = (ms) => new Date(ms).toUTCString();

test("a refused request is retried when the server said", async () => {
  const server = START - 86_400_000; // its clock is a day behind
  // biome-ignore format: a table
  const table = [
    // status  headers                                                          retried after
    [429, { "retry-after": "3" },                                               3000],
    [503, { "retry-after": "3" },                                               3000],
    [429, { "retry-after": "0" },                                               0],
    [429, { "retry-after": "007" },                                             7000],
    [429, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [503, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [429, { "retry-after": seconds(server), date: seconds(server) },            0],
    [429, { "retry-after": seconds(server - 1000), date: seconds(server) },     1000], // in the past, so ignored
    [429, { "retry-after": seconds(START + 5000) },                             5000], // no Date: by our clock
    [429, { "retry-after": seconds(START + 5000), date: "yesterday" },          5000],
    [429, {},                                                                   1000],
    [503, {},                                                                   1000],
    [429, { ratelimit: '"api";r=0;t=4' },                                       4000],
    [429, { ratelimit: '"api";r=0;t=4', "retry-after": "3" },                   3000],
    [429, { ratelimit: '"api";r=0;t=4', "retry-after": "soon" },                4000],
    [503, { ratelimit: '"api";r=0;t=4' },                                       4000],
    [429, { ratelimit: '"api";r=5;t=4' },                                       1000],
    [429, { ratelimit: '"api";r=0' },                                           1000],
    [429, { ratelimit: "r=0;t=4, nonsense" },                                   1000],
    [429, { ratelimit: "limit=10, remaining=0, reset=5" },                      5000], // earlier drafts
    [429, { "ratelimit-remaining": "0", "ratelimit-reset": "5" },               5000],
    [429, { "ratelimit-limit": "10", "ratelimit-reset": "5" },                  5000],
    [503, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "5" },           5000],
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${START / 1000 + 9}` }, 9000], // as GitHub does
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${server / 1000 + 9}`, date: seconds(server) }, 9000],
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1.5" },         1500],
    [429, { "x-ratelimit-remaining": "3", "x-ratelimit-reset": "5" },           1000], // not the reason for the refusal
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${START / 1000 - 9}` }, 1000], // in the past
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon" },        1000],
    [429, { "x-ratelimit-reset": "9", "retry-after": "3" },                     3000],
  ];
  for (const text of ["soon", "", "-5", "1.5", "5, 5", "1e3", "Infinity", "NaN", "0x10", "5s", "٣"]) {
    table.push([429, { "retry-after": Buffer.from(text).toString("latin1") }, 1000]);
  }
  for (const [status, headers, after] of table) {
    const row = `${status} ${JSON.stringify(headers)}`;
    const { api, url, settle, sentAt } = make([[status, headers]]);
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt], [200, [0, after]], row);
  }
});

test("a granted response that reports nothing left pauses the limiter", async () => {
  // biome-ignore format: a table
  const table = [
    // RateLimit                                  pause
    ['"api";r=0;t=4',                             4000],
    ['"api"; r=0; t=4',                           4000],
    ['"api";t=4;r=0',                             4000],
    ['"api";pk=:a2V5:;r=0;t=4;w=9',               4000],
    ['"api";r=0;t=0',                             0],
    ['"api";r=0',                                 0],
    ['"api";r=1;t=4',                             0],
    ['"api";r=10;t=4',                            0],
    ['"api";r=01;t=4',                            0],
    ['"api";t=4',                                 0],
    ['"a";r=5;t=9, "b";r=0;t=2',                  2000],
    ['"a";r=0;t=2,"b";r=0;t=9,"c";r=0;t=5',       9000],
    ['"a, b";r=0;t=2',                            2000],
    ['"a;r=0;t=99, b";r=3;t=2',                   0],
    ['"a\\", \\"b;r=0;t=99";r=3;t=2',             0],
    ['"a\\\\";r=0;t=2, "b";r=3;t=9',              2000],
    ['"api";xr=0;t=4',                            0],
    ['"api";r=0;xt=4',                            0],
    ['"api";r=0;t=soon',                          0],
    ['"api";r=none;t=4',                          0],
    ["",                                          0],
    [",;,;=\"",                                   0],
    ["limit=100, remaining=0, reset=50",          50_000], // the syntax of earlier drafts
    ["limit=100, remaining=9, reset=50",          0],
  ];
  for (const [ratelimit, pauseMs] of table) {
    const { api, url, settle, pausedMs } = make([[200, { ratelimit }]]);
    assert.equal((await settle(api(url))).status, 200);
    assert.equal(pausedMs(), pauseMs, ratelimit);
  }
});

test("a granted response with older headers pauses the limiter if they report nothing left", async () => {
  // biome-ignore format: a table
  const table = [
    // headers                                                                        pause
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset": "4" },                      4000],
    [{ "ratelimit-remaining": "0", "ratelimit-reset": "4" },                          4000],
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${START / 1000 + 4}` },    4000],
    [{ "x-ratelimit-remaining": "1", "x-ratelimit-reset": "4" },                      0],
    [{ "x-ratelimit-reset": "4" },                                                    0],
    [{ "x-ratelimit-remaining": "0" },                                                0],
    [{ "x-ratelimit-remaining": "none", "x-ratelimit-reset": "4" },                   0],
  ];
  for (const [headers, pauseMs] of table) {
    const { api, url, settle, pausedMs } = make([[200, headers]]);
    assert.equal((await settle(api(url))).status, 200);
    assert.equal(pausedMs(), pauseMs, JSON.stringify(headers));
  }
});

test("if a server asks for more than maxPauseMs, its response is returned, and the pause is maxPauseMs", async () => {
  // biome-ignore format: a table
  const table = [
    // maxPauseMs  status  headers                             sent at      status   pause then
    [undefined,    429,    { "retry-after": "31536000" },      [0],         429,     300_000],
    [undefined,    503,    { "retry-after": "301" },           [0],         503,     300_000],
    [undefined,    429,    { "retry-after": "300" },           [0, 300_000], 200,    0],
    [5000,         429,    { "retry-after": "6" },             [0],         429,     5000],
    [5000,         429,    { "retry-after": "5" },             [0, 5000],   200,     0],
    [5000,         200,    { ratelimit: '"a";r=0;t=9' },       [0],         200,     5000],
    [0,            429,    {},                                 [0],         429,     0],
    [5000,         429,    { "x-ratelimit-reset": `${START}` }, [0],        429,     5000], // milliseconds, by mistake
  ];
  for (const [maxPauseMs, status, headers, expected, returned, pauseMs] of table) {
    const row = `${maxPauseMs} ${status} ${JSON.stringify(headers)}`;
    const { api, url, settle, sentAt, pausedMs } = make([[status, headers]], { maxPauseMs });
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt, pausedMs()], [returned, expected, pauseMs], row);
    assert.equal(await response.text(), `answer ${expected.length}`, "its body is readable");
  }
});

test("resume and reset end a pause", async () => {
  for (const end of ["resume", "reset"]) {
    const { api, url, limiter, settle, sentAt } = make([[429, { "retry-after": "200" }]]);
    const sent = api(url);
    while (limiter.waiting === 0) await setImmediate();
    limiter[end]();
    assert.equal((await settle(sent)).status, 200);
    assert.deepEqual(sentAt, [0, 0], end);
  }
});

test("only a refusal has jitter", async (t) => {
  t.mock.method(Math, "random", () => 0.5);
  const spent = { ratelimit: '"api";r=0;t=1' };
  const { api, url, settle, sentAt } = make(Array(6).fill([200, spent]), { jitterMs: 1000 });
  for (let i = 0; i < 6; i++) await settle(api(url));
  assert.deepEqual(sentAt, [0, 1000, 2000, 3000, 4000, 5000]);
});

test("repeated header fields all count", async () => {
  const { api, url, settle, pausedMs } = make([[200, { ratelimit: ['"a";r=0;t=2', '"b";r=0;t=5'] }]]);
  await settle(api(url));
  assert.equal(pausedMs(), 5000);
});

test("a pause applies to every user of the limiter, with jitter added", async (t) => {
  // biome-ignore format: a table
  const table = [
    // random  jitterMs   longer by
    [0,        1000,      0],
    [0.5,      1000,      500],
    [0.9999,   1000,      1000],
    [0.5,      undefined, 500],
    [0.5,      0,         0],
    [0.5,      7,         4],
  ];
  for (const [random, jitterMs, longerMs] of table) {
    t.mock.method(Math, "random", () => random);
    const { api, url, limiter, settle, sentAt } = make([[429, { "retry-after": "3" }]], { jitterMs });
    const first = api(url);
    while (sentAt.length === 0 || limiter.peek().allowed) await setImmediate();
    assert.deepEqual(
      checked(limiter).decide(),
      { allowed: false, retryAt: START + 3000 + longerMs },
      `${random} ${jitterMs}`,
    );
    const { allowed, readyAt } = await settle(limiter.acquire());
    assert.deepEqual([allowed, readyAt], [true, START + 3000 + longerMs]);
    assert.equal((await settle(first)).status, 200);
    assert.deepEqual(sentAt, [0, 3000 + longerMs]);
    t.mock.restoreAll();
  }
  const waits = new Set();
  for (let i = 0; i < 20; i++) {
    const { api, url, settle, sentAt } = make([[429, { "retry-after": "3" }]], { jitterMs: undefined });
    await settle(api(url));
    assert.ok(sentAt[1] >= 3000 && sentAt[1] <= 4000, `${sentAt}`);
    waits.add(sentAt[1]);
  }
  assert.ok(waits.size > 5, "jitter spreads the retries");
});

test("absurd headers do not break the limiter", async () => {
  for (const headers of [
    { "retry-after": "9".repeat(20) },
    { "retry-after": "9".repeat(400) },
    { ratelimit: `"api";r=0;t=${"9".repeat(20)}` },
  ]) {
    const { api, url, settle, limiter } = make([[429, headers]], { maxWaitMs: 1000, maxPauseMs: 60_000 });
    assert.equal((await settle(api(url))).status, 429);
    await assert.rejects(limiter.acquire({ maxWaitMs: 1000 }), { code: "wait_too_long" });
    assert.equal(limiter.peek().allowed, false);
    assert.equal(limiter.waiting, 0);
  }
});
