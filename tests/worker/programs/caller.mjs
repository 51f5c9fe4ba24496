// A Worker that has a service binding to Tollgate.
import { acquire, Client } from "tollgate/client";

export default {
  async fetch(request, env) {
    const [, way, verb] = new URL(request.url).pathname.split("/");
    const options = { idempotencyKey: request.headers.get("idempotency-key") ?? undefined };
    const ask = await request.json();
    if (way === "rpc") return Response.json(await env.TOLLGATE[verb](ask, options));
    if (way === "acquire") return Response.json(await acquire(env.TOLLGATE, ask));
    const client = new Client({ url: "https://tollgate", token: null, fetcher: env.TOLLGATE });
    const answer = await client[verb](ask, options);
    return Response.json({ ...answer, headers: Object.fromEntries(answer.headers) });
  },
};
