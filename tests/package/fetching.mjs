// Shared by the tests of limitFetch: real requests to a real server, which wait by a clock that the test moves.
import { once } from "node:events";
import { createServer } from "node:http";
import { after } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Limiter, limitFetch } from "../../build/package/index.js";
import { FakeClock, START } from "./clock.mjs";

/** For each path: the next answers, as `[status, headers]`, then 200; and the requests it has received. */
const answers = new Map();
const asked = new Map();
const server = createServer(async (request, response) => {
  const chunks = await request.toArray();
  const path = request.url;
  const seen = { method: request.method, body: Buffer.concat(chunks).toString(), headers: request.headers };
  asked.set(path, [...(asked.get(path) ?? []), seen]);
  const [status, headers = {}] = answers.get(path)?.shift() ?? [200];
  response.sendDate = false;
  response.writeHead(status, headers);
  const isEmpty = request.method === "HEAD" || status === 204 || headers["content-length"] === "0";
  response.end(isEmpty ? undefined : `answer ${asked.get(path).length}`);
});
server.listen(0, "127.0.0.1");
await once(server, "listening");
after(() => {
  server.closeAllConnections();
  server.close();
});
export const origin = `http://127.0.0.1:${server.address().port}`;
let paths = 0;

/**
 * A limiter, a `fetch` limited by it, and a path where the server gives these answers. Moments count from the start.
 */
export function make(serves, options, limits = { rate: 100, periodMs: 100 }) {
  const path = `/${paths++}`;
  answers.set(path, serves);
  const clock = new FakeClock();
  const limiter = new Limiter(limits, { clock });
  const sentAt = [];
  let flying = 0;
  const fetch = (...args) => {
    sentAt.push(clock.now() - START);
    flying += 1;
    return globalThis.fetch(...args).finally(() => (flying -= 1));
  };
  const api = limitFetch(limiter, { jitterMs: 0, fetch, ...options });
  /** Advances the clock whenever no request is in flight, until the promise is settled. */
  const settle = async (promise) => {
    let isSettled = false;
    promise.then(
      () => (isSettled = true),
      () => (isSettled = true),
    );
    for (;;) {
      await setImmediate();
      if (isSettled) return promise;
      if (flying === 0 && clock.timers.length > 0) await clock.to(clock.timers[0]);
    }
  };
  const pausedMs = () => (limiter.peek(0).allowed ? 0 : limiter.peek(0).retryAt - clock.now());
  return { clock, limiter, api, url: origin + path, sentAt, settle, pausedMs, seen: () => asked.get(path) ?? [] };
}
