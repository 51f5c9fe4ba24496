// In front of the frontends of two versions: calls the one that the header `x-version` names. The objects are those of
// `MAIN`, whose clock a request to the other frontend would not set; an invalid moment makes only that frontend panic.
export default {
  async fetch(request, { MAIN, OTHER }) {
    if (request.headers.get("x-version") !== "other") return MAIN.fetch(request);
    const { origin } = new URL(request.url);
    if (Number.isInteger(Number(request.headers.get("x-tollgate-test-now"))))
      await MAIN.fetch(new Request(`${origin}/healthz`, { headers: request.headers }));
    return OTHER.fetch(request);
  },
};
