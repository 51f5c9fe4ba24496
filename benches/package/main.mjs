// The npm package's size and the time of its decisions, beside others and beside plain JavaScript, in Node and in
// Chromium.
//
//   npm run bench:package                    all: half a minute
//   npm run bench:package -- --sizes         only the sizes
//   npm run bench:package -- --parts         only what each part of `Limiter` adds to its size
//   npm run bench:package -- --keys          only limiters of many keys: bytes per key, and time
//   npm run bench:package -- --check         also fails if a promise is broken
//   npm run bench:package -- --rounds 101    31 by default
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { bundled } from "./bundle.mjs";
import { JOINS } from "./joins.mjs";
import { measureKeys } from "./keys.mjs";
import { inChromium, inNode } from "./runtimes.mjs";
import { parts, sizes } from "./sizes.mjs";

/** Bytes compressed with gzip, as esbuild's own minifier makes them: Terser's are fewer. */
const LARGEST = {
  "tollgate (Bucket)": 3500,
  "tollgate (Limiter)": 6900,
  tollgate: 13_950,
  "tollgate/shared": 10_100,
  "tollgate/client": 1950,
  "tollgate/client (Client, acquire)": 3050,
  "tollgate/keyed": 6700,
  "tollgate/kinds (Limiter)": 40_000,
  "tollgate/react": 650,
  "tollgate/rate": 1650,
  // For servers, where bytes cost a moment of the start. With the service's own Rust, which writes the answers.
  "tollgate/leases (LeasingLimiter, Client)": 17_100,
  "tollgate/node": 98_500,
  "tollgate/hono": 92_600,
  "tollgate/lint": 63_400,
};
/** What the rows of the README's table of sizes are about. */
const STATED = [
  "tollgate (Bucket)",
  "tollgate (Limiter)",
  "tollgate",
  "tollgate/shared",
  "tollgate/keyed",
  "tollgate/kinds (Limiter)",
  "tollgate/client",
  "tollgate/leases (LeasingLimiter, Client)",
  "tollgate/node",
  "tollgate/hono",
  "tollgate/react",
  "tollgate/rate",
  "tollgate/lint",
];
/** Bytes: Chrome before version 114 compiles no larger module at once. */
const LARGEST_CORE = 4095;
/** Maximum ratio of Tollgate's decision time to theirs, with time as an argument. */
const CASES = ["allowed", "refused", "mixed"];
const SLOWEST = [
  // Like with like: both are bare calls. Not with mixed answers, where mispredicted branches take most of the time. Processors differ in
  // what an empty call takes: less than 2 on an AMD EPYC, 2.07 to 2.18 on an Intel Xeon.
  { ours: "Tollgate's core, unchecked", theirs: "an empty call into wasm", most: 2.5, cases: ["allowed", "refused"] },
  { ours: "Tollgate's Bucket", theirs: "rate-limiter-flexible, one by one", most: 1 / 8, cases: CASES },
  { ours: "Tollgate's Bucket", theirs: "rate-limiter-flexible, together", most: 1 / 8, cases: CASES },
  { ours: "Tollgate's Limiter", theirs: "p-queue", most: 2, cases: Object.keys(JOINS) },
];

async function main() {
  const { values } = parseArgs({
    options: {
      sizes: { type: "boolean" },
      parts: { type: "boolean" },
      keys: { type: "boolean" },
      check: { type: "boolean" },
      rounds: { type: "string", default: "31" },
    },
  });
  const rounds = Number(values.rounds);
  if (!(Number.isSafeInteger(rounds) && rounds > 0)) throw new Error("--rounds takes a whole number above 0");
  if (values.keys) {
    reportKeys(await measureKeys({ runs: 5 }));
    process.exit();
  }
  if (values.parts) {
    for (const { name, bytes } of await parts()) console.log(`${String(bytes).padStart(5)}  ${name}`);
    return;
  }
  const broken = reportSizes(await sizes());
  if (!values.sizes) {
    const source = await bundled(`export * from "./speed.mjs"`);
    for (const [runtime, run] of Object.entries({ Node: inNode, Chromium: inChromium })) {
      for (let tries = values.check ? 3 : 1; tries > 0; tries--) {
        const { version, groups } = await run(source, { rounds });
        const slow = reportSpeed(`${runtime} ${version}`, groups);
        if (slow.length === 0) break;
        if (tries === 1) broken.push(...slow);
        else console.log(`\nonce more, because the machine may have been busy:\n${slow.join("\n")}`);
      }
    }
  }
  if (broken.length > 0) console.log(`\nBroken promises:\n${broken.map((line) => `  ${line}`).join("\n")}`);
  process.exit(values.check && broken.length > 0 ? 1 : 0); // the others have timers that would keep us for a day
}

/** Returns the promises that are broken. */
function reportSizes(rows) {
  console.log(`${"bytes, bundled and minified".padEnd(NAME_LEN)}${cells(["raw", "gzip -9", "brotli", "esbuild"])}`);
  for (const { name, raw, gzip, brotli, esbuild } of rows)
    console.log(`${name.padEnd(NAME_LEN)}${cells([raw, gzip, brotli, esbuild])}`);
  const broken = rows
    .filter(({ name, esbuild }) => esbuild > LARGEST[name])
    .map(({ name, esbuild }) => `${name} is ${esbuild} bytes compressed, more than ${LARGEST[name]}`);
  const { raw } = rows.find(({ name }) => name === "tollgate/core.wasm");
  if (raw > LARGEST_CORE) broken.push(`the module is ${raw} bytes, more than ${LARGEST_CORE}`);
  return [...broken, ...wronglyStated(rows)];
}

/** Returns the README's sizes that are off by more than one in their last digit. */
function wronglyStated(rows) {
  const readme = readFileSync(new URL("../../www/package/README.md", import.meta.url), "utf8");
  const [, table] = readme.match(/^\| entry \| \| KB \|\n\|.*\n((?:\|.*\n)+)/m);
  const stated = Array.from(table.matchAll(/ ([\d.]+) \|$/gm), ([, kilobytes]) => kilobytes);
  if (stated.length !== STATED.length) return [`the README has ${stated.length} sizes, not ${STATED.length}`];
  return STATED.flatMap((name, i) => {
    const kilobytes = rows.find((row) => row.name === name).gzip / 1000;
    const isRight = Math.abs(kilobytes - Number(stated[i])) <= (stated[i].includes(".") ? 0.1 : 1);
    return isRight ? [] : [`the README says ${stated[i]} KB of ${name}, which is ${kilobytes}`];
  });
}

/** Returns the promises that are broken. */
function reportSpeed(runtime, groups) {
  const [given] = groups;
  for (const { title, cases } of groups) {
    for (const [name, lanes] of Object.entries(cases)) {
      const [[ourName, ours], ...others] = Object.entries(lanes);
      console.log(
        `\n${`${runtime}: ${title}, ${name}`.padEnd(NAME_LEN)}${cells(["ns", "least"])}  Tollgate's time to theirs`,
      );
      console.log(`${ourName.padEnd(NAME_LEN)}${nanos(ours)}`);
      for (const [theirName, theirs] of others) {
        const besides = title === "own clock" ? `; with the time given ${ratio(given.cases[name][OURS], theirs)}` : "";
        console.log(`${theirName.padEnd(NAME_LEN)}${nanos(theirs)}  ${ratio(ours, theirs)}${besides}`);
      }
    }
  }
  const promised = SLOWEST.flatMap(({ ours, theirs, most, cases }) =>
    cases.map((name) => {
      const lanes = Object.assign({}, ...groups.map(({ cases }) => cases[name]));
      return { ours, theirs, most, name, least: leastOf(lanes[ours]) / leastOf(lanes[theirs]) };
    }),
  );
  return promised
    .filter(({ least, most }) => !(least <= most))
    .map(
      ({ ours, theirs, most, name, least }) =>
        `${runtime}, ${name}: ${ours} takes ${least.toFixed(2)} times as long as ${theirs}, more than ${most}`,
    );
}

/** The median of each one's runs and, in parentheses, Tollgate's as a fraction of theirs. */
function reportKeys(measured) {
  const [ours] = Object.values(measured);
  const columns = { bytes: "bytes per key", first: "ns, new key", later: "ns, known key" };
  const cell = (text) => text.padStart(26);
  console.log(`${"100 000 keys".padEnd(34)}${Object.values(columns).map(cell).join("")}`);
  for (const [name, theirs] of Object.entries(measured)) {
    const texts = Object.keys(columns).map((column) => {
      const of = (runs) => runs.map((run) => run[column]);
      const median = quartiles(of(theirs))[1].toFixed();
      return cell(theirs === ours ? median : `${median}: ${ratio(of(ours), of(theirs))}`);
    });
    console.log(`${name.padEnd(34)}${texts.join("")}`);
  }
}

/**
 * The fastest round. Other work on the machine only adds time, so this varies least from run to run. Each contestant's
 * fastest round is found before they are compared, which favours neither; the least ratio within rounds would favour
 * one.
 */
function leastOf(ns) {
  return Math.min(...ns);
}

function nanos(ns) {
  return cells([quartiles(ns)[1], leastOf(ns)].map((value) => value.toFixed(value < 100 ? 1 : 0)));
}

/** The median and the quartiles of the ratios within each round. */
function ratio(ours, theirs) {
  const [low, middle, high] = quartiles(ours.map((our, i) => our / theirs[i])).map((value) => value.toPrecision(2));
  return `${middle} (${low} to ${high})`;
}

/** The quartiles. */
function quartiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return [1, 2, 3].map((quarter) => sorted[Math.floor(((sorted.length - 1) * quarter) / 4)]);
}

function cells(values) {
  return values.map((value) => String(value).padStart(9)).join("");
}

const OURS = "Tollgate's Bucket";
const NAME_LEN = 50;

await main();
