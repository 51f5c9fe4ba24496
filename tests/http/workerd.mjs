// Runs the built Worker on workerd, the runtime itself, with its objects in SQLite files in a folder of its own.
//
//   const tollgate = await start({ policies: { api: { rate: 10, period: "10s" } } });
//   const { status, headers, body } = await tollgate.consume({ policy: "api", key: "alice" }, { now: 5_000 });
//   await tollgate.kill(); await tollgate.restart(); // what was spent is still spent
//
// Whatever is started in a test file is stopped and removed when the file ends, however it ends.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { fileURLToPath } from "node:url";

/** The moment at which a test clock stands where a test does not care. */
export const NOW = 1_700_000_000_000;

/** The secrets, unless a test says otherwise. */
export const TOKEN = "the-bearer-token-of-the-tests";
export const KEY_SECRET = "the-key-secret-of-the-tests";

/**
 * Starts a Worker. `policies` are those of `wrangler.toml`; a `token` or `keySecret` of `null` is not set at all.
 * `build` is "test-clock", whose clock stands at {@link NOW} unless a request says otherwise, or "deployed".
 */
export async function start({ policies, token = TOKEN, keySecret = KEY_SECRET, build = "test-clock" }) {
  const tollgate = new Tollgate({ policies, token, keySecret, build });
  all.add(tollgate);
  await tollgate.restart();
  return tollgate;
}

class Tollgate {
  #settings;
  #folder = mkdtempSync(join(tmpdir(), "tollgate-http-"));
  #process;
  #closed;
  #port;
  #agent;

  /** All that the Worker and the runtime have printed, over all starts. */
  log = "";

  constructor(settings) {
    this.#settings = settings;
    mkdirSync(this.#stateFolder);
  }

  /** Starts on the same state, perhaps with other settings. */
  async restart(changes = {}) {
    this.#settings = { ...this.#settings, ...changes };
    const config = join(this.#folder, "config.capnp");
    writeFileSync(config, configText(this.#settings, this.#folder, this.#stateFolder));
    // Not node_modules/.bin/workerd: that is a wrapper, and killing it would leave workerd alive.
    const child = spawn(WORKERD, ["serve", config, "--control-fd=3"], { stdio: ["ignore", "pipe", "pipe", "pipe"] });
    this.#process = child;
    this.#closed = once(child, "close"); // after this nothing more is printed
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => (this.log += text));
    }
    this.#port = await listening(child).catch(async (error) => {
      await this.kill();
      throw new Error(`workerd did not start: ${error.message}\n${this.log}`);
    });
    this.#agent = new Agent({ keepAlive: true });
  }

  /** Ends the process as a power cut would. All of its output is in `log` afterwards. */
  async kill() {
    this.#process?.kill("SIGKILL");
    await this.#closed;
    this.#agent?.destroy();
  }

  async stop() {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
    all.delete(this);
  }

  /** As much of {@link stop} as a process can do that is ending. */
  abandon() {
    this.#process?.kill("SIGKILL");
    rmSync(this.#folder, { recursive: true, force: true });
  }

  consume(ask, options) {
    return this.send({ path: "/v1/consume", body: JSON.stringify(ask), ...options });
  }

  peek(ask, options) {
    return this.send({ path: "/v1/peek", body: JSON.stringify(ask), ...options });
  }

  /**
   * Sends one request, a correct one but for what is said: `headers` of `null` are left out, a body that is an array is
   * sent in as many chunks without a length, and an `unfinished` one never ends.
   */
  async send({ method = "POST", path = "/v1/consume", headers = {}, body, unfinished = false, now = NOW }) {
    const all = {
      authorization: `Bearer ${this.#settings.token}`,
      "content-type": body === undefined ? null : "application/json",
      "content-length": body === undefined || Array.isArray(body) ? null : Buffer.byteLength(body),
      "x-tollgate-test-now": now,
      ...headers,
    };
    const options = { port: this.#port, agent: this.#agent, method, path };
    options.headers = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
    try {
      return await exchange(options, body, unfinished);
    } catch (error) {
      throw new Error(`${method} ${path} was not answered (${error.message}); the log so far:\n${this.log}`, { cause: error });
    }
  }

  /** Waits until the log has `text`: it arrives a moment after the answer. */
  async logged(text) {
    for (let tries = 0; !this.log.includes(text); tries++) {
      if (tries === 500) throw new Error(`not in the log: ${text}\nbut this:\n${this.log}`);
      await new Promise((done) => setTimeout(done, 10));
    }
  }

  /** The files in which state is kept: their paths. */
  stateFiles() {
    const entries = readdirSync(this.#stateFolder, { recursive: true, withFileTypes: true });
    return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  }

  /** The databases of the objects that were ever asked. Open them only while the Worker is down. */
  databaseFiles() {
    return this.stateFiles().filter((path) => /\/[0-9a-f]{64}\.sqlite$/.test(path));
  }

  get #stateFolder() {
    return join(this.#folder, "state");
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

/** Waits for the line in which workerd says on which port it listens. */
async function listening(child) {
  const timer = setTimeout(() => child.kill("SIGKILL"), START_TIMEOUT_MS);
  try {
    for await (const line of createInterface({ input: child.stdio[3] })) {
      const message = JSON.parse(line);
      if (message.event === "listen") return message.port;
    }
  } finally {
    clearTimeout(timer);
  }
  throw new Error("it ended before it listened");
}

function configText({ policies, token, keySecret, build }, folder, stateFolder) {
  const bundle = fileURLToPath(new URL(`../../build/${BUNDLES[build]}`, import.meta.url));
  const wasm = existsSync(bundle) && readdirSync(bundle).find((name) => name.endsWith(".wasm"));
  if (!wasm) throw new Error(`There is no Worker in ${bundle}. Run: npm test -- http`);
  const embed = (name) => `embed ${text(relative(folder, join(bundle, name)))}`;
  const secrets = Object.entries({ TOLLGATE_TOKEN: token, TOLLGATE_KEY_SECRET: keySecret })
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `(name = ${text(name)}, text = ${text(value)}),`);
  const [, date] = readFileSync(new URL("../../wrangler.toml", import.meta.url), "utf8").match(/^compatibility_date = (".*")/m);
  return `
    using Workerd = import "/workerd/workerd.capnp";
    const config :Workerd.Config = (
      services = [
        (name = "main", worker = .tollgate),
        (name = "objects", disk = (path = ${text(stateFolder)}, writable = true)),
      ],
      sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
    );
    const tollgate :Workerd.Worker = (
      modules = [
        (name = "entry.js", esModule = ${embed("entry.js")}),
        (name = ${text(wasm)}, wasm = ${embed(wasm)}),
      ],
      compatibilityDate = ${date},
      bindings = [
        (name = "KEYS", durableObjectNamespace = "KeyObject"),
        ${policies === null ? "" : `(name = "POLICIES", json = ${text(JSON.stringify(policies))}),`}
        ${secrets.join("\n        ")}
      ],
      durableObjectNamespaces = [(className = "KeyObject", uniqueKey = ${text(OBJECTS)}, enableSql = true)],
      durableObjectStorage = (localDisk = "objects"),
    );
  `;
}

/** A string as Cap'n Proto's schema language has it; JSON's escapes of ASCII are the same. */
const text = JSON.stringify;

const BUNDLES = { deployed: "bundle", "test-clock": "bundle-test-clock" };
const OBJECTS = "tollgate-KeyObject";
const WORKERD = createRequire(import.meta.url)("workerd").default;
/** It takes a tenth of a second where nothing else runs. */
const START_TIMEOUT_MS = 30_000;
/** It takes a few milliseconds. */
const ANSWER_TIMEOUT_MS = 20_000;

const all = new Set();
after(() => Promise.all([...all].map((tollgate) => tollgate.stop())));
const abandonAll = () => [...all].forEach((tollgate) => tollgate.abandon());
process.on("exit", abandonAll);
process.on("uncaughtExceptionMonitor", abandonAll); // the test runner ends without "exit" when a file throws outside its tests
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(1));
