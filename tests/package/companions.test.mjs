// limitFetch under ky and TanStack Query, as the README says.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { QueryClient } from "@tanstack/query-core";
import ky from "ky";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { FakeClock } from "./clock.mjs";

/** Paths in the order of arrival; `/busy` is refused once. */
const arrived = [];
const server = createServer(({ url }, response) => {
  arrived.push(url);
  const isRefused = url === "/busy" && arrived.indexOf(url) === arrived.length - 1;
  if (isRefused) response.writeHead(429, { "retry-after": "2" });
  response.end(JSON.stringify({ url }));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
after(() => {
  server.closeAllConnections();
  server.close();
});
const base = `http://127.0.0.1:${server.address().port}`;

/** A limited fetch, by its own clock. */
function make() {
  arrived.length = 0;
  const clock = new FakeClock();
  const limiter = new Limiter({ rate: 2, periodMs: 1000 }, { clock });
  return { clock, limiter, fetch: limitFetch(limiter, { jitterMs: 0 }) };
}

/** Resolves when this many calls wait. */
async function waiting(limiter, calls) {
  while (limiter.waiting !== calls) await setImmediate();
}

test("ky waits in the queue, and its requests are retried when the server allows", async () => {
  const { clock, limiter, fetch } = make();
  const client = ky.create({ fetch, retry: 0, timeout: false });
  const get = (path) => client.get(`${base}${path}`).json();
  const first = await Promise.all([get("/a"), get("/b")]);
  assert.deepEqual(first, [{ url: "/a" }, { url: "/b" }]);
  const busy = get("/busy");
  await waiting(limiter, 1);
  await clock.advance(499);
  assert.deepEqual([limiter.waiting, arrived.length], [1, 2]);
  await clock.advance(1);
  while (arrived.length < 3) await setImmediate();
  await waiting(limiter, 1); // until two seconds after the refusal
  await clock.advance(1999);
  assert.deepEqual([limiter.waiting, arrived.length], [1, 3]);
  await clock.advance(1);
  assert.deepEqual([await busy, arrived], [{ url: "/busy" }, ["/a", "/b", "/busy", "/busy"]]);
  await get("/c"); // the last token
  const abort = new AbortController();
  const aborted = client.get(`${base}/d`, { signal: abort.signal });
  const other = get("/e");
  await waiting(limiter, 2);
  abort.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  await clock.advance(500);
  assert.deepEqual([await other, arrived.slice(4)], [{ url: "/e" }, ["/c", "/e"]]);
});

test("a query of TanStack Query waits in the queue, and leaves it when it is cancelled", async () => {
  const { clock, limiter, fetch } = make();
  const queries = new QueryClient();
  const query = (q) => ({
    queryKey: ["search", q],
    queryFn: async ({ signal }) => (await fetch(`${base}/${q}`, { signal })).json(),
    retry: false,
  });
  assert.deepEqual(await Promise.all([queries.fetchQuery(query("a")), queries.fetchQuery(query("b"))]), [
    { url: "/a" },
    { url: "/b" },
  ]);
  const cancelled = queries.fetchQuery(query("c"));
  const kept = queries.fetchQuery(query("d"));
  await waiting(limiter, 2);
  await Promise.all([
    assert.rejects(cancelled, (error) => error.constructor.name === "CancelledError"),
    queries.cancelQueries({ queryKey: ["search", "c"] }),
  ]);
  assert.equal(limiter.waiting, 1);
  await clock.advance(500);
  assert.deepEqual([await kept, arrived], [{ url: "/d" }, ["/a", "/b", "/d"]]);
  assert.deepEqual(queries.getQueryData(["search", "d"]), { url: "/d" });
  queries.clear();
});
