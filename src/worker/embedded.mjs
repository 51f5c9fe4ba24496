// Tollgate inside another Worker: a function for each verb of the HTTP API, without HTTP. `keys` has the operators' acts on one key.
import { decide } from "./decide.mjs";
import { Decision } from "./decision.mjs";
import { log } from "./log.mjs";
import { Frontend } from "./policies.mjs";
import { logNote } from "./reply.mjs";
import * as built from "./rust/index.js";

/**
 * A function for each verb. `options.policies` are policies in code, by default those in `env.POLICIES`; `options.keys` is the
 * namespace of the objects, by default `env.KEYS`. Throws a {@link SettingsError}. The same arguments give the same object;
 * two objects of one namespace, such as `jurisdiction` returns, are the same.
 */
export function tollgate(env, options = NO_OPTIONS) {
  const { policies, keys = env.KEYS } = options;
  const text = policies === undefined ? undefined : (JSON.stringify(policies) ?? "null");
  const all = made.get(env) ?? [];
  made.set(env, all);
  let index = all.findIndex((one) => one.text === text && one.keys === keys);
  if (index < 0) {
    const id = idOf(keys);
    index = all.findIndex((one) => one.text === text && one.id === id);
  }
  if (index === 0) return all[0].verbs;
  const [found] = index > 0 ? all.splice(index, 1) : [make(env, text, keys)];
  all.unshift(found);
  if (all.length > MOST) all.pop();
  return found.verbs;
}

/** Thrown if settings are wrong. `errors` has one line for each error. */
export class SettingsError extends Error {
  name = "SettingsError";

  constructor(errors) {
    super(`tollgate: ${errors.join("; ")}`);
    this.errors = errors;
  }
}

/** A function for each verb, made by `verb` from its path. */
export function verbs(verb) {
  return Object.fromEntries(VERBS.map(([name, path]) => [name, verb(path)]));
}

/** The same for each of the operators' acts on one key. */
export function keyVerbs(verb) {
  return Object.fromEntries(KEY_VERBS.map(([name, path]) => [name, verb(path)]));
}

/** Makes a request that did not arrive by HTTP, with the caller's options. `props` are those of the service binding, if it arrived by one. */
export function asking(path, request, options, props) {
  const { idempotencyKey } = options ?? {};
  const idempotent = idempotencyKey === undefined ? undefined : String(idempotencyKey);
  const body = JSON.stringify(request) ?? "";
  return (rust, newer) => rust.ask_text(path, props, idempotent, body, newer);
}

/** The reply, as text, to the request that `ask` makes, such as {@link asking}. `keys` is the namespace of the objects. */
export async function answerTo(frontend, keys, ask) {
  const text = await decisionOn(frontend, keys, ask, () => frontend.rust().failed());
  logNote(text);
  return text;
}

/** What {@link decide} returns, or what `failed` does after an internal error. */
export async function decisionOn(frontend, keys, ask, failed) {
  try {
    await frontend.refreshed();
    return await decide(frontend, (newer) => ask(frontend.rust(), newer), keys);
  } catch (error) {
    log("error", "tollgate failed", { error });
    return failed();
  }
}

function make(env, text, keys) {
  const frontend = new Frontend(() => built.Frontend.trusting(env, text, keys), env);
  const { rust } = frontend;
  const errors = rust().errors();
  if (errors !== undefined) {
    rust().free(); // each request comes here until the settings are corrected
    throw new SettingsError(errors);
  }
  const verb = (path) => async (request, options) =>
    new Decision(await answerTo(frontend, keys, asking(path, request, options)));
  return { text, keys, id: idOf(keys), verbs: { ...verbs(verb), keys: keyVerbs(verb) } };
}

/** Identifies a namespace: ids of the same name differ between namespaces and between jurisdictions. */
function idOf(keys) {
  return typeof keys?.idFromName === "function" ? keys.idFromName("tollgate").toString() : keys;
}

/** The results of {@link tollgate} for each environment, the most recently used first. */
const made = new WeakMap();

/** Maximum results kept for one environment: programs may make policies for each tenant or plan. Others are made again when used. */
const MOST = 64;

/** Names of functions, each with its path. */
const VERBS = built.Frontend.verbs();
const KEY_VERBS = built.Frontend.key_verbs();
const NO_OPTIONS = {};
