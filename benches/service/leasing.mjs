// How many decisions a Node server makes in a second: by leases of the npm package, and by asking Redis each time.
//
//   npm run bench -- --leasing [--rounds 7] [--seconds 3]
//
// Both are exact: tokens are debited before they are granted. Both are called in this process, this many at a time, and in turn; the ratio is
// within each round. It fails if more is granted than is allowed. The package must be built: scripts/build-package.
import { readFileSync } from "node:fs";
import { setImmediate } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Redis } from "ioredis";
import { tollgate } from "../../tests/http/runtime.mjs";
import { redis } from "./hosts/databases.mjs";
import { onWorkerd } from "./hosts/workerd.mjs";

const { Client } = await import("../../build/package/client.js");
const { LeasingLimiter } = await import("../../build/package/leases.js");

const TOKEN = "the-bearer-token-of-the-benchmarks";
/** More than can be requested, a small part of the requests, and one that is spent. */
const POLICIES = {
  busy: { rate: 20_000_000, seconds: 1, capacity: 20_000_000 },
  hot: { rate: 1_000, seconds: 1, capacity: 1_000 },
  spent: { rate: 1, seconds: 86_400, capacity: 1 },
};
/** Until each key has its lease: as many objects are made as there are keys. A key is asked four times at once, as in a busy server. */
const WARM_UP_S = 5;
/** Requests that a server answers at once. */
const AT_ONCE = 64;
const SCENARIOS = [
  { title: "one key, allowed", policy: "busy", keys: 1 },
  { title: "20 keys, allowed", policy: "busy", keys: 20 },
  { title: "one key, many times what is allowed", policy: "hot", keys: 1 },
  { title: "one key, refused", policy: "spent", keys: 1 },
];

async function main() {
  const { values } = parseArgs({
    options: { rounds: { type: "string", default: "7" }, seconds: { type: "string", default: "3" } },
  });
  const [rounds, seconds] = [Number(values.rounds), Number(values.seconds)];
  if (redis.path === undefined) throw new Error(`For this, run: apt-get install ${redis.packaged}`);
  const lanes = [await leased(), await asked()];
  for (const { title, policy, keys } of SCENARIOS) {
    const { rate, seconds: period, capacity } = POLICIES[policy];
    const began = performance.now();
    const granted = [0, 0];
    const perSecond = [[], []];
    const ratios = [];
    for (const lane of lanes) await load(lane, policy, keys, WARM_UP_S, 4 * keys);
    const callsBefore = lanes[0].calls();
    for (let round = 0; round < rounds; round++) {
      const turn = round % 2 === 0 ? [0, 1] : [1, 0];
      const found = [];
      for (const lane of turn) {
        const run = await load(lanes[lane], policy, keys, seconds);
        granted[lane] += run.granted;
        found[lane] = run.perSecond;
      }
      for (const lane of [0, 1]) perSecond[lane].push(found[lane]);
      ratios.push(found[0] / found[1]);
    }
    const most = keys * (capacity + ((rate / period) * (performance.now() - began)) / 1_000);
    for (const [lane, { name }] of lanes.entries())
      if (granted[lane] > most) throw new Error(`${name} has granted ${granted[lane]}, and ${most} are allowed`);
    const calls = (lanes[0].calls() - callsBefore) / (rounds * seconds);
    const shown = perSecond.map((all) => Math.round(quantile(all, 0.5)).toLocaleString("en"));
    console.log(
      `${title}: ${shown[0]}/s by leases (${calls.toFixed(1)} calls/s), ${shown[1]}/s by Redis, ratio ${quantile(ratios, 0.5).toFixed(1)} ` +
        `(${quantile(ratios, 0.25).toFixed(1)} to ${quantile(ratios, 0.75).toFixed(1)}); granted ${granted.join(" and ")}`,
    );
  }
  for (const lane of lanes) await lane.end();
}

/** Makes this many requests at a time. As in a server, other events get their turn in between. */
async function load({ consume }, policy, keys, seconds, atOnce = AT_ONCE) {
  const names = Array.from({ length: keys }, (_, i) => `user-${i}@example.com`);
  const began = performance.now();
  let [decisions, granted] = [0, 0];
  while (performance.now() - began < seconds * 1_000) {
    const all = [];
    for (let i = 0; i < atOnce; i++) all.push(consume(policy, names[(decisions + i) % keys]));
    for (const isAllowed of await Promise.all(all)) granted += Number(isAllowed);
    decisions += atOnce;
    await setImmediate();
  }
  return { granted, perSecond: decisions / ((performance.now() - began) / 1_000) };
}

/** The package's limiter, in front of Tollgate on workerd. */
async function leased() {
  const policy = ({ rate, seconds, capacity }) => ({ rate, period: `${seconds}s`, capacity, lease: "2s" });
  const policies = Object.fromEntries(Object.entries(POLICIES).map(([name, numbers]) => [name, policy(numbers)]));
  const keySecret = "the-key-secret-of-the-benchmarks";
  const host = await onWorkerd(tollgate({ policies, token: TOKEN, keySecret, build: "deployed" }));
  let calls = 0;
  const fetcher = {
    fetch(...request) {
      calls++;
      return fetch(...request);
    },
  };
  const client = new Client({ url: `http://127.0.0.1:${host.port}`, token: TOKEN, fetcher });
  const limiters = Object.fromEntries(
    Object.keys(POLICIES).map((policy) => [policy, new LeasingLimiter(client, { policy })]),
  );
  return {
    name: "Tollgate",
    calls: () => calls,
    consume: async (policy, key) => (await limiters[policy].consume(key)).allowed,
    async end() {
      for (const limiter of Object.values(limiters)) await limiter.close();
      await host.remove();
    },
  };
}

/** Redis, by the script of an article, as contestants/redis.mjs asks it. */
async function asked() {
  const { port, program } = await redis.start();
  const client = new Redis({ port, enableAutoPipelining: true });
  const lua = readFileSync(new URL("contestants/token-bucket.lua", import.meta.url), "utf8");
  client.defineCommand("take", { numberOfKeys: 3, lua });
  return {
    name: "Redis",
    async consume(policy, key) {
      const { rate, seconds, capacity } = POLICIES[policy];
      return (await client.take(`${policy}:${key}`, capacity - 1, rate / seconds, 1, 0)) <= 0;
    },
    async end() {
      client.disconnect();
      await program.kill();
    },
  };
}

function quantile(all, share) {
  const sorted = [...all].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

await main();
