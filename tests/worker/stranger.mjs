// A stranger's Workers with `tollgate/worker` in them: installed from the tarball, and run by the stranger's own tools on workerd.
//
//   const project = makeProject("plain", { main: "embedded.mjs", vars: { POLICIES } });
//   const worker = await wranglerDev([project]);
//   const { status, headers, body } = await worker.post("/embedded/consume", { policy: "api", key: "alice" });
//   await worker.kill(); // with its objects on disk, in the project
//
// Whatever is started is ended when the test file ends, however it ends.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { modules, stranger } from "../package/stranger.mjs";

export { run } from "../package/stranger.mjs";
export const TOKEN = "the-bearer-token-of-the-tests";
/** Its entry in TOLLGATE_TOKENS, with these rights. */
export const tokens = (...scopes) => ({
  tests: { sha256: createHash("sha256").update(TOKEN).digest("hex"), scopes },
});
export const KEY_SECRET = "the-key-secret-of-the-tests";

export const { folder } = await stranger({
  beside: [
    "vite",
    "vitest",
    "@cloudflare/vite-plugin",
    "@cloudflare/vitest-plugin",
    "hono",
    "hono-rate-limiter",
    "wrangler",
  ],
});
cpSync(fileURLToPath(new URL("programs", import.meta.url)), folder, { recursive: true });

/**
 * A folder with a configuration for Wrangler: an object namespace for each of `classes`, `KEYS` for `KeyObject`, and what else
 * `config` has.
 */
export function makeProject(name, { main, classes = { KEYS: "KeyObject" }, ...config }) {
  const project = join(folder, name);
  mkdirSync(project, { recursive: true });
  const bindings = Object.entries(classes).map(([name, class_name]) => ({ name, class_name }));
  const whole = {
    name,
    main: `../${main}`,
    compatibility_date: "2026-10-01", // as early as the runtime in the plugin of Vite
    ...(bindings.length > 0 && {
      durable_objects: { bindings },
      migrations: [{ tag: "v1", new_sqlite_classes: bindings.map(({ class_name }) => class_name) }],
    }),
    ...config,
  };
  writeFileSync(join(project, "wrangler.json"), JSON.stringify(whole));
  return project;
}

/** Runs projects in one `wrangler dev`: the first is called, and may have bindings to the others. Their state is in the first. */
export function wranglerDev([first, ...others]) {
  const config = (project) => ["wrangler.json", "wrangler.toml"].map((name) => join(project, name)).find(existsSync);
  const configs = [first, ...others].flatMap((project) => ["-c", config(project)]);
  return serve("wrangler", ["dev", ...configs, "--port", "0", "--inspector-port", "0", "--persist-to", "state"], first);
}

/** Runs a development server, and waits until it reports where it listens. */
export async function serve(command, args, cwd) {
  const child = spawn(join(modules, ".bin", command), args, {
    cwd,
    detached: true, // a group of its own, with the runtime
    env: { ...process.env, ...ENVIRONMENT },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const server = new Server(child);
  started.add(server);
  await server.listening();
  return server;
}

class Server {
  log = "";
  #child;
  #closed;
  #address;

  constructor(child) {
    this.#child = child;
    this.#closed = once(child, "close");
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => (this.log += text));
    }
  }

  async listening() {
    for (let tries = 0; !this.#address; tries++) {
      this.#address = this.log.match(/(?:Ready on|Local:) +(http:\/\/[\w.:]+)/)?.[1];
      if (tries === 600 || this.#child.exitCode !== null) throw new Error(`it did not start:\n${this.log}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  }

  /** Waits until the log has this: it arrives a moment after the answer. */
  async logged(text) {
    for (let tries = 0; !this.log.includes(text); tries++) {
      if (tries === 200) throw new Error(`not in the log: ${text}\nbut this:\n${this.log}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  }

  /** Where it listens. */
  get address() {
    return this.#address;
  }

  async send(path, { body, headers = {}, method = body === undefined ? "GET" : "POST" } = {}) {
    const response = await fetch(this.#address + path, {
      method,
      redirect: "manual",
      headers: { ...(body !== undefined && { "content-type": "application/json" }), ...headers },
      body,
    });
    return response;
  }

  /** Sends JSON, or text unchanged, and reads the answer. */
  async post(path, value, headers) {
    const body = typeof value === "string" ? value : JSON.stringify(value);
    const response = await this.send(path, { body, headers });
    const text = await response.text();
    const isJson = /json/.test(response.headers.get("content-type"));
    return { status: response.status, headers: response.headers, text, body: isJson ? JSON.parse(text) : text };
  }

  /** Ends it as a power cut would. */
  async kill() {
    started.delete(this);
    this.abandon();
    await this.#closed;
  }

  abandon() {
    try {
      process.kill(-this.#child.pid, "SIGKILL");
    } catch {} // it has ended already
  }
}

export const ENVIRONMENT = {
  PATH: `${join(modules, ".bin")}:${process.env.PATH}`,
  NO_COLOR: "1",
  CI: "1",
  CLOUDFLARE_CF_FETCH_ENABLED: "false",
  WRANGLER_SEND_METRICS: "false",
  WRANGLER_SEND_ERROR_REPORTS: "false",
  WRANGLER_LOG_PATH: join(folder, "logs"),
  WRANGLER_REGISTRY_PATH: join(folder, "registry"),
};

const started = new Set();
const abandonAll = () => {
  for (const server of started) server.abandon();
};
after(() => Promise.all([...started].map((server) => server.kill())));
process.on("exit", abandonAll);
process.on("uncaughtExceptionMonitor", abandonAll);
