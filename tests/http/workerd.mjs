// Runs the built Worker on workerd, the runtime itself, with its objects in SQLite files in a folder of its own.
//
//   const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
//   const { status, headers, body } = await tollgate.consume({ policy: "api", key: "alice" }, { now: 5_000 });
//   await tollgate.kill(); await tollgate.restart(); // what was spent is still spent
//
// Whatever is started in a test file is stopped and removed when the file ends, however it ends.
import { readdirSync, rmSync } from "node:fs";
import { Agent, request } from "node:http";
import { join } from "node:path";
import { after } from "node:test";
import { assertInContract } from "./contract.mjs";
import { Runtime, rollOut, tollgate } from "./runtime.mjs";

/** The default moment of a test clock. */
export const NOW = 1_700_000_000_000;

/** The secrets, unless a test says otherwise. */
export const TOKEN = "the-bearer-token-of-the-tests";
export const KEY_SECRET = "the-key-secret-of-the-tests";

/**
 * Starts a Worker. `policies` are those of `wrangler.toml`; a `token` or `keySecret` of `null` is not set at all. `tokens`,
 * `grantKeys`, `audience`, `sessions`, `captchaSecret`, `registry`, `points`, `sample` and the receivers of notices: see `bindings` of
 * runtime.mjs.
 * `build` is "test-clock", whose clock stands at {@link NOW} unless a request says otherwise, "next-format", which is that of a
 * later version, or "deployed". `around` is the
 * path of a main module of the test's own, which imports `./entry.js`. `before`, `flags`, `v8Flags`: see runtime.mjs. `other` is
 * another version, `{ policies, build }`, whose frontends ask the same objects: see {@link rollOut}.
 */
export async function start(changes) {
  const settings = { token: TOKEN, keySecret: KEY_SECRET, build: "test-clock", ...changes };
  const started = new Tollgate(withExactPolicies(settings));
  await started.restart();
  return started;
}

function withExactPolicies(settings) {
  const { policies, other } = settings;
  if (policies) settings = { ...settings, policies: exact(policies) };
  if (other) settings = { ...settings, other: { ...other, policies: exact(other.policies) } };
  return settings;
}

/** The policies; unless they say otherwise, each change is written before the answer, and each refusal is the object's. */
function exact(policies) {
  const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isTable(policies)) return policies;
  const one = (limit) => (isTable(limit) && limit.kind !== "slots" ? { write_ahead: 0, ...limit } : limit);
  const each = (policy) =>
    isTable(policy)
      ? {
          refusal_cache: "0s",
          ...(Array.isArray(policy.limits) ? { ...policy, limits: policy.limits.map(one) } : one(policy)),
        }
      : policy;
  return Object.fromEntries(Object.entries(policies).map(([name, policy]) => [name, each(policy)]));
}

class Tollgate {
  #settings;
  #runtime = new Runtime();
  #agent;
  #connectedAt;

  constructor(settings) {
    this.#settings = settings;
  }

  /** Starts on the same state, perhaps with other settings. */
  async restart(changes = {}) {
    this.#settings = { ...this.#settings, ...withExactPolicies(changes) };
    const { other, ...objects } = this.#settings;
    await this.#runtime.start(other ? rollOut({ objects, other: { ...objects, ...other } }) : tollgate(objects));
    this.#connectedAt = -Infinity;
  }

  /** Ends the process as a power cut would. All of its output is in `log` afterwards. */
  async kill() {
    await this.#runtime.kill();
    this.#agent?.destroy();
  }

  async stop() {
    await this.kill();
    await this.#runtime.remove();
  }

  /** The process's number. */
  get pid() {
    return this.#runtime.pid;
  }

  /** Where it listens. */
  get port() {
    return this.#runtime.port;
  }

  /** All that the Worker and the runtime have printed, over all starts. */
  get log() {
    return this.#runtime.log;
  }

  consume(ask, options) {
    return this.post("consume", ask, options);
  }

  peek(ask, options) {
    return this.post("peek", ask, options);
  }

  /** Any of the verbs: `post("charge", ...)` asks `/v1/charge`. */
  post(verb, ask, options) {
    return this.send({ path: `/v1/${verb}`, body: JSON.stringify(ask), ...options });
  }

  /**
   * Sends one request, valid except for what the options change: `headers` of `null` are left out, a body that is an
   * array is sent in as many chunks without a length, and an `unfinished` one never ends.
   */
  async send({ method = "POST", path = "/v1/consume", headers = {}, body, unfinished = false, now = NOW }) {
    const all = {
      authorization: `Bearer ${this.#settings.token}`,
      "content-type": body === undefined ? null : "application/json",
      "content-length": body === undefined || Array.isArray(body) ? null : Buffer.byteLength(body),
      "x-tollgate-test-now": now,
      ...headers,
    };
    const options = { port: this.#runtime.port, agent: this.#connections(), method, path };
    options.headers = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
    const answer = await exchange(options, body, unfinished).catch((error) => {
      throw new Error(`${method} ${path} was not answered (${error.message}); the log so far:\n${this.log}`, {
        cause: error,
      });
    });
    assertInContract(method, path, answer);
    return answer;
  }

  /**
   * Connections that are kept, but new ones every 2 seconds: the runtime closes one that was idle for 5 seconds, and of many that
   * were made together a few may be idle while others are used.
   */
  #connections() {
    if (performance.now() - this.#connectedAt > 2_000) {
      this.#agent = new Agent({ keepAlive: true });
      this.#connectedAt = performance.now();
    }
    return this.#agent;
  }

  /** Waits until the log has `text` at or after `from`, perhaps inside JSON: it arrives a moment after the answer. */
  async logged(text, from = 0) {
    const inJson = JSON.stringify(text).slice(1, -1);
    for (let tries = 0; !this.log.includes(text, from) && !this.log.includes(inJson, from); tries++) {
      if (tries === 500) throw new Error(`not in the log: ${text}\nbut this:\n${this.log}`);
      await new Promise((done) => setTimeout(done, 10));
    }
  }

  /** The files in which state is kept: their paths. */
  stateFiles() {
    const entries = readdirSync(this.#runtime.stateFolder, { recursive: true, withFileTypes: true });
    return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  }

  /** Deletes all objects of a class, while it does not run. */
  forget(className) {
    rmSync(join(this.#runtime.stateFolder, `tollgate-${className}`), { recursive: true });
  }

  /** The databases of the objects that were ever asked. While it runs they may only be read: see database.mjs. */
  databaseFiles() {
    return this.stateFiles().filter((path) => /\/[0-9a-f]{64}\.sqlite$/.test(path));
  }
}

function exchange(options, body, unfinished) {
  return new Promise((resolve, reject) => {
    const sent = request(options, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("error", reject);
      response.on("end", () => {
        const text = Buffer.concat(chunks).toString();
        const { statusCode: status, headers } = response;
        const isJson = /json/.test(headers["content-type"]) && text !== "";
        if (unfinished) sent.destroy();
        resolve({ status, headers, text, body: isJson ? JSON.parse(text) : text });
      });
    });
    sent.on("error", reject);
    sent.setTimeout(ANSWER_TIMEOUT_MS, () => sent.destroy(new Error(`no answer within ${ANSWER_TIMEOUT_MS} ms`)));
    for (const chunk of Array.isArray(body) ? body : []) sent.write(chunk);
    if (!unfinished) sent.end(Array.isArray(body) ? undefined : body);
  });
}

/** It takes a few milliseconds. */
const ANSWER_TIMEOUT_MS = 20_000;

after(Runtime.removeAll);
