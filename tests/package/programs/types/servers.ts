// A limit in front of servers, with the frameworks' own types.
import { createServer } from "node:http";
import express, { type Request, type Response } from "express";
import fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import { Hono } from "hono";
import { rateLimit as inFrontOfHono } from "tollgate/hono";
import { KeyedLimiter, rateLimit } from "tollgate/node";

const limiter = new KeyedLimiter({ rate: 100, periodMs: 60_000 });
const limit = rateLimit({ limiter });

const app = express();
app.use(limit);
app.post("/login", limit, (_, response) => void response.send("passed"));
app.use(
  rateLimit({
    limiter,
    key: (request: Request) => request.get("x-user"),
    onRefused: ({ detail }, _: Request, response: Response) => response.send(detail),
  }),
);

const server = fastify();
await server.register(limit);
await server.register(
  rateLimit({
    limiter,
    key: (request: FastifyRequest) => request.hostname,
    onRefused: ({ detail }, _: FastifyRequest, reply: FastifyReply) => reply.send(detail),
  }),
);

createServer(async (request, response) => {
  if (await limit(request, response)) response.end("passed");
});

type Known = { Variables: { user: string } };
const routes = new Hono<Known>();
routes.use(inFrontOfHono<Known>({ limiter, key: (c) => c.get("user"), onRefused: (_, c) => c.text("later", 429) }));
