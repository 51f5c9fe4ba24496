// A Worker with a service binding to Tollgate: calls the method `verb`, such as `keys.inspect`, with `ask` and `options`, and answers with
// its result. The verb `fetch` sends the request `options` to the path `ask`, with the visitor's headers.
export default {
  async fetch(request, env) {
    const { verb, ask, options } = await request.json();
    if (verb === "fetch") {
      const headers = new Headers(request.headers);
      headers.delete("content-length");
      const answer = await env.TOLLGATE.fetch(`https://tollgate${ask}`, { ...options, headers });
      return Response.json({ status: answer.status, text: await answer.text() });
    }
    try {
      const [last, ...names] = verb.split(".").toReversed();
      const target = names.reduceRight((object, name) => object[name], env.TOLLGATE);
      return Response.json(await target[last](ask, options));
    } catch (error) {
      return Response.json({ thrown: String(error) });
    }
  },
};
