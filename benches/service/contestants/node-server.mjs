// A Node server in front of a limiter written by hand. Its settings come in the environment, as JSON; it reports to its parent on
// which port it listens.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { Limiter, policiesFrom } from "./limiter.mjs";

const { token, policies, keySecret, database } = JSON.parse(process.env.SETTINGS);

/** The port of the database. */
export { database };

/** Listens. `decide(name, policy, cost)` is like that of {@link Limiter}, with a name that does not reveal the key. */
export function serve(decide) {
  const limiter = new Limiter({
    token,
    policies: policiesFrom(policies),
    isSame: timingSafeEqual,
    decide: (keyBytes, policy, cost) =>
      decide(createHmac("sha256", keySecret).update(keyBytes).digest("hex"), policy, cost),
  });
  const server = createServer(async (request, response) => {
    const { status, headers, body } = await limiter.answer({
      method: request.method,
      pathname: request.url,
      header: (name) => request.headers[name],
      json: async () => JSON.parse(await text(request)),
    });
    response.writeHead(status, { ...headers, "content-length": Buffer.byteLength(body) }).end(body);
  });
  server.listen(0, "127.0.0.1", () => process.send({ port: server.address().port }));
}
