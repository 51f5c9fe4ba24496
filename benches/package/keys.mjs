// Limiters of many keys: bytes per key, and the processor's time for a decision. Each runs in processes of its own, in turn with the others,
// so that none pays for the memory of another.
import { execFileSync } from "node:child_process";
import { bundled } from "./bundle.mjs";

/** `{ name: [{ bytes, first, later }, ..] }`: of each run the bytes per key, and the nanoseconds of a key's first and later decisions. */
export async function measureKeys({ runs }) {
  const source = await bundled(`export { contestants } from "./contestants/keys.mjs"`);
  const module = `data:text/javascript;base64,${Buffer.from(source).toString("base64")}`;
  const script = `(${run})(process.argv.at(-1), ${KEYS})`;
  const measured = {};
  const names = Object.keys((await import(module)).contestants);
  for (let i = 0; i < runs; i++) {
    for (const name of i % 2 ? names : names.toReversed()) {
      const input = `const { contestants } = await import(${JSON.stringify(module)});\n${script};`;
      const output = execFileSync(process.execPath, ["--expose-gc", "--input-type=module", "-", name], {
        input,
        encoding: "utf8",
      });
      measured[name] ??= [];
      measured[name].push(JSON.parse(output));
    }
  }
  return Object.fromEntries(names.map((name) => [name, measured[name]]));
}

/* global contestants, gc -- of the process that this function runs in */
async function run(name, keys) {
  // No count of the process has the memory of WebAssembly.
  let grown = 0;
  const { grow } = WebAssembly.Memory.prototype;
  WebAssembly.Memory.prototype.grow = function (pages) {
    grown += pages * 65_536;
    return grow.call(this, pages);
  };
  const bytes = () => {
    gc();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external + grown;
  };
  /** The processor's nanoseconds per decision, so that other work counts for little. */
  const ask = async (limit, keyOf) => {
    let allowed = 0;
    const began = process.cpuUsage();
    for (let i = 0; i < keys; ) {
      let last;
      for (const end = i + 1000; i < end; i++) {
        const answer = limit(keyOf(i));
        if (typeof answer !== "boolean") last = answer.then(() => allowed++);
        else if (answer) allowed++;
      }
      if (last) await last;
    }
    const { user, system } = process.cpuUsage(began);
    const ns = ((user + system) * 1000) / keys;
    if (allowed !== keys) throw new Error(`${name} allowed ${allowed} of ${keys}`);
    return ns;
  };
  const warmUp = async (limit) => {
    for (let i = 0; i < 2; i++) await ask(limit, (i) => `warm:${i % 2000}`);
  };
  await warmUp(contestants[name]()); // few keys, whose memory is negligible
  const before = bytes();
  const limit = contestants[name]();
  const first = await ask(limit, (i) => `user:${i}`);
  const perKey = (bytes() - before) / keys;
  const some = Array.from({ length: keys }, (_, i) => `user:${(i * 7919) % keys}`);
  let later = Infinity;
  for (let round = 0; round < 7; round++) later = Math.min(later, await ask(limit, (i) => some[i]));
  console.log(JSON.stringify({ bytes: perKey, first, later }));
  process.exit(); // one has timers that would keep it running
}

const KEYS = 100_000;
