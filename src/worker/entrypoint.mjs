// Tollgate for other Workers, which have a service binding to it: by RPC and by `fetch`. Holding the binding is the credential.
import { RpcTarget, WorkerEntrypoint } from "cloudflare:workers";
import { ask, askAboutKey, verbs } from "./embedded.mjs";
import { respond } from "./frontend.mjs";
import { keyVerbs } from "./keys.mjs";
import { Frontend } from "./policies.mjs";
import { bodyOf, embeddedHeadersOf, statusOf } from "./reply.mjs";
import * as built from "./rust/index.js";

/** A method for each verb, added below. */
export class Tollgate extends WorkerEntrypoint {
  fetch(request) {
    return respond(frontendOf(this.env), request, this.env.KEYS);
  }

  /** What operators do with one key. */
  get keys() {
    return new Keys(this.env);
  }
}

const verb = (path) =>
  async function (request, options) {
    return plain(await ask(frontendOf(this.env), this.env.KEYS, path, request, options));
  };
Object.assign(Tollgate.prototype, verbs(verb));

/** A method for each of {@link keyVerbs}. */
class Keys extends RpcTarget {
  #env;

  constructor(env) {
    super();
    this.#env = env;
  }

  static {
    const verb = (path) =>
      async function (request, options) {
        return plain(await askAboutKey(frontendOf(this.#env), this.#env.KEYS, path, request, options));
      };
    Object.assign(Keys.prototype, keyVerbs(verb));
  }
}

/** An answer of plain values. */
function plain(text) {
  return { ...JSON.parse(bodyOf(text)), status: statusOf(text), headers: embeddedHeadersOf(text) };
}

/** One for the isolate: `env` is the same for all its requests. Errors in the settings are in the log, and the answer says so. */
function frontendOf(env) {
  frontend ??= new Frontend(
    () => {
      const made = built.Frontend.bound(env);
      for (const error of made.errors()?.split("\n") ?? []) console.error(`settings: ${error}`);
      return made;
    },
    env.REGISTRY,
    env,
  );
  return frontend;
}
let frontend;
