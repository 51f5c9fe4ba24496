// A Worker with a service binding to Tollgate: passes HTTP requests on by RPC.
export default {
  async fetch(request, { TOLLGATE }) {
    const { status, headers, ...body } = await TOLLGATE.consume(await request.json());
    return Response.json(body, { status, headers });
  },
};
