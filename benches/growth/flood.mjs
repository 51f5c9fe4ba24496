// A flood of a million distinct keys through one isolate on workerd: its effect on a key that is below its limit, on one that is over
// it, and on the memory of the process.
//
//   npm run growth -- workerd                    six minutes
//   npm run growth -- workerd --keys 100000      fewer keys: four
//
// Four things are asked for in turn, round after round: the two keys alone, of an isolate that has met as many requests, but always about
// the same keys, and of the one that the flood passes through; then, of that, the two keys beside as many requests as a flood has, about
// keys that are always the same; and beside a flood of keys that never come again. Between the rounds the rest of the million pass, as fast
// as they can. It fails if the key that is over its limit is ever granted anything, or the other refused.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { bindings, Runtime } from "../../tests/http/runtime.mjs";
import { bundled } from "../service/bundled.mjs";
import { Client, post } from "../service/load.mjs";
import { quartiles } from "../service/measure.mjs";

const POLICIES = {
  calm: { rate: 10_000, period: "1s" },
  spent: { rate: 1, period: "1day", capacity: 1 },
  // Each key is refused from its first request on.
  flooded: { rate: 1, period: "1day", capacity: 1, initial: 0 },
  // The same, but nothing is kept of them: each request takes the way of one about a new key.
  uncached: { rate: 1, period: "1day", capacity: 1, initial: 0, refusal_cache: "0s" },
};
const SETTINGS = { policies: POLICIES, token: null, keySecret: "the-key-secret-of-the-benchmarks" };
const consume = (policy, key, status) => ({ bytes: post("/v1/consume", "", { policy, key, cost: 1 }), status });
const CALM = [consume("calm", "below@example.com", 200)];
const SPENT = [consume("spent", "over@example.com", 429)];

const { values } = parseArgs({
  options: { keys: { type: "string", default: "1000000" }, rounds: { type: "string", default: "15" } },
});
const [KEYS, ROUNDS] = [Number(values.keys), Number(values.rounds)];

/** How long a round takes, and how many requests per second the two keys and the others get. */
const SECONDS = 3;
const CALM_PER_SECOND = 200;
const SPENT_PER_SECOND = 20;
const FLOOD_PER_SECOND = 200;

/** How many keys are in flight at once between the rounds. */
const AT_ONCE = 100;

const nothing = async () => {};
/** The two isolates differ only in this: one gets a new key each time. */
const sameKeys = { policy: "uncached", next: () => 0 };
const newKeys = {
  policy: "flooded",
  count: 0,
  next(count) {
    this.count += count;
    return this.count - count;
  },
};
const MODES = {
  "never flooded": ({ other }) => round(other, nothing),
  "no other requests": ({ flooded }) => round(flooded, nothing),
  "the same keys": ({ flooded }) => round(flooded, () => offered(flooded, sameKeys)),
  "a flood of keys": ({ flooded }) => round(flooded, () => offered(flooded, newKeys)),
};

async function main() {
  const modules = await bundled(new URL("flooded.mjs", import.meta.url));
  const services = { other: await started(modules), flooded: await started(modules) };
  const p99 = Object.fromEntries(Object.keys(MODES).map((name) => [name, []]));
  for (const mode of Object.values(MODES)) await mode(services); // to warm up
  console.log("keys so far   memory of the process, MB");
  tellMemory(services.flooded);
  for (let number = 1; number <= ROUNDS; number++) {
    const count = Math.round((KEYS * number) / ROUNDS) - newKeys.count;
    await pour(services.other, sameKeys, count);
    await pour(services.flooded, newKeys, count);
    tellMemory(services.flooded);
    for (const [name, mode] of Object.entries(MODES)) p99[name].push(await mode(services));
  }
  for (const { runtime } of Object.values(services)) await runtime.remove();
  report(p99);
}

async function started(modules) {
  const runtime = new Runtime();
  await runtime.start({ modules, bindings: bindings(SETTINGS), keepsObjects: true });
  const [calm, spent, flood] = [4, 2, 8].map((connections) => new Client(runtime.port, connections));
  await spent.each([{ ...SPENT[0], status: 200 }]); // all that it has
  return { runtime, calm, spent, flood };
}

/** The 99th percentile of response times for the key below its limit, in milliseconds. */
async function round({ calm, spent }, others) {
  const [{ took }] = await Promise.all([
    calm.offer(CALM, CALM_PER_SECOND, SECONDS),
    spent.offer(SPENT, SPENT_PER_SECOND, SECONDS),
    others(),
  ]);
  took.sort((a, b) => a - b);
  return took[Math.floor(took.length * 0.99)];
}

/** Requests for one key each. */
function offered({ flood }, keys) {
  const requests = Array.from({ length: SECONDS * FLOOD_PER_SECOND }, () => about(keys, 1));
  return flood.offer(requests, FLOOD_PER_SECOND, SECONDS);
}

/** Requests this many keys, as fast as it can. */
async function pour({ spent, flood }, keys, count) {
  const requests = Array.from({ length: Math.max(0, Math.ceil(count / AT_ONCE)) }, () => about(keys, AT_ONCE));
  const asked = { isOver: false };
  const all = flood.each(requests).then(() => (asked.isOver = true));
  while (!asked.isOver) await spent.each(SPENT);
  await all;
}

function about(keys, count) {
  return { bytes: post("/flood", "", { policy: keys.policy, first: keys.next(count), count }), status: 200 };
}

function tellMemory({ runtime }) {
  const [, kilobytes] = readFileSync(`/proc/${runtime.pid}/status`, "utf8").match(/^VmRSS:\s+(\d+)/m);
  console.log(`${String(newKeys.count).padStart(11)}   ${(Number(kilobytes) / 1_024).toFixed(0)}`);
}

function report(p99) {
  const line = ([name, ...cells]) => console.log(name.padEnd(20) + cells.map((cell) => cell.padStart(28)).join(""));
  console.log("\nThe 99th percentile of a key below its limit: median and quartiles of the rounds");
  line(["beside it", "ms", "to that never flooded", "to that without", "to that of the same keys"]);
  for (const [name, all] of Object.entries(p99)) {
    const ratios = ["never flooded", "no other requests", "the same keys"].map((other) =>
      all.map((ms, i) => ms / p99[other][i]),
    );
    line([name, ...[all, ...ratios].map(text)]);
  }
}

function text(values) {
  const [low, middle, high] = quartiles(values).map((value) => value.toFixed(2));
  return `${middle} (${low} to ${high})`;
}

await main();
