// Runs every law repeatedly, each time with a new seed, on all cores.
//
//   npm run soak -- --minutes 60      without --minutes: until Ctrl-C
//   npm run soak -- --cases 1000000   until each law has tried this many
//   npm run soak -- ledger package    only these groups
//   npm run soak -- ledger rolling    only laws with such a word in their names
//
// It prints the seed and count of each batch as it goes, and all counts at the end. A failure is written to
// build/soak/failures.txt with the command that repeats it; that law stops, the others go on, and the exit code is 1.
//
// A law is a test that reads TOLLGATE_SEED and TOLLGATE_CASES and prints them, as tests/chance/mod.rs and
// tests/random.mjs do. So new laws are found automatically.
import { execFileSync, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { appendFileSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { parseArgs } from "node:util";

const {
  values: { minutes, cases: most },
  positionals,
} = parseArgs({ options: { minutes: { type: "string" }, cases: { type: "string" } }, allowPositionals: true });
for (const [name, value] of Object.entries({ minutes, cases: most }))
  if (value !== undefined && !(Number(value) > 0)) throw new Error(`--${name} ${value} is not a number above 0`);
/** Cases after which a law has tried enough. */
const enough = Number(most ?? Infinity);

/** Relative share of the time for each group. The ledger has the most to go wrong. */
const SHARES = { core: 2, ledger: 5, edge: 2, package: 1 };
const chosen = positionals.filter((word) => word in SHARES);
const words = positionals.filter((word) => !(word in SHARES));
/** Rust tests without their own group are the core's. */
const groupOf = (program) => (program in SHARES ? program : "core");

/** Target duration of a batch: short enough to print its seed soon, long beside starting a process. */
const BATCH_MS = 15_000;
/** Cases in the first batch, when the speed is unknown: some take seconds. */
const FIRST_CASES = 2;
/** A batch that takes this many times longer than expected, and at least this long, is considered hung. */
const PATIENCE = 20;
const PATIENCE_MS = 300_000;
/** How long a running batch may go on after the end. */
const GRACE_MS = 30_000;

const FAILURES = "build/soak/failures.txt";
/** Characters kept from the end of a failure's output: above are the panics of shrinking. */
const KEPT_CHARACTERS = 20_000;

const running = new Set();
let interrupted = false;
for (const signal of ["SIGINT", "SIGTERM"])
  process.on(signal, () => {
    interrupted = true;
    for (const child of running) child.kill("SIGKILL");
  });

const laws = [...(await rustLaws()), ...(await packageLaws())].filter(
  ({ group, name }) =>
    (chosen.length === 0 || chosen.includes(group)) &&
    (words.length === 0 || words.some((word) => name.includes(word))),
);
if (laws.length === 0)
  throw new Error(`no law in ${positionals.join(", ")}: groups are ${Object.keys(SHARES).join(", ")}`);

for (const law of laws) law.share = SHARES[law.group] / laws.filter(({ group }) => group === law.group).length;

const began = Date.now();
const ends = minutes === undefined ? Infinity : began + Number(minutes) * 60_000;
const lanes = availableParallelism();
console.log(
  `soak: ${laws.length} laws on ${lanes} cores, ${
    minutes === undefined ? "until Ctrl-C" : `${minutes} minutes`
  }${most === undefined ? "" : `, or ${most} cases of each`}`,
);
await Promise.all(Array.from({ length: lanes }, lane));
report();
process.exit(laws.some(({ failed }) => failed) ? 1 : 0);

/** Runs batch after batch, always of the law that is furthest below its share. */
async function lane() {
  while (!interrupted && Date.now() < ends) {
    const waiting = laws.filter(({ failed, count }) => !failed && count < enough);
    if (waiting.length === 0) return;
    const law = waiting.reduce((least, law) => (law.usedMs / law.share < least.usedMs / least.share ? law : least));
    await batch(law);
  }
}

async function batch(law) {
  const expectedMs = Math.min(BATCH_MS, ends - Date.now());
  const usual = law.perMs ? Math.max(1, Math.floor(law.perMs * expectedMs)) : FIRST_CASES;
  const cases = Math.min(usual, enough - law.count);
  const seed = randomInt(law.seeds);
  law.usedMs += expectedMs; // an estimate for the other lanes
  const start = Date.now();
  const patienceMs = Math.max(PATIENCE_MS, PATIENCE * expectedMs);
  const { code, output } = await run(law.command, seed, cases, Math.min(patienceMs, ends + GRACE_MS - Date.now()));
  const tookMs = Date.now() - start;
  law.usedMs += tookMs - expectedMs;
  if (interrupted || Date.now() >= ends + GRACE_MS) return; // incomplete, so it does not count
  const place = `${law.group} ${law.name}`;
  if (code !== 0 || !isLaw(output)) {
    law.failed = true;
    const repeat = `TOLLGATE_SEED=${seed} TOLLGATE_CASES=${cases} ${law.repeat}`;
    console.log(`${clock()} FAILED: ${place}\n${repeat}`);
    mkdirSync("build/soak", { recursive: true });
    appendFileSync(FAILURES, `${repeat}\n${output.slice(-KEPT_CHARACTERS)}\n\n`);
    return;
  }
  law.perMs = cases / tookMs;
  law.count += cases;
  const sum = laws.reduce((sum, { count }) => sum + count, 0);
  console.log(`${clock()} ${place}: seed ${seed}, ${cases} more, ${law.count} now; all laws ${sum}`);
}

/** Runs a law's command until it ends or times out. */
function run([program, ...args], seed, cases, patienceMs) {
  const chance = { TOLLGATE_SEED: String(seed), TOLLGATE_CASES: String(cases) };
  const child = spawn(program, args, {
    env: { ...process.env, ...chance, RUST_BACKTRACE: "0" }, // shrinking panics thousands of times
    stdio: ["ignore", "pipe", "pipe"],
    detached: true, // Ctrl-C is for this process, which ends the others
  });
  running.add(child);
  let output = "";
  const hear = (text) => {
    output += text;
    if (output.length > 4 * KEPT_CHARACTERS)
      output = output.slice(0, KEPT_CHARACTERS) + output.slice(-2 * KEPT_CHARACTERS);
  };
  child.stdout.setEncoding("utf8").on("data", hear);
  child.stderr.setEncoding("utf8").on("data", hear);
  const timer = setTimeout(() => {
    hear(`\nit had not ended after ${patienceMs} ms\n`);
    child.kill("SIGKILL");
  }, patienceMs);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      clearTimeout(timer);
      running.delete(child);
      resolve({ code, output });
    });
  });
}

/** Whether a law has run: it has said which seed and how many cases it was given. */
function isLaw(output) {
  return /TOLLGATE_SEED=\d+ TOLLGATE_CASES=\d+/.test(output);
}

function report() {
  const each = (list) => list.reduce((sum, { count }) => sum + count, 0).toLocaleString("en");
  console.log(`\nsoak: ${clock()}, ${each(laws)} sequences${interrupted ? ", interrupted" : ""}`);
  for (const group of Object.keys(SHARES)) {
    const own = laws.filter((law) => law.group === group);
    if (own.length === 0) continue;
    console.log(`${each(own).padStart(15)}  ${group}`);
    for (const law of own) console.log(`${each([law]).padStart(15)}    ${law.name}${law.failed ? ": FAILED" : ""}`);
  }
  if (laws.some(({ failed }) => failed)) console.log(`what failed is in ${FAILURES}`);
}

function clock() {
  return new Date(Date.now() - began).toISOString().slice(11, 19);
}

/** A law that has not been run. Its seeds are whole numbers below `seeds`. */
function law(group, name, seeds, command, repeat) {
  return { group, name, seeds, command, repeat, share: 1, usedMs: 0, perMs: 0, count: 0, failed: false };
}

/** The laws in Rust test programs. A test that does not identify itself as a law is run only this once. */
async function rustLaws() {
  if (chosen.length > 0 && chosen.every((group) => group === "package")) return [];
  const build = ["test", "--profile", "soak", "--features", "service,zones"];
  const messages = execFileSync(
    "cargo",
    [...build, "--tests", "--no-run", "--message-format=json-render-diagnostics"],
    {
      encoding: "utf8",
      stdio: ["ignore", "pipe", "inherit"],
      maxBuffer: 2 ** 30,
    },
  );
  const found = [];
  for (const line of messages.trim().split("\n")) {
    const { reason, target, executable } = JSON.parse(line);
    if (reason !== "compiler-artifact" || !executable || !target.kind.includes("test")) continue;
    if (!readFileSync(target.src_path, "utf8").includes("mod chance;")) continue;
    const names = execFileSync(executable, ["--list", "--format", "terse"], { encoding: "utf8" });
    for (const [, name] of names.matchAll(/^(.+): test$/gm)) {
      const command = [executable, name, "--exact", "--nocapture"];
      const { output } = await run(command, 1, 1, PATIENCE_MS);
      if (!isLaw(output)) continue;
      const repeat = `cargo ${build.join(" ")} --test ${target.name} -- --exact ${name}`;
      found.push(law(groupOf(target.name), name, 2 ** 47, command, repeat));
    }
  }
  return found;
}

/** The package's laws. A law identifies itself after its result. */
async function packageLaws() {
  if (chosen.length > 0 && !chosen.includes("package")) return [];
  const paths = readdirSync("tests/package").map((name) => `tests/package/${name}`);
  const files = paths.filter((path) => path.endsWith(".test.mjs") && readFileSync(path, "utf8").includes("law("));
  const found = await Promise.all(files.map((path) => packageLawsIn(path)));
  return found.flat();
}

async function packageLawsIn(path) {
  const { output } = await run([process.execPath, "--test-reporter=tap", path], 1, 1, PATIENCE_MS);
  const found = [];
  let name;
  for (const line of output.split("\n")) {
    name = /^(?:not )?ok \d+ - (.*)$/.exec(line)?.[1] ?? name;
    if (!isLaw(line)) continue;
    const pattern = `^${name.replaceAll(/[^\w ,:]/g, ".")}$`;
    const command = [process.execPath, `--test-name-pattern=${pattern}`, "--test-reporter=spec", path];
    found.push(law("package", name, 2 ** 31, command, `node --test-name-pattern="${pattern}" ${path}`));
  }
  if (found.length === 0) throw new Error(`${path} has no law that passes:\n${output}`);
  return found;
}
