// A limit per address in front of an app on Hono, served by Deno or Bun.
import { Hono } from "hono";
import { rateLimit } from "tollgate/hono";
import { KeyedLimiter } from "tollgate/keyed";

const app = new Hono();
app.use(rateLimit({ limiter: new KeyedLimiter({ rate: 1, periodMs: 86_400_000 }) }));
app.get("/", (c) => c.text("passed"));

const { Bun, Deno } = globalThis;
const server = Bun
  ? Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: app.fetch })
  : Deno.serve({ port: 0, hostname: "127.0.0.1", onListen() {} }, app.fetch);
const port = server.port ?? server.addr.port;
const answers = [];
for (let i = 0; i < 2; i++) {
  const response = await fetch(`http://127.0.0.1:${port}/`);
  answers.push([response.status, response.headers.get("ratelimit"), await response.text()]);
}
const [[passed, left, text], [refused]] = answers;
console.log(JSON.stringify({ passed, left, text, refused }));
if (Bun) server.stop(true);
else await server.shutdown();
