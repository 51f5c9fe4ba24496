// A Worker that forgets between requests, as between tests.
import { forget } from "tollgate/testing";
import { tollgate } from "tollgate/worker";

export { KeyObject } from "tollgate/worker";

/** `/<policy>/<times>`: where each of that many answers came from; `/forget`. */
export default {
  async fetch(request, env) {
    const [, policy, times] = new URL(request.url).pathname.split("/");
    if (policy === "forget") return Response.json(forget() ?? null);
    const sources = [];
    for (let i = 0; i < Number(times); i++) {
      const { status, source = "object" } = await tollgate(env).consume({ policy, key: "alice" });
      sources.push(`${status} ${source}`);
    }
    return Response.json(sources);
  },
};
