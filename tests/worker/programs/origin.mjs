// An origin behind the gate: says what reached it, and streams.
export default {
  async fetch(request) {
    const { pathname, search } = new URL(request.url);
    if (pathname === "/api/stream") {
      const { readable, writable } = new TransformStream();
      request.body.pipeTo(writable);
      return new Response(readable, { headers: { "X-Origin": "streams" } });
    }
    const { method, headers } = request;
    const body = await request.text();
    const seen = { method, path: pathname + search, own: headers.get("x-own"), key: headers.get("x-api-key"), body };
    return Response.json(seen, {
      status: 201,
      headers: [
        ["Set-Cookie", "a=1"],
        ["Set-Cookie", "b=2"],
      ],
    });
  },
};
