// Around the built Worker: runs the alarms of the objects whose ids are in the body of a request to /alarms, at the moment
// that the test's clock shows. The runtime's own alarms follow the wall clock. With the header `x-storage: broken` their rows
// cannot be listed.
import front, { KeyObject as Real, PolicyRegistry as RealRegistry } from "./entry.js";

let isBroken = false;

export class KeyObject extends Real {
  constructor(context, env) {
    super(context, env);
    const prototype = Object.getPrototypeOf(context.storage.kv);
    listRows ??= prototype.list;
    prototype.list = function (...args) {
      if (isBroken) throw new Error("storage is broken");
      return listRows.apply(this, args);
    };
  }

  runAlarm() {
    return this.alarm();
  }
}

let listRows;

/** Its id in the body is "registry". */
export class PolicyRegistry extends RealRegistry {
  runAlarm() {
    return this.alarm();
  }
}

export default {
  async fetch(request, env, context) {
    const { origin, pathname } = new URL(request.url);
    if (pathname !== "/alarms") return front.fetch(request, env, context);
    await front.fetch(new Request(`${origin}/healthz`, { headers: request.headers }), env, context); // sets the clock
    isBroken = request.headers.get("x-storage") === "broken";
    const ids = await request.json();
    const objectOf = (id) => (id === "registry" ? env.REGISTRY.getByName(id) : env.KEYS.get(env.KEYS.idFromString(id)));
    await Promise.all(ids.map((id) => objectOf(id).runAlarm()));
    isBroken = false;
    return new Response();
  },
};
