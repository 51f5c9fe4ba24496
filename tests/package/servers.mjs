// Servers on Node with a limit in front of them, in each way in which one can be put there.
//
//   const { send } = await serve("http", limit);
//   const { status, headers, text, body } = await send("/", { headers: { "x-status": "401" } });
//
// A request that passes is answered "passed", with the status that its header `x-status` names. The servers end with the test file.
import { once } from "node:events";
import { createServer, request as httpRequest } from "node:http";
import { text as textOf } from "node:stream/consumers";
import { after } from "node:test";
import express from "express";
import fastify from "fastify";

/** Serves on a free port. With `trust`, Express and Fastify take addresses from `X-Forwarded-For`. */
export async function serve(way, limit, { trust = false, handle = passed } = {}) {
  const port = await STARTS[way](limit, handle, trust);
  return { send: (path, options) => send(port, path, options) };
}

/** Answers a request of `http`, Express or Fastify; `body` is what was parsed. */
function passed({ headers }) {
  return { status: Number(headers["x-status"] ?? 200), text: "passed" };
}

const STARTS = {
  http: (limit, handle) =>
    listen(async (request, response) => {
      try {
        if (await limit(request, response)) await answer(request, response, handle);
      } catch (error) {
        response.writeHead(500).end(`${error.code}: ${error.message}`);
      }
    }),
  "a function with `next`": (limit, handle) =>
    listen((request, response) =>
      limit(request, response, (error) => {
        if (error) response.writeHead(500).end(`${error.code}: ${error.message}`);
        else answer(request, response, handle);
      }),
    ),
  Express: (limit, handle, trust) => {
    const app = express();
    app.set("trust proxy", trust);
    app.use(express.json());
    app.use(limit);
    app.use((request, response) => answer(request, response, handle));
    app.use((error, _request, response, _next) => response.status(500).end(`${error.code}: ${error.message}`));
    return listen(app);
  },
  Fastify: async (limit, handle, trust) => {
    const app = fastify({ trustProxy: trust });
    app.setErrorHandler((error, _request, reply) => reply.code(500).send(`${error.code}: ${error.message}`));
    app.register(limit);
    app.register(async (routes) => {
      routes.all("/*", async (request, reply) => {
        const { status, text } = await handle(request);
        return reply.code(status).send(text);
      });
    });
    await app.listen({ port: 0, host: "127.0.0.1" });
    after(() => app.close());
    return app.server.address().port;
  },
};

/** The ways in which a limit can be in front of a server. */
export const WAYS = Object.keys(STARTS);

async function answer(request, response, handle) {
  const { status, text } = await handle(request);
  response.statusCode = status;
  response.end(text);
}

export async function listen(handler) {
  const server = createServer(handler);
  await once(server.listen(0, "127.0.0.1"), "listening");
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  return server.address().port;
}

/** Sends a request from a loopback address, and reads the response. */
export async function send(port, path, { method = "GET", headers = {}, body, from = "127.0.0.1" } = {}) {
  const type = body === undefined ? {} : { "content-type": "application/json" };
  const request = httpRequest({ port, path, method, headers: { ...type, ...headers }, localAddress: from });
  request.end(body === undefined ? undefined : JSON.stringify(body));
  const [response] = await once(request, "response");
  const text = await textOf(response);
  const isJson = /json/.test(response.headers["content-type"]);
  return { status: response.statusCode, headers: response.headers, text, body: isJson ? JSON.parse(text) : undefined };
}
