// Tollgate for other Workers, which have a service binding to it: by RPC and by `fetch`. Holding the binding is the credential.
import { WorkerEntrypoint } from "cloudflare:workers";
import { ask, verbs } from "./embedded.mjs";
import { respond } from "./frontend.mjs";
import { Frontend } from "./policies.mjs";
import { bodyOf, headersOf, statusOf } from "./reply.mjs";
import * as built from "./rust/index.js";

/** A method for each verb, added below. */
export class Tollgate extends WorkerEntrypoint {
  fetch(request) {
    return respond(frontendOf(this.env), request, this.env.KEYS);
  }
}

const verb = (path) =>
  async function (request, options) {
    const text = await ask(frontendOf(this.env), this.env.KEYS, path, request, options);
    return { ...JSON.parse(bodyOf(text)), status: statusOf(text), headers: headersOf(text) };
  };
Object.assign(Tollgate.prototype, verbs(verb));

/** One for the isolate: `env` is the same for all its requests. Errors in the settings are in the log, and the answer says so. */
function frontendOf(env) {
  frontend ??= new Frontend(
    () => {
      const made = built.Frontend.trusting(env);
      for (const error of made.errors()?.split("\n") ?? []) console.error(`settings: ${error}`);
      return made;
    },
    env.REGISTRY,
    env.METRICS,
  );
  return frontend;
}
let frontend;
