// limitFetch: the pauses that servers ask for.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { SharedLimiter } from "../../build/package/shared.js";
import { checked } from "./buckets.mjs";
import { FakeClock, START } from "./clock.mjs";
import { make } from "./fetching.mjs";

const readme = readFileSync(new URL("../../www/package/README.md", import.meta.url), "utf8");

const LIMIT = { rate: 9, periodMs: 1000 };
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
    [429, { "retry-after": "2.0" },                                             2000], // as Shopify does
    [429, { "retry-after": "1.1" },                                             1100],
    [429, { "retry-after": "0.0001" },                                          1], // rounded up
    [503, { "retry-after": "5s" },                                              5000],
    [429, { "retry-after": "299" },                                             299_000],
    [429, { "retry-after": `${(START + 9000) / 1000}` },                        9000], // a moment, by mistake
    [429, { "retry-after": "Tuesday, 14-Nov-23 22:13:29 GMT" },                 9000], // the form of RFC 850
    [429, { "retry-after": `${START + 9000}` },                                 9000],
    [429, { "retry-after": `${server + 9000}`, date: seconds(server) },         9000],
    [429, { "retry-after": `${START + 9000}`, date: seconds(START) },           9000],
    [429, { "retry-after": `${START + 9000}`, date: seconds(START - 1000) },    9001],
    [429, { "retry-after": new Date(server + 9000).toISOString(), date: seconds(server) }, 9000],
    [429, { "retry-after": `${START}`, date: seconds(START) },                  0], // now
    [429, { "retry-after": `${START - 1}`, date: seconds(START) },              1000], // in the past
    [429, { "retry-after": new Date(START + 9000).toISOString() },              9000],
    [429, { "retry-after-ms": "250", "retry-after": "1" },                      250],
    [503, { "retry-after-ms": "250.5" },                                        251],
    [429, { "retry-after-ms": "0" },                                            0],
    [429, { "retry-after-ms": "soon", "retry-after": "3" },                     3000],
    [429, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [503, { "retry-after": seconds(server + 7000), date: seconds(server) },     7000],
    [429, { "retry-after": seconds(server + 7000), date: seconds(server), age: "4" }, 3000], // from a cache
    [429, { "retry-after": seconds(server + 7000), date: seconds(server), age: "old" }, 7000],
    [429, { "retry-after": seconds(START + 5000), age: "4" },                   5000],
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
    [429, { "x-ratelimit-reset": `${START}` },                                  1000], // now, in Unix milliseconds
    [429, { "x-ratelimit-reset": "9", "x-ratelimit-reset-after": "0.25" },      250], // the length is more exact
    [429, { "x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "9s",
            "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms" }, 120],
    [429, { "x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "6m0s" }, 1000],
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset-ms": "45000" },    45_000],
    [429, { "x-ratelimit-reset-ms": "45000" },                                  45_000],
    [429, { "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests-ms": "500" }, 1000],
    [429, { "x-ratelimit-remaining": "0", "x-ratelimit-reset-after-ms": "500" }, 500],
    [429, { "x-ratelimit-reset-requests": "30s", "x-ratelimit-reset-tokens": "20s" }, 20_000], // of either
    [429, { "anthropic-ratelimit-unified-reset": `${START / 1000 + 30}`,
            "anthropic-ratelimit-unified-7d-reset": `${START / 1000 + 400_000}` }, 30_000],
    [429, { "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms",
            "x-ratelimit-reset-requests": "24h0m0s" },                          120],
    [429, { "x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "120ms",
            "x-ratelimit-reset-requests": "3s" },                               3000],
  ];
  for (const text of ["soon", "", "-5", "5, 5", "1e3", "Infinity", "NaN", "0x10", "5x", "May 2038", "٣"]) {
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
    ['"api";r=0;t=1.5',                           1500],
    ['"api";r=0.5;t=4',                           0],
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

test("a Date has whole seconds; our own clock says which part, if it agrees", async () => {
  // biome-ignore format: a table
  const table = [
    // our clock  until 9 s  until 0.5 s
    [0,           9000,      500],
    [499,         8501,      1],
    [500,         8500,      0],
    [999,         8001,      0],
    [1000,        8001,      0], // the response was on its way
    [2999,        8001,      0],
    [3000,        9000,      500], // another clock
    [-1,          9000,      500],
  ];
  for (const [now, ...pauses] of table) {
    for (const [i, moment] of [START + 9000, START + 500].entries()) {
      for (const reset of [moment / 1000, moment, new Date(moment).toISOString()]) {
        const headers = { "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${reset}`, date: seconds(START) };
        const { api, url, settle, pausedMs, clock } = make([[200, headers]]);
        clock.set(START + now);
        await settle(api(url));
        assert.equal(pausedMs(), pauses[i], `${reset} at ${now}`);
      }
    }
  }
});

test("Retry-After pauses the limiter on any error, and on no other status", async () => {
  for (const [header, text] of [
    ["retry-after", "5"],
    ["retry-after-ms", "5000"],
  ]) {
    for (const status of [400, 403, 404, 408, 413, 429, 500, 502, 503, 504, 529]) {
      const { api, url, settle, pausedMs } = make([[status, { [header]: text }]], { retries: 0 });
      assert.equal((await settle(api(url))).status, status);
      assert.equal(pausedMs(), 5000, `${header} ${status}`);
    }
    for (const status of [200, 201, 202, 204, 301, 304]) {
      const { api, url, settle, pausedMs } = make([[status, { [header]: text }]]);
      assert.equal((await settle(api(url))).status, status);
      assert.equal(pausedMs(), 0, `${header} ${status}`);
    }
  }
});

test("a reset is read by its size and its form", async () => {
  const rfc3339 = (ms) => new Date(ms).toISOString();
  // biome-ignore format: a table
  const table = [
    // reset                                pause
    ["4",                                   4000],
    ["1.5",                                 1500],
    ["1.0001",                              1001],
    ["2.007",                               2007], // 1000 * 2.007 is a little more
    ["0",                                   0],
    ["86400",                               86_400_000],
    ["86401",                               86_401], // more than a day: milliseconds
    ["999999999",                           999_999_999],
    ["1000000000",                          0], // a moment in 2001
    [`${START / 1000 + 4}`,                 4000],
    [`${START / 1000 + 4}.123`,             4123], // as Discord does
    [`${START / 1000 - 4}`,                 0],
    ["99999999999",                         99_999_999_999_000 - START],
    ["100000000000",                        0], // a moment in 1973
    [`${START + 4000}`,                     4000],
    [rfc3339(START + 4000),                 4000],
    ["2023-11-14T22:13:24Z",                4000],
    ["2023-11-14T23:13:24+01:00",           4000],
    ["2023-11-14t22:13:24.5z",              4500],
    ["2023-11-14T22:13:24",                 0], // of which zone?
    ["2023-11-14",                          0],
    [seconds(START + 4000),                 4000],
    [`${new Date(START + 4000)}`,           4000], // as in the examples of rate-limiter-flexible
    ["6m0s",                                360_000],
    ["120ms",                               120],
    ["7.66s",                               7660],
    ["2m59.56s",                            179_560],
    ["1h2m3s4ms",                           3_723_004],
    ["1d",                                  86_400_000],
    ["4 s",                                 0],
    ["4sec",                                0],
    ["-4",                                  0],
    ["",                                    0],
  ];
  for (const [reset, pauseMs] of table) {
    const { api, url, settle, pausedMs } = make([[200, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": reset }]], {
      maxPauseMs: Number.MAX_SAFE_INTEGER,
    });
    assert.equal((await settle(api(url))).status, 200);
    assert.equal(pausedMs(), pauseMs, reset);
  }
});

test("a reset that is in seconds by its definition is never in milliseconds", async () => {
  const fields = [
    (reset) => ({ ratelimit: `"monthly";r=0;t=${reset}` }),
    (reset) => ({ ratelimit: `limit=9, remaining=0, reset=${reset}` }),
    (reset) => ({ "ratelimit-remaining": "0", "ratelimit-reset": reset }),
    (reset) => ({ "x-ratelimit-remaining": "0", "x-ratelimit-reset-after": reset }),
  ];
  // biome-ignore format: a table
  const table = [
    // reset                    pause
    ["86401",                   86_401_000],
    ["172800",                  172_800_000],
    ["2592000",                 2_592_000_000],
    ["999999999",               999_999_999_000],
    [`${START / 1000 + 4}`,     4000], // a moment, by mistake
    [`${START + 4000}`,         4000],
  ];
  for (const field of fields) {
    for (const [reset, pauseMs] of table) {
      const { api, url, settle, pausedMs } = make([[200, field(reset)]], { maxPauseMs: Number.MAX_SAFE_INTEGER });
      assert.equal((await settle(api(url))).status, 200);
      assert.equal(pausedMs(), pauseMs, JSON.stringify(field(reset)));
    }
    const { api, url, settle, pausedMs } = make([[200, field("172800")]]);
    await settle(api(url));
    assert.equal(pausedMs(), 300_000, "the cap");
  }
});

test("every row of the README's table is as it says", async () => {
  const [, text] = readme.match(/^\| response \| pause \|\n\|---\|---\|\n((?:\|.*\n)+)/m);
  const rows = text.trim().split("\n");
  assert.ok(rows.length >= 10);
  for (const row of rows) {
    const [, response, pause] = row.match(/^\| (.*?) \| (.*?) \|$/);
    const headers = Object.fromEntries(
      Array.from(response.matchAll(/`([\w-]+): (.*?)`/g), ([, name, value]) => [name, value]),
    );
    const [, number, unit] = pause.match(/^(?:([\d.]+) (ms|s|minutes)|none)/);
    const pauseMs = number ? Number(number) * { ms: 1, s: 1000, minutes: 60_000 }[unit] : 0;
    const { api, url, settle, pausedMs, clock } = make([[Number(response.slice(0, 3)), headers]], { retries: 0 });
    clock.set(Date.UTC(2026, 10, 20, 12)); // noon on 20 November 2026, which the table names
    await settle(api(url));
    assert.equal(pausedMs(), pauseMs, row);
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
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset-ms": "4000" },                4000],
    [{ "x-ratelimit-remaining": "0" },                                                0],
    [{ "x-ratelimit-remaining": "none", "x-ratelimit-reset": "4" },                   0],
    [{ "x-ratelimit-remaining": "", "x-ratelimit-reset": "4" },                       0],
    [{ "x-ratelimit-remaining": "0.0", "x-ratelimit-reset": "4" },                    4000], // as Reddit does
    [{ "x-ratelimit-remaining": "0.5", "x-ratelimit-reset": "4" },                    0],
    [{ "x-rate-limit-remaining": "0", "x-rate-limit-reset": `${START / 1000 + 4}` },  4000], // as X does
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "0.3" },              300], // as Discord does
    [{ "x-ratelimit-remaining": "1", "x-ratelimit-reset-after": "0.3" },              0],
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${START / 1000 + 1}`, "x-ratelimit-reset-after": "0.3" }, 300],
    [{ "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s" },   1000], // as OpenAI and Groq do
    [{ "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms" },    120],
    [{ "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "6m0s",
       "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7.66s" },    7660],
    [{ "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2s",
       "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1s" },       2000],
    ...["requests", "tokens", "input-tokens", "output-tokens"].map((kind) => [
      { [`anthropic-ratelimit-${kind}-remaining`]: "0",
        [`anthropic-ratelimit-${kind}-reset`]: "2023-11-14T22:13:24Z" },              4000]),
    [{ "anthropic-ratelimit-requests-remaining": "9",
       "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:24Z" },                0],
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
    [5000,         429,    { "retry-after": `${START + 6000}` }, [0],       429,     5000],
    [undefined,    403,    { "retry-after": "301" },           [0],         403,     300_000],
    [undefined,    429,    { "x-ratelimit-reset": "86400" },   [0],         429,     300_000],
  ];
  for (const [maxPauseMs, status, headers, expected, returned, pauseMs] of table) {
    const row = `${maxPauseMs} ${status} ${JSON.stringify(headers)}`;
    const { api, url, settle, sentAt, pausedMs } = make([[status, headers]], { maxPauseMs });
    const response = await settle(api(url));
    assert.deepEqual([response.status, sentAt, pausedMs()], [returned, expected, pauseMs], row);
    assert.equal(await response.text(), `answer ${expected.length}`, "its body is readable");
  }
});

test("a limiter that is closed while a request is on its way is not paused", async () => {
  for (const make of [
    (options) => new Limiter(LIMIT, options),
    (options) => new SharedLimiter("closed", LIMIT, options),
  ]) {
    const limiter = make({ clock: new FakeClock() });
    const fetch = async () => {
      limiter.close();
      return new Response("", { status: 503, headers: { "retry-after": "3" } });
    };
    assert.equal((await limitFetch(limiter, { fetch })("https://example.com/")).status, 503);
    await setImmediate();
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

test("a granted response has no jitter", async (t) => {
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

test("the pause after any error is longer by the random part", async (t) => {
  t.mock.method(Math, "random", () => 0.5);
  for (const [status, pauseMs] of [
    [200, 3000],
    [403, 3500],
    [529, 3500],
  ]) {
    const headers = { "retry-after": "3", ratelimit: '"api";r=0;t=3' };
    const { api, url, settle, pausedMs } = make([[status, headers]], { jitterMs: 1000 });
    await settle(api(url));
    assert.equal(pausedMs(), pauseMs, `${status}`);
  }
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
