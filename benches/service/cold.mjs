// What a cold start costs: workerd is started over and over, with an empty Worker, with a limiter written by hand and with
// Tollgate in a Worker, and asked twice. Half a minute on an idle machine.
//
//   npm run bench -- --cold
//
// Until it listens, the modules are compiled; in the first answer the settings are read, and the object wakes and makes
// its database. The empty Worker answers with a constant.
import { fileURLToPath } from "node:url";
import { bindings, Runtime } from "../../tests/http/runtime.mjs";
import { bundled } from "./bundled.mjs";
import { Client, post } from "./load.mjs";
import { cpuMicros, quartiles } from "./measure.mjs";

const TOKEN = "the-bearer-token-of-the-benchmarks";
const SETTINGS = {
  policies: { api: { rate: 100, period: "1m" } },
  token: TOKEN,
  keySecret: "the-key-secret-of-the-benchmarks",
};
const contestant = (file) => new URL(`contestants/${file}`, import.meta.url);
const CONTESTANTS = {
  "an empty Worker": { "empty.mjs": fileURLToPath(contestant("empty.mjs")) },
  "JavaScript, memory only": await bundled(contestant("memory.mjs")),
  "Tollgate, embedded": await bundled(contestant("embedded.mjs")),
};
const STARTS = 40;
const COLUMNS = ["listens ms", "first ms", "second ms", "CPU ms"];

const seen = Object.fromEntries(Object.keys(CONTESTANTS).map((name) => [name, COLUMNS.map(() => [])]));
for (let start = 0; start < STARTS; start++) {
  for (const [name, modules] of Object.entries(CONTESTANTS)) {
    for (const [column, value] of (await coldStart(modules)).entries()) seen[name][column].push(value);
  }
}
console.log(`median and quartiles of ${STARTS} starts; CPU is the process's until the first answer\n`);
console.log("".padEnd(26) + COLUMNS.map((name) => name.padStart(24)).join(""));
for (const [name, columns] of Object.entries(seen)) {
  const texts = columns.map((values) => {
    const [low, middle, high] = quartiles(values).map((value) => value.toFixed(1));
    return `${middle} (${low} to ${high})`.padStart(24);
  });
  console.log(name.padEnd(26) + texts.join(""));
}

/** The times of one start, in the order of the columns. */
async function coldStart(modules) {
  const runtime = new Runtime();
  const began = performance.now();
  await runtime.start({ modules, bindings: bindings(SETTINGS), keepsObjects: true });
  const listens = performance.now();
  const client = new Client(runtime.port, 1);
  const request = post("/v1/consume", TOKEN, { policy: "api", key: "alice", cost: 1 });
  const answer = await client.ask(request);
  const first = performance.now();
  const cpu = cpuMicros([runtime.pid]) / 1_000;
  await client.ask(request);
  const second = performance.now();
  await runtime.remove();
  if (!answer.startsWith("HTTP/1.1 200 ")) throw new Error(answer);
  return [listens - began, first - listens, second - first, cpu];
}
