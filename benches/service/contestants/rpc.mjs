// A Worker that asks Tollgate by RPC, through a service binding.
export default {
  async fetch(request, env) {
    if (request.method === "GET") return env.MAIN.fetch(request);
    const { status, headers, ...members } = await env.TOLLGATE.consume(await request.json());
    return new Response(JSON.stringify(members), { status, headers });
  },
};
