// Where the processor's time of a grant goes, function by function, in several builds of the Worker on workerd, with Tollgate inside the
// Worker.
//   scripts/build-worker && cp -r build/worker build/worker-before, then the other, then:
//   node_modules/.bin/node benches/builds/profile.mjs build/worker-before build/worker
// Shares of all samples, so that a busy machine changes little.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { basename, resolve } from "node:path";
import { build } from "esbuild";
import { bindings, Runtime } from "../../tests/http/runtime.mjs";

const SECONDS = 6;
/** Functions with less than this share in all builds are omitted. */
const LEAST = 0.003;
const SETTINGS = {
  policies: { busy: { rate: 10_000, period: "1s" } },
  token: null,
  keySecret: "the-key-secret-of-the-benchmarks",
};
const BODY = JSON.stringify({ policy: "busy", key: "user@example.com" });

async function main() {
  const folders = process.argv.slice(2);
  if (folders.length === 0) throw new Error("name one folder or more that scripts/build-worker has made");
  const all = [];
  for (const folder of folders) all.push(await profile(folder));
  const names = [...new Set(all.flatMap((shares) => [...shares.keys()]))];
  const most = (name) => Math.max(...all.map((shares) => shares.get(name) ?? 0));
  console.log(folders.map((folder) => basename(folder).padStart(16)).join(""));
  for (const name of names.sort((a, b) => most(b) - most(a)).filter((name) => most(name) >= LEAST)) {
    const shares = all.map((shares) => `${(100 * (shares.get(name) ?? 0)).toFixed(1)} %`.padStart(16));
    console.log(`${shares.join("")}  ${name}`);
  }
}

/** The share of each function in the samples that were not idle. */
async function profile(folder) {
  const runtime = new Runtime();
  const inspector = await freePort();
  const modules = await embedded(resolve(folder));
  await runtime.start({ modules, bindings: bindings(SETTINGS), keepsObjects: true, inspector });
  await load(runtime.port);
  const session = await Session.of(inspector);
  await session.send("Profiler.enable");
  await session.send("Profiler.setSamplingInterval", { interval: 250 });
  await session.send("Profiler.start");
  await load(runtime.port);
  const { nodes } = (await session.send("Profiler.stop")).profile;
  session.close();
  await runtime.remove();
  const nameOf = namesIn(folder);
  const hits = new Map();
  for (const { callFrame, hitCount } of nodes) {
    const name = nameOf(callFrame.functionName);
    if (name !== "(idle)") hits.set(name, (hits.get(name) ?? 0) + (hitCount ?? 0));
  }
  const total = [...hits.values()].reduce((sum, count) => sum + count, 0);
  const inWasm = [...hits].filter(([name]) => name.startsWith(WASM)).reduce((sum, [, count]) => sum + count, 0);
  return new Map([["all of the WebAssembly", inWasm], ...hits].map(([name, count]) => [name, count / total]));
}

/** The functions of WebAssembly by the names in names.txt, without the hashes that differ from build to build. */
function namesIn(folder) {
  const lines = readFileSync(`${folder}/names.txt`, "utf8").split("\n");
  const names = new Map(lines.map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1)]));
  return (name) => {
    const [, number] = name.match(/^wasm-function\[(\d+)\]$/) ?? [];
    if (number === undefined) return name || "(anonymous)";
    return WASM + (names.get(number) ?? number).replace(/::h[0-9a-f]{16}|\[[0-9a-f]{16}\]/g, "");
  };
}

/** The Worker of benches/service/contestants/embedded.mjs with this build, not minified. */
async function embedded(folder) {
  const outdir = `${folder}/profile/`;
  mkdirSync(outdir, { recursive: true });
  writeFileSync(
    `${outdir}main.mjs`,
    `import { tollgate } from "../embedded.mjs";
    export { KeyObject } from "../key_object.mjs";
    export default {
      fetch: async (request, env) => (await tollgate(env).consume(await request.json())).response(),
    };`,
  );
  const { outputFiles } = await build({
    entryPoints: [`${outdir}main.mjs`],
    bundle: true,
    format: "esm",
    external: ["cloudflare:*"],
    loader: { ".wasm": "copy" },
    outdir,
    write: false,
  });
  for (const { path, contents } of outputFiles) writeFileSync(path, contents);
  const paths = outputFiles.map(({ path }) => path).sort((a, b) => b.endsWith(".js") - a.endsWith(".js"));
  return Object.fromEntries(paths.map((path) => [basename(path), path]));
}

/** Sixteen at a time, repeatedly. */
async function load(port) {
  const ends = performance.now() + SECONDS * 1_000;
  const each = async () => {
    while (performance.now() < ends) {
      const answer = await fetch(`http://127.0.0.1:${port}`, { method: "POST", body: BODY });
      if (!(await answer.json()).allowed) throw new Error(`an answer was ${answer.status}`);
    }
  };
  await Promise.all(Array.from({ length: 16 }, each));
}

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

/** A session of the runtime's inspector. */
class Session {
  #socket;
  #answers = new Map();

  static async of(port) {
    const [{ webSocketDebuggerUrl }] = await (await fetch(`http://127.0.0.1:${port}/json`)).json();
    const session = new Session();
    session.#socket = new WebSocket(webSocketDebuggerUrl);
    session.#socket.onmessage = ({ data }) => {
      const { id, result } = JSON.parse(data);
      session.#answers.get(id)?.(result);
    };
    await new Promise((opened, failed) => Object.assign(session.#socket, { onopen: opened, onerror: failed }));
    return session;
  }

  send(method, params) {
    const id = this.#answers.size + 1;
    this.#socket.send(JSON.stringify({ id, method, params }));
    return new Promise((answered) => this.#answers.set(id, answered));
  }

  close() {
    this.#socket.close();
  }
}

const WASM = "wasm ";

await main();
