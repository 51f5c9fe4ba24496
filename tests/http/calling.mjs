// A Worker with a service binding to Tollgate: asks by RPC what comes by HTTP.
export default {
  async fetch(request, { TOLLGATE }) {
    const { status, headers, ...body } = await TOLLGATE.consume(await request.json());
    return Response.json(body, { status, headers });
  },
};
