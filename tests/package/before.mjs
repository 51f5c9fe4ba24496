// A Worker with Tollgate as a service binding: it passes each request on with the package's client.
import { Client } from "./workerd.js";

export default {
  async fetch(request, env) {
    const fetcher = { fetch: (url, init) => env.TOLLGATE.fetch(url, init) };
    const isBound = new URL(request.url).pathname === "/bound";
    const client = new Client({
      url: "https://tollgate.example",
      token: () => env.TOKEN,
      fetcher: isBound ? env.TOLLGATE : fetcher,
    });
    const { verb, ask, options } = await request.json();
    return Response.json(await client[verb](ask, options));
  },
};
