// Tollgate for other Workers, which have a service binding to it: by RPC and by `fetch`. The binding is the credential, and its `props` in
// the caller's configuration say what it may do.
import { RpcTarget, WorkerEntrypoint } from "cloudflare:workers";
import { answerTo, asking, decisionOn, keyVerbs, verbs } from "./embedded.mjs";
import { respond } from "./frontend.mjs";
import { log } from "./log.mjs";
import { Frontend } from "./policies.mjs";
import { bodyOf, embeddedHeadersOf, statusOf } from "./reply.mjs";
import * as built from "./rust/index.js";

/** A method for each verb, added below. */
export class Tollgate extends WorkerEntrypoint {
  fetch(request) {
    return respond(frontendOf(this.env), request, this.env.KEYS, propsOf(this.ctx));
  }

  /** The operators' acts on one key. */
  get keys() {
    return new Keys(this.env, propsOf(this.ctx));
  }
}

const verb = (path) =>
  async function (request, options) {
    const ask = asking(path, request, options, propsOf(this.ctx));
    return plain(await answerTo(frontendOf(this.env), this.env.KEYS, ask));
  };
Object.assign(Tollgate.prototype, verbs(verb));

/**
 * For Workers that use the platform's own rate limiting binding. The `props` of the service binding have the policy, and it has no right
 * but to take tokens under that.
 */
export class RateLimit extends WorkerEntrypoint {
  async limit(request) {
    const frontend = frontendOf(this.env);
    const [props, argument] = [propsOf(this.ctx), JSON.stringify(request)];
    const ask = (rust, newer) => rust.limit(props, argument, newer);
    const [success, mistake, note] = await decisionOn(frontend, this.env.KEYS, ask, () => [false]);
    if (note !== undefined) log("warn", note);
    if (mistake !== undefined) throw new Error(mistake);
    return { success };
  }
}

/** A method for each of {@link keyVerbs}. */
class Keys extends RpcTarget {
  #env;
  #props;

  constructor(env, props) {
    super();
    this.#env = env;
    this.#props = props;
  }

  static {
    const verb = (path) =>
      async function (request, options) {
        const ask = asking(path, request, options, this.#props);
        return plain(await answerTo(frontendOf(this.#env), this.#env.KEYS, ask));
      };
    Object.assign(Keys.prototype, keyVerbs(verb));
  }
}

/** The binding's `props` as JSON, which Rust parses. They come from the caller's configuration; its code cannot choose them. */
const propsOf = ({ props }) => JSON.stringify(props);

/** An answer made of plain values, which RPC can send. */
function plain(text) {
  return { ...JSON.parse(bodyOf(text)), status: statusOf(text), headers: embeddedHeadersOf(text) };
}

/** The isolate's only one: `env` is the same for all its requests. Errors in the settings are logged, and the answer refers to the log. */
function frontendOf(env) {
  frontend ??= new Frontend(() => built.Frontend.bound(env), env);
  return frontend;
}
let frontend;
