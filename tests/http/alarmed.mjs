// Around the built Worker: runs the alarms of the objects whose ids are in the body of a request to /alarms, at the moment
// that the test's clock shows. The runtime's own alarms keep to the wall clock.
import front, { KeyObject as Real } from "./entry.js";

export class KeyObject extends Real {
  runAlarm() {
    return this.alarm();
  }
}

export default {
  async fetch(request, env, context) {
    const { origin, pathname } = new URL(request.url);
    if (pathname !== "/alarms") return front.fetch(request, env, context);
    await front.fetch(new Request(`${origin}/healthz`, { headers: request.headers }), env, context); // sets the clock
    const ids = await request.json();
    await Promise.all(ids.map((id) => env.KEYS.get(env.KEYS.idFromString(id)).runAlarm()));
    return new Response();
  },
};
