// A main module around the built one: the registry of policies fails as the latest request with the header `x-registry` has said:
// "throws", "hangs", or "answers" again.
import tollgate from "./entry.js";

export { KeyObject, PolicyRegistry } from "./entry.js";

let fault = "answers";

export default {
  fetch(request, env, context) {
    fault = request.headers.get("x-registry") ?? fault;
    const getByName = (name) => {
      const stub = env.REGISTRY.getByName(name);
      const call =
        (method) =>
        async (...asked) => {
          console.log(`registry: ${method}`);
          if (fault === "throws") throw new Error("the way to the registry is blocked");
          if (fault === "hangs") return new Promise(() => {});
          return stub[method](...asked);
        };
      return { poll: call("poll"), administer: call("administer"), hear: call("hear") };
    };
    return tollgate.fetch(request, { ...env, REGISTRY: { getByName } }, context);
  },
};
