// A main module around the built one: the registry of policies fails as the latest request with the header `x-registry` has said:
// "throws", "hangs", "hangs later" after an answer, answers "late" when it is asked again and answers that a little later, is asked "nonsense" or
// for policies that "mismatch", or "answers" again. It logs when its rows are read.
// With the header `x-objects: throws` the objects of keys fail.
import tollgate, { PolicyRegistry as Real } from "./entry.js";

export { KeyObject } from "./entry.js";

export class PolicyRegistry extends Real {
  constructor(context, env) {
    super(context, env);
    const prototype = Object.getPrototypeOf(context.storage.kv);
    listRows ??= prototype.list;
    prototype.list = function (options) {
      if (options) console.log("registry: its rows are read"); // the other objects give none
      return listRows.call(this, options);
    };
  }
}

let listRows;

let fault = "answers";

/** Gives the late answer. */
let release;

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
          if (fault === "hangs later") fault = "hangs";
          if (fault === "late") {
            const answer = await stub[method](...asked);
            if (!release) return new Promise((resolve) => (release = () => resolve(answer)));
            release();
            await new Promise((resolve) => setTimeout(resolve, 100));
            return answer;
          }
          if (fault in WRONG) return stub[method](WRONG[fault]);
          return stub[method](...asked);
        };
      return { poll: call("poll"), administer: call("administer"), show: call("show") };
    };
    const KEYS = request.headers.get("x-objects") === "throws" ? { getByName: () => ({}) } : env.KEYS;
    return tollgate.fetch(request, { ...env, KEYS, REGISTRY: { getByName } }, context);
  },
};

/** Polls that it rejects. */
const WRONG = {
  nonsense: "{",
  mismatch: JSON.stringify({ as_of: 0, born_at: 0, deployment: "00", policies: { api: "1/1s" } }),
};
