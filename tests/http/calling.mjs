// A Worker with a service binding to Tollgate: calls the method `verb` with `ask`, and answers with what it returns.
export default {
  async fetch(request, env) {
    const { verb, ask } = await request.json();
    return Response.json(await env.TOLLGATE[verb](ask));
  },
};
