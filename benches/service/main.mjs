// How many requests the whole service answers in a second, how long each takes and how many rows it writes: Tollgate as it
// is deployed, beside limiters written by hand. Each runs on workerd, in a process of its own with its objects on disk.
//
//   npm run bench                                            all: under three minutes, and a minute more for the first build
//   npm run bench -- --rounds 5 --seconds 2 --only refused   only the scenarios with this in their titles
//
// All are asked in turn, round after round, so that a machine that slows down slows all of them; what is compared is the ratio
// within each round. It fails if any answer is not the expected one, or the others do not answer what Tollgate does.
import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { bindings, Runtime, tollgate } from "../../tests/http/runtime.mjs";
import { bundled } from "./bundled.mjs";
import { Client, get, post } from "./load.mjs";
import { cpuMicros, quartiles } from "./measure.mjs";

const TOKEN = "the-bearer-token-of-the-benchmarks";
const POLICIES = {
  // One that grants as many requests as can come, one of a common size, and one that is spent; `write_ahead` is
  // Tollgate's default.
  busy: { rate: 10_000, period: "1s" },
  common: { rate: 100, period: "1s", capacity: 200 },
  spent: { rate: 1, period: "1day", capacity: 1 },
};
const SETTINGS = { policies: POLICIES, token: TOKEN, keySecret: "the-key-secret-of-the-benchmarks" };

const GRANT_KEY = randomBytes(32);

/** Each object has three files open, and many systems allow a process no more than 1 024. */
const MANY = 200;
const SCENARIOS = [
  { title: "one key, allowed", keys: 1, policy: "busy", status: 200 },
  { title: "one key, refused", keys: 1, policy: "spent", status: 429 },
  { title: `${MANY} keys, allowed`, keys: MANY, policy: "common", status: 200 },
  { title: `${MANY} keys, refused`, keys: MANY, policy: "spent", status: 429 },
];

const CONTESTANTS = [
  { name: "Tollgate, embedded", worker: { modules: await bundled("embedded.mjs"), bindings: bindings(SETTINGS) } },
  { name: "Tollgate, by HTTP", worker: tollgate({ ...SETTINGS, build: "deployed" }) },
  {
    name: "Tollgate, with a grant",
    worker: tollgate({
      ...SETTINGS,
      grantKeys: JSON.stringify({ k1: GRANT_KEY.toString("base64url") }),
      build: "deployed",
    }),
    credentialOf: grantOf,
  },
  { name: "Tollgate, by RPC", worker: tollgate({ ...SETTINGS, build: "deployed", before: byRpc() }) },
  { name: "JavaScript, a row per call", worker: written("row-per-call.mjs") },
  { name: "JavaScript, memory only", worker: written("memory.mjs") },
];

async function main() {
  const { rounds, seconds, connections, only } = options();
  const scenarios = SCENARIOS.filter(({ title }) => title.includes(only));
  if (scenarios.length === 0)
    throw new Error(
      `No scenario has ${JSON.stringify(only)} in its title: ${SCENARIOS.map(({ title }) => title).join("; ")}`,
    );
  await checkThatTheyAnswerAlike();
  for (const scenario of scenarios) {
    const lanes = await Promise.all(CONTESTANTS.map((contestant) => Lane.start(contestant, scenario, connections)));
    for (const lane of lanes) await lane.warmUp(seconds);
    for (let round = 0; round < rounds; round++) {
      const turn = round % lanes.length;
      for (const lane of [...lanes.slice(turn), ...lanes.slice(0, turn)]) await lane.run(seconds);
    }
    for (const lane of lanes) await lane.end();
    report(scenario, lanes);
  }
}

function options() {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "9" },
      seconds: { type: "string", default: "0.7" },
      connections: { type: "string", default: "16" },
      only: { type: "string", default: "" },
    },
  });
  const numbers = Object.entries(values)
    .filter(([name]) => name !== "only")
    .map(([name, value]) => [name, Number(value)]);
  for (const [name, number] of numbers) if (!(number > 0)) throw new Error(`--${name} takes a number above 0`);
  return { ...Object.fromEntries(numbers), only: values.only };
}

/** A contestant in its process, with what it was seen to do, round by round. */
class Lane {
  #runtime = new Runtime();
  #client;
  #scenario;
  #requests;

  /** Requests answered per second. */
  perSecond = [];
  /** Of all answers of a round, the milliseconds that half of them and 99 of 100 took at most. */
  p50 = [];
  p99 = [];
  /** Microseconds of processor time that the process took for a request; none where the system does not tell. */
  cpu = [];
  /** Over all rounds. */
  answers = 0;
  rows = 0;

  static async start({ name, worker, credentialOf = () => TOKEN }, scenario, connections) {
    const lane = new Lane();
    lane.name = name;
    lane.#scenario = scenario;
    lane.credentialOf = credentialOf;
    lane.#requests = Array.from({ length: scenario.keys }, (_, i) =>
      lane.consume(scenario.policy, `user-${i}@example.com`),
    );
    await lane.#runtime.start({ ...counting(worker), keepsObjects: true });
    lane.#client = new Client(lane.#runtime.port, connections);
    return lane;
  }

  async warmUp(seconds) {
    await this.#client.each(this.#requests, 200).catch(this.#explain); // wakes every object, and spends what is to be refused
    await this.#load(seconds);
    this.rows = -(await this.#rowsSoFar());
  }

  async run(seconds) {
    const cpuBefore = cpuMicros(this.#runtime.pid);
    const { took, perSecond } = await this.#load(seconds);
    const cpuAfter = cpuMicros(this.#runtime.pid);
    took.sort((a, b) => a - b);
    this.perSecond.push(perSecond);
    this.p50.push(took[Math.floor(took.length * 0.5)]);
    this.p99.push(took[Math.floor(took.length * 0.99)]);
    this.cpu.push((cpuAfter - cpuBefore) / took.length);
    this.answers += took.length;
  }

  consume(policy, key) {
    return post("/v1/consume", this.credentialOf(key), { policy, key, cost: 1 });
  }

  ask(request) {
    return this.#client.ask(request).catch(this.#explain);
  }

  async end() {
    this.rows += await this.#rowsSoFar();
    await this.#runtime.remove();
  }

  async #rowsSoFar() {
    return Number((await this.ask(get("/rows"))).split("\r\n\r\n")[1]);
  }

  #load(seconds) {
    return this.#client.load(this.#requests, this.#scenario.status, seconds).catch(this.#explain);
  }

  #explain = async (error) => {
    await this.#runtime.kill(); // now its log is whole
    throw new Error(`${this.name}: ${error.message}\nIts log:\n${this.#runtime.log}`);
  };
}

/** A grant for a key, as a backend makes it. */
function grantOf(key) {
  const exp = Math.floor(Date.now() / 1_000) + 3_600;
  const claims = { aud: "tollgate", exp, key, policies: Object.keys(POLICIES), verbs: ["consume"] };
  const parts = [{ alg: "HS256", kid: "k1" }, claims].map((part) =>
    Buffer.from(JSON.stringify(part)).toString("base64url"),
  );
  const text = parts.join(".");
  return `${text}.${createHmac("sha256", GRANT_KEY).update(text).digest("base64url")}`;
}

/** A contestant written by hand. */
function written(file) {
  const modules = Object.fromEntries([file, "token-bucket.mjs"].map((name) => [name, path(`contestants/${name}`)]));
  return { modules, bindings: bindings(SETTINGS) };
}

/** The Worker that is asked instead, and asks Tollgate by RPC. */
function byRpc() {
  const bindings = { MAIN: 'service = "main"', TOLLGATE: 'service = (name = "main", entrypoint = "Tollgate")' };
  return { modules: { "rpc.mjs": path("contestants/rpc.mjs") }, bindings };
}

/** The same Worker, with its written rows counted: for a microsecond or two of the hundreds that a request takes. */
function counting({ modules, ...others }) {
  const [[, main], ...rest] = Object.entries(modules);
  return {
    modules: { "counting.mjs": path("counting.mjs"), "counted.mjs": main, ...Object.fromEntries(rest) },
    ...others,
  };
}

/** A grant and a refusal: whatever the others say, Tollgate says the same. */
async function checkThatTheyAnswerAlike() {
  const scenario = { keys: 1, policy: "spent" };
  const lanes = await Promise.all(CONTESTANTS.map((contestant) => Lane.start(contestant, scenario, 1)));
  for (const status of ["200 OK", "429 Too Many Requests"]) {
    const answers = [];
    for (const lane of lanes) answers.push(partsOf(await lane.ask(lane.consume("spent", "user"))));
    const [ours, ...others] = answers;
    assert.equal(ours.status, `HTTP/1.1 ${status}`);
    others.forEach((theirs, i) => {
      const same = Object.fromEntries(Object.keys(theirs).map((part) => [part, ours[part]]));
      assert.deepEqual(same, theirs, `Tollgate does not answer as ${lanes[i + 1].name}`);
    });
  }
  for (const lane of lanes) await lane.end();
}

/** The status, each header and each member of the body, without the digits of moments and of times until them. */
function partsOf(answer) {
  const [head, body] = answer.replace(/\d{5,}/g, "…").split("\r\n\r\n");
  const [status, ...headers] = head.split("\r\n");
  const parts = { status };
  for (const [, name, value] of headers.map((header) => header.match(/^([^:]+): *(.*)/)))
    parts[`header ${name.toLowerCase()}`] = value;
  for (const [name, value] of Object.entries(JSON.parse(body.replaceAll("…", "0")))) parts[`member ${name}`] = value;
  delete parts["header content-length"];
  delete parts["header x-request-id"]; // its own for each request by HTTP
  return parts;
}

function report({ title }, lanes) {
  const [ours] = lanes;
  console.log(`\n${title}`);
  const head = ["requests/s", "p50 ms", "p99 ms", "CPU µs", "rows/1000"].map((text) => text.padStart(11)).join("");
  console.log(`${"".padEnd(NAME_LEN)}${head}  Tollgate's requests/s to theirs; its CPU to theirs`);
  lanes.forEach((lane) => {
    const numbers = [
      median(lane.perSecond).toFixed(0),
      median(lane.p50).toFixed(2),
      median(lane.p99).toFixed(2),
      Number.isNaN(lane.cpu[0]) ? "?" : median(lane.cpu).toFixed(0),
      ((1_000 * lane.rows) / lane.answers).toFixed(0),
    ];
    const comparison = lane === ours ? "" : `${ratio(ours.perSecond, lane.perSecond)}; ${ratio(ours.cpu, lane.cpu)}`;
    console.log(
      `${lane.name.padEnd(NAME_LEN)}${numbers.map((text) => text.padStart(11)).join("")}  ${comparison}`.trimEnd(),
    );
  });
}

/** The median of the ratios within each round, and the quartiles between which half of them lie. */
function ratio(ours, theirs) {
  const [low, middle, high] = quartiles(ours.map((our, i) => our / theirs[i])).map((value) => value.toFixed(2));
  return `${middle} (${low} to ${high})`;
}

function median(values) {
  return quartiles(values)[1];
}

function path(name) {
  return fileURLToPath(new URL(name, import.meta.url));
}

const NAME_LEN = 28;

await main();
