// A Worker with a service binding to Tollgate.
import { acquire, Client } from "tollgate/client";

export default {
  async fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    const [, way, verb] = pathname.split("/");
    if (way === "pass")
      return env.TOLLGATE.fetch(new Request(`https://tollgate${pathname.slice(5)}${search}`, request));
    const options = { idempotencyKey: request.headers.get("idempotency-key") ?? undefined };
    const ask = await request.json();
    if (way === "rpc") return Response.json(await env.TOLLGATE[verb](ask, options));
    if (way === "keys") return Response.json(await env.TOLLGATE.keys[verb](ask, options));
    if (way === "acquire") return Response.json(await acquire(env.TOLLGATE, ask));
    const client = new Client({ url: "https://tollgate", token: null, fetcher: env.TOLLGATE });
    const answer = await client[verb](ask, options);
    return Response.json({ ...answer, headers: Object.fromEntries(answer.headers) });
  },
};
