// A Worker with a service binding to Tollgate: calls the method `verb`, such as `keys.inspect`, with `ask` and `options`, and answers with
// what it returns.
export default {
  async fetch(request, env) {
    const { verb, ask, options } = await request.json();
    try {
      const [last, ...names] = verb.split(".").toReversed();
      const target = names.reduceRight((object, name) => object[name], env.TOLLGATE);
      return Response.json(await target[last](ask, options));
    } catch (error) {
      return Response.json({ thrown: String(error) });
    }
  },
};
