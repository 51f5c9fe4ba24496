// A main module around the built one, with a data set that logs its points, or throws if the header `x-points` says so. With the
// header `x-keys` no object can be reached, and `x-colo` is where the request was received.
import tollgate from "./entry.js";

export { KeyObject } from "./entry.js";

let throws = false;

const METRICS = {
  writeDataPoint(point) {
    if (throws) throw new Error("the data set is full");
    console.log(`point: ${JSON.stringify(point)}`);
  },
};

export default {
  fetch(request, env, context) {
    const { headers } = request;
    throws = headers.get("x-points") === "throw";
    const getByName = (name) => {
      if (headers.get("x-keys") === "throw") throw new Error("the way to the objects is blocked");
      return env.KEYS.getByName(name);
    };
    const cf = { colo: headers.get("x-colo") ?? "nowhere" };
    const received = new Proxy(request, {
      get: (target, name) => {
        if (name === "cf") return cf;
        const value = Reflect.get(target, name, target);
        return typeof value === "function" ? value.bind(target) : value;
      },
    });
    return tollgate.fetch(received, { ...env, METRICS, KEYS: { getByName } }, context);
  },
};
