// Where the processor's time goes: Linux's perf samples workerd while it answers, with the names of V8's compiled functions; and PostgreSQL
// with the server in front of it, where it is installed.
//
//   npm run bench -- --profile                     the exact path, beside an object that keeps everything in memory
//   npm run bench -- --profile "one key, refused"  another scenario
//
// It prints the microseconds of a request by owner of the code, and those of Tollgate's own functions. Keeping names costs some.
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bindings, Runtime } from "../../tests/http/runtime.mjs";
import { bundled } from "./bundled.mjs";
import { CONTESTANTS, EXACT, TOKEN } from "./contestants.mjs";
import { Client, post } from "./load.mjs";
import { childrenOf, cpuMicros } from "./measure.mjs";
import { requestsOf, SCENARIOS } from "./scenarios.mjs";

const DATABASE = CONTESTANTS.find(({ name }) => name === "PostgreSQL and Node");
const PROFILED = {
  "Tollgate, embedded": () => onWorkerd("embedded.mjs"),
  "JavaScript, memory only": () => onWorkerd("memory.mjs"),
  ...(DATABASE.needs.path && { [DATABASE.name]: DATABASE.start }),
};
/** By the name of the program or of the function, the first that matches. */
const OWNERS = [
  ["PostgreSQL", /^postgres$/],
  ["WebAssembly", /wasm-function/],
  ["JavaScript", /^\[JIT\]/],
  ["the kernel", /^\[kernel|^\[vdso/],
  ["memory: malloc and free", /tcmalloc|TCMalloc|^libc/],
  ["V8 and its garbage", /v8::|Builtins_|cppgc::|heap::base/],
  ["HTTP and sockets", /hyper|tokio|mio::|http::|httparse|futures_util|llhttp|uv_|node::/],
  ["promises and events (kj)", /kj::/],
  ["calls of objects (capnp)", /capnp::/],
  ["the rest", /./],
];
const SECONDS = 8;
const FUNCTIONS = 30;

async function main([title = "one key, allowed"]) {
  if (spawnSync("perf", ["--version"]).status !== 0)
    throw new Error("There is no perf. For it, run: apt-get install linux-perf");
  const scenario = SCENARIOS.find((scenario) => scenario.title === title);
  if (!scenario || scenario.offered) throw new Error(`No scenario can be profiled that is called ${title}`);
  const profiles = [];
  for (const start of Object.values(PROFILED)) profiles.push(await profile(start, scenario));
  const line = (name, cells) => console.log(name.padEnd(28) + cells.map((cell) => String(cell).padStart(26)).join(""));
  console.log(`${title}: microseconds of the processor for a request`);
  line("", Object.keys(PROFILED));
  line(
    "all",
    profiles.map(({ micros }) => micros.toFixed(0)),
  );
  for (const [owner] of OWNERS)
    line(
      owner,
      profiles.map(({ samples }) => sum(samples.filter((sample) => ownerOf(sample) === owner)).toFixed(1)),
    );
  const own = profiles[0].samples.filter((sample) => ["WebAssembly", "JavaScript"].includes(ownerOf(sample)));
  const lists = [["Tollgate", own], ...profiles.slice(2).map(({ samples }) => [DATABASE.name, samples])];
  for (const [whose, samples] of lists) {
    console.log(`\nThe functions of ${whose} that take most`);
    for (const { micros, program, name } of samples.slice(0, FUNCTIONS))
      console.log(`${micros.toFixed(2).padStart(8)}  ${name}${whose === DATABASE.name ? ` (${program})` : ""}`);
  }
}

/** The time of a request and of each function in it, in microseconds. */
async function profile(start, scenario) {
  const folder = mkdtempSync(join(tmpdir(), "tollgate-profile-"));
  const data = join(folder, "perf.data");
  const { port, pids, remove } = await start();
  try {
    const client = new Client(port, 16);
    const requests = requestsOf(scenario, (policy, key) => post("/v1/consume", TOKEN, { policy, key, cost: 1 }));
    await client.each(requests.map((request) => ({ ...request, status: 200 })));
    await client.load(requests, SECONDS / 2); // until it is compiled
    const all = pids.flatMap((pid) => [pid, ...childrenOf(pid)]).join();
    const options = ["-F", "999", "-p", all, "-o", data, "--", "sleep", String(SECONDS - 1)];
    const perf = spawn("perf", ["record", ...options], { stdio: "ignore" });
    const before = cpuMicros(pids);
    const { took } = await client.load(requests, SECONDS);
    const micros = (cpuMicros(pids) - before) / took.length;
    if (perf.exitCode === null) await once(perf, "close");
    return { micros, samples: samplesOf(data, micros) };
  } finally {
    await remove();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function onWorkerd(file) {
  const folder = mkdtempSync(join(tmpdir(), "tollgate-profile-"));
  const runtime = new Runtime();
  const modules = await bundled(new URL(`contestants/${file}`, import.meta.url));
  // V8 writes the names of compiled functions where perf looks for them, and a log, which goes into the folder.
  const log = ["--no-logfile-per-isolate", `--logfile=${join(folder, "v8.log")}`];
  const v8Flags = ["--perf-basic-prof", "--interpreted-frames-native-stack", ...log];
  await runtime.start({ modules, bindings: bindings(EXACT), keepsObjects: true, v8Flags });
  const { port, pid } = runtime;
  const remove = async () => {
    rmSync(`/tmp/perf-${pid}.map`, { force: true });
    await runtime.remove();
    rmSync(folder, { recursive: true, force: true });
  };
  return { port, pids: [pid], remove };
}

function samplesOf(data, micros) {
  const options = ["--stdio", "-g", "none", "--no-children", "-F", "overhead,dso,sym", "--sort", "dso,sym", "-t", "\t"];
  const report = execFileSync("perf", ["report", "-i", data, ...options], {
    encoding: "utf8",
    maxBuffer: 2 ** 30,
    stdio: ["ignore", "pipe", "ignore"],
  });
  const lines = report.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return lines
    .map((line) => line.split("\t").map((part) => part.trim()))
    .map(([percent, program, name]) => {
      return { micros: (Number.parseFloat(percent) / 100) * micros, program, name: readable(name) };
    })
    .sort((a, b) => b.micros - a.micros);
}

/** WebAssembly functions have numbers: their names are in a file that the build writes. */
function readable(name) {
  const text = name.replace(/^\[[.k]\] /, "");
  const [, number] = text.match(/wasm-function\[(\d+)\]/) ?? [];
  return number === undefined ? text : `wasm-function ${NAMES.get(number) ?? number}`;
}

const NAMES = new Map(
  readFileSync(new URL("../../build/worker/names.txt", import.meta.url), "utf8")
    .split("\n")
    .map((line) => [
      line.slice(0, line.indexOf(":")),
      line.slice(line.indexOf(":") + 1).replace(/::h[0-9a-f]{16}$/, ""),
    ]),
);

function ownerOf({ program, name }) {
  return OWNERS.find(([, pattern]) => pattern.test(name) || pattern.test(program))[0];
}

function sum(samples) {
  return samples.reduce((sum, { micros }) => sum + micros, 0);
}

await main(process.argv.slice(2));
