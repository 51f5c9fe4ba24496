// Runs Workers on workerd, the runtime itself, each in its own process with its objects in SQLite files in a folder of
// its own. Knows nothing about their answers.
//
//   const runtime = new Runtime();
//   await runtime.start(tollgate({ policies, token, keySecret, build: "deployed" })); // now it answers on runtime.port
//   await runtime.kill(); await runtime.start(worker); // on the same state
//   await runtime.remove();
//
// Whatever was started is ended and removed when this process ends, however it ends.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join, relative } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export class Runtime {
  #folder = mkdtempSync(join(tmpdir(), "tollgate-http-"));
  #process;
  #closed;

  /** Where it listens. */
  port;

  /** The output of the Worker and the runtime, over all starts. */
  log = "";

  constructor() {
    all.add(this);
    mkdirSync(this.stateFolder);
  }

  /**
   * Starts `{ modules, bindings, keepsObjects, before, beside }` on the existing state. `modules` are the paths of the files by the
   * names by which they import each other; the first is the main one. A binding is as in workerd's schema, without
   * its name. With `keepsObjects` no object is evicted, as it would be after 10 idle seconds.
   * `before` is another Worker, `{ modules, bindings }`, that is called instead; `service = "main"` binds this one to it.
   * `beside` are further Workers by name, which `before` may call too. `flags` are compatibility flags, which may be
   * experimental, `v8Flags` those of the JavaScript engine. `inspector` is the port of its debugger, if there is to be one.
   */
  async start(worker) {
    const config = join(this.#folder, "config.capnp");
    writeFileSync(config, configText(worker, this.#folder, this.stateFolder));
    // Not node_modules/.bin/workerd: that is a wrapper, and killing it would leave workerd alive.
    const child = spawn(
      WORKERD,
      [
        "serve",
        config,
        "--control-fd=3",
        ...(worker.flags || worker.points ? ["--experimental"] : []),
        ...(worker.inspector ? [`--inspector-addr=127.0.0.1:${worker.inspector}`] : []),
      ],
      {
        stdio: ["ignore", "pipe", "pipe", "pipe"],
      },
    );
    this.#process = child;
    this.#closed = once(child, "close"); // after this nothing more is printed
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => (this.log += text));
    }
    this.port = await listening(child).catch(async (error) => {
      await this.kill();
      throw new Error(`workerd did not start: ${error.message}\n${this.log}`);
    });
  }

  /** The process's number. */
  get pid() {
    return this.#process.pid;
  }

  /** The folder of the objects. */
  get stateFolder() {
    return join(this.#folder, "state");
  }

  /** Ends the process as a power cut would. All of its output is in `log` afterwards. */
  async kill() {
    this.#process?.kill("SIGKILL");
    await this.#closed;
  }

  async remove() {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
    all.delete(this);
  }

  /** The part of {@link remove} that an exiting process can do. */
  abandon() {
    this.#process?.kill("SIGKILL");
    rmSync(this.#folder, { recursive: true, force: true });
  }

  static removeAll() {
    return Promise.all([...all].map((runtime) => runtime.remove()));
  }
}

/**
 * The built Worker; `build` is "deployed", "test-clock" or "next-format". A `token` or `keySecret` of `null` is not set at all. With the
 * path of a file `around`, that is the main module, and imports the built one as `./entry.js`. `before`, `flags` and `v8Flags` are
 * what {@link Runtime.start} says.
 */
export function tollgate({ build, around = null, flags, v8Flags, before, ...settings }) {
  const bundle = fileURLToPath(new URL(`../../build/${BUNDLES[build]}`, import.meta.url));
  const wasm = existsSync(bundle) && readdirSync(bundle).find((name) => name.endsWith(".wasm"));
  if (!wasm) throw new Error(`There is no Worker in ${bundle}. Run: npm test -- http`);
  const built = Object.fromEntries(["entry.js", wasm].map((name) => [name, join(bundle, name)]));
  const modules = around === null ? built : { [basename(around)]: around, ...built };
  const { points, queue } = settings;
  return { modules, bindings: bindings(settings), flags, v8Flags, before, points, queue };
}

/**
 * The bindings from `wrangler.toml` and `wrangler secret put`, without those that are `null`. `token` is one that may consume and
 * adjust; `tokens` and `sessions` are an object, as in `wrangler.toml`, or a text, as a secret is; `grantKeys` and `captchaSecret` a text. `registry` says whether there
 * is a registry of policies, `keys` and `registry` may also say what is bound in their place, `points` the port of a server that gets what is written to Analytics Engine, and `sample` the share of it.
 * `webhookUrl`, `webhookSecret` and `noticeKeys` say where notices go, and `queue` is the port of a server that gets what is sent to the queue.
 */
export function bindings(settings) {
  const { policies, token, keySecret, tokens = null, grantKeys = null, audience = null } = settings;
  const { sessions = null, captchaSecret = null, registry = false, sample = null, points = null } = settings;
  const { webhookUrl = null, webhookSecret = null, noticeKeys = null, queue = null } = settings;
  const { keys = `durableObjectNamespace = "KeyObject"` } = settings;
  const bindings = {};
  if (keys !== null) bindings.KEYS = keys;
  if (registry) bindings.REGISTRY = registry === true ? `durableObjectNamespace = "PolicyRegistry"` : registry;
  if (points !== null) bindings.METRICS = `analyticsEngine = "points"`;
  if (sample !== null) bindings.TOLLGATE_METRICS_SAMPLE = textOrJson(sample);
  if (queue !== null) bindings.NOTICES = `queue = "queue"`;
  if (webhookUrl !== null) bindings.TOLLGATE_WEBHOOK_URL = `text = ${text(webhookUrl)}`;
  if (webhookSecret !== null) bindings.TOLLGATE_WEBHOOK_SECRET = `text = ${text(webhookSecret)}`;
  if (noticeKeys !== null) bindings.TOLLGATE_NOTICE_KEYS = textOrJson(noticeKeys);
  if (policies !== null) bindings.POLICIES = `json = ${text(JSON.stringify(policies))}`;
  if (token !== null || tokens !== null) bindings.TOLLGATE_TOKENS = textOrJson(withToken(token, tokens));
  if (sessions !== null) bindings.TOLLGATE_SESSIONS = textOrJson(sessions);
  if (captchaSecret !== null) bindings.TURNSTILE_SECRET = `text = ${text(captchaSecret)}`;
  if (grantKeys !== null) bindings.TOLLGATE_GRANT_KEYS = `text = ${text(grantKeys)}`;
  if (audience !== null) bindings.TOLLGATE_AUDIENCE = `text = ${text(audience)}`;
  if (keySecret !== null) bindings.TOLLGATE_KEY_SECRET = `text = ${text(keySecret)}`;
  return bindings;
}

/** The table `tokens`, plus the token that this process sends, unless it is there with its own rights. */
function withToken(token, tokens) {
  if (token === null || typeof tokens === "string") return tokens;
  const entry = entryOf(token, "consume", "adjust");
  const isThere = Object.values(tokens ?? {}).some(({ sha256 }) => sha256 === entry.sha256);
  return isThere ? tokens : { ...tokens, tests: entry };
}

/** The entry of a token in TOLLGATE_TOKENS. */
export function entryOf(token, ...scopes) {
  return { sha256: createHash("sha256").update(token).digest("hex"), scopes };
}

const textOrJson = (value) =>
  typeof value === "string" ? `text = ${text(value)}` : `json = ${text(JSON.stringify(value))}`;

/**
 * Two versions side by side: the objects of one, and the frontends of both. Each is an argument of {@link tollgate}. Requests go to
 * the frontend of `objects`, or, with the header `x-version: other`, to that of `other`.
 */
export function rollOut({ objects, other }) {
  const frontend = tollgate(other);
  frontend.bindings.KEYS = `durableObjectNamespace = (className = "KeyObject", serviceName = "main")`;
  if (frontend.bindings.REGISTRY)
    frontend.bindings.REGISTRY = `durableObjectNamespace = (className = "PolicyRegistry", serviceName = "main")`;
  const router = { "router.mjs": fileURLToPath(new URL("router.mjs", import.meta.url)) };
  const bindings = { MAIN: `service = "main"`, OTHER: `service = "other"` };
  return { ...tollgate(objects), before: { modules: router, bindings }, beside: { other: frontend } };
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

function configText(
  { modules, bindings, keepsObjects = false, flags, v8Flags = [], before, beside = {}, points, queue },
  folder,
  stateFolder,
) {
  const module = ([name, path]) => {
    const kind = name.endsWith(".wasm") ? "wasm" : "esModule";
    return `(name = ${text(name)}, ${kind} = embed ${text(relative(folder, path))}),`;
  };
  const [, date] = readFileSync(new URL("../../wrangler.toml", import.meta.url), "utf8").match(
    /^compatibility_date = (".*")/m,
  );
  const worker = ({ modules, bindings, flags = [] }) => `
      modules = [
        ${Object.entries(modules).map(module).join("\n        ")}
      ],
      compatibilityDate = ${date},
      compatibilityFlags = [${flags.map(text).join(", ")}],
      bindings = [
        ${Object.entries(bindings)
          .map(([name, value]) => `(name = ${text(name)}, ${value}),`)
          .join("\n        ")}
      ],
  `;
  return `
    using Workerd = import "/workerd/workerd.capnp";
    const config :Workerd.Config = (
      v8Flags = [${v8Flags.map(text).join(", ")}],
      services = [
        (name = "main", worker = .worker),
        (name = "internet", network = (allow = ["local"])),
        ${points ? `(name = "points", external = (address = "127.0.0.1:${points}", http = ())),` : ""}
        ${queue ? `(name = "queue", external = (address = "127.0.0.1:${queue}", http = ())),` : ""}
        (name = "objects", disk = (path = ${text(stateFolder)}, writable = true)),
        ${before ? `(name = "before", worker = (${worker(before)})),` : ""}
        ${Object.entries(beside).map(([name, other]) => `(name = ${text(name)}, worker = (${worker(other)})),`)}
      ],
      sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "${before ? "before" : "main"}")],
    );
    const worker :Workerd.Worker = (${worker({ modules, bindings, flags })}
      durableObjectNamespaces = [
        (className = "KeyObject", uniqueKey = ${text(OBJECTS)}, enableSql = true, preventEviction = ${keepsObjects}),
        ${bindings.REGISTRY ? `(className = "PolicyRegistry", uniqueKey = ${text(REGISTRY)}, enableSql = true),` : ""}
      ],
      durableObjectStorage = (localDisk = "objects"),
    );
  `;
}

/** A string in Cap'n Proto's schema language; JSON's escapes of ASCII are the same. */
const text = JSON.stringify;

const BUNDLES = { deployed: "bundle", "test-clock": "bundle-test-clock", "next-format": "bundle-next-format" };
const OBJECTS = "tollgate-KeyObject";
const REGISTRY = "tollgate-PolicyRegistry";
const WORKERD = createRequire(import.meta.url)("workerd").default;
/** It takes a tenth of a second on an idle machine. */
const START_TIMEOUT_MS = 30_000;

const all = new Set();
const abandonAll = () => {
  for (const runtime of all) runtime.abandon();
};
process.on("exit", abandonAll);
process.on("uncaughtExceptionMonitor", abandonAll); // the test runner ends without "exit" when a file throws outside its tests
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(1));
