// A main module before the built one: between its front and its objects happens what a request's header says.
//
//   x-fault: {"fault":"throws"}                              every call fails in the object
//   x-fault: {"fault":"retryable","after":true,"times":1}    the first call fails on the way back, after the decision
//   x-fault: {"fault":"slow","ms":300,"act":"settle"}        only calls that settle are slow
//   x-fault: {"fault":"throws","skip":2}                     all but the first two
//
// The answer's header `x-asked` says how often objects were asked.
import tollgate from "./entry.js";
export { KeyObject } from "./entry.js";

export default {
  async fetch(request, env, context) {
    const { fault, skip = 0, times = Infinity, after, act, ms } = JSON.parse(request.headers.get("x-fault") ?? "{}");
    let [asked, met] = [0, 0];
    const getByName = (name) => ({
      async decide(policies, question) {
        asked++;
        const stub = env.KEYS.getByName(name);
        const real = () => stub.decide(policies, question);
        if (!fault || (act && question[1] !== ACTS[act])) return real();
        const index = met++ - skip;
        if (index < 0 || index >= times) return real();
        if (after) await real();
        return FAULTS[fault](real, { stub, ms, question });
      },
    });
    const response = await tollgate.fetch(request, { ...env, KEYS: { getByName } }, context);
    response.headers.set("x-asked", asked);
    return response;
  },
};

const FAULTS = {
  throws: (_, { stub, question }) => stub.decide("a policy that is not there", question),
  hangs: () => new Promise(() => {}),
  slow: (real, { ms }) => new Promise((done) => setTimeout(done, ms)).then(real),
  overloaded: () => fail({ overloaded: true }),
  "overloaded and retryable": () => fail({ overloaded: true, retryable: true }),
  retryable: () => fail({ retryable: true }),
  "of another version": () => [1, 0, 1_700_000_000_000, 0, 0, -1, 0],
  "of no version": () => [],
  "cut off": async (real) => (await real()).slice(0, -1),
  "of other limits": async (real) => (await real()).slice(0, 7),
};

/** How the runtime reports that a call did not reach its object, or its answer did not come back. */
function fail(properties) {
  throw Object.assign(new Error("the way to the object is blocked"), properties);
}

/** The numbers of acts in questions. */
const ACTS = { look: 0, take: 1, reserve: 2, hold: 3, settle: 4, cancel: 5 };
