// A main module around the built one: injects the faults that a request's header asks for between frontend and objects.
//
//   x-fault: {"fault":"throws"}                              every call fails in the object
//   x-fault: {"fault":"retryable","after":true,"times":1}    the first call fails on the way back, after the decision
//   x-fault: {"fault":"slow","ms":300,"act":"settle"}        only calls that settle are slow
//   x-fault: {"fault":"waits","port":4711,"act":"hold"}     calls that hold wait at the gate (gate.mjs)
//   x-fault: {"fault":"throws","skip":2}                     all but the first two
//   x-fault: {"fault":"throws","policy":"api"}               only calls about this policy
//   x-fault: [{...},{...}]                                   several: for each call the first that matches
//
// The answer's header `x-asked` counts the calls of objects so far, and `x-acts` lists their actions. Other calls, such
// as aborts after the answer, are logged: "asked late: cancel".
import tollgate from "./entry.js";

export { KeyObject } from "./entry.js";

export default {
  async fetch(request, env, context) {
    const faults = [JSON.parse(request.headers.get("x-fault") ?? "[]")].flat().map((fault) => ({ ...fault, met: 0 }));
    const acts = [];
    let isAnswered = false;
    const getByName = (name) => ({
      async decide(policies, question, ...more) {
        const act = ACTS[question.split(" ")[1]];
        if (isAnswered) console.log(`asked late: ${act}`);
        acts.push(act);
        const stub = env.KEYS.getByName(name);
        const real = () => stub.decide(policies, question, ...more);
        const fault = faults.find((fault) => (fault.act ?? act) === act && (fault.policy ?? policies) === policies);
        if (!fault) return real();
        const { skip = 0, times = Infinity, after, ms, port } = fault;
        const index = fault.met++ - skip;
        if (index < 0 || index >= times) return real();
        if (after) await real();
        return FAULTS[fault.fault](real, { stub, ms, port, question });
      },
    });
    const response = await tollgate.fetch(request, { ...env, KEYS: { getByName } }, context);
    isAnswered = true;
    response.headers.set("x-asked", acts.length);
    response.headers.set("x-acts", acts.join(" "));
    return response;
  },
};

const FAULTS = {
  throws: (_, { stub, question }) => stub.decide("a policy that is not there", question.slice(0, 1)),
  hangs: () => new Promise(() => {}),
  slow: (real, { ms }) => new Promise((done) => setTimeout(done, ms)).then(real),
  waits: (real, { port }) => fetch(`http://127.0.0.1:${port}/`).then(real),
  late: async (real, { ms }) => {
    const answer = await real();
    await new Promise((done) => setTimeout(done, ms));
    return answer;
  },
  overloaded: () => fail({ overloaded: true }),
  "overloaded and retryable": () => fail({ overloaded: true, retryable: true }),
  retryable: () => fail({ retryable: true }),
  "of another version": () => "1 0 1700000000000 0 0 -1 0",
  "of no version": () => "",
  "cut off": async (real) => numbersOf(await real(), -1),
  "of other limits": async (real) => numbersOf(await real(), 7),
};

/** The first numbers of a reply. */
function numbersOf(reply, count) {
  return reply.split(" ").slice(0, count).join(" ");
}

/** How the runtime reports that a call or its answer was lost. */
function fail(properties) {
  throw Object.assign(new Error("the way to the object is blocked"), properties);
}

/** The actions, by their number in the request. */
const ACTS = ["look", "take", "reserve", "hold", "settle", "cancel", "extend"];
