// CPU time per request in several builds of the Worker, side by side: that of their Rust and its bindings, without a
// runtime. A frontend and an object call each other directly.
//   scripts/build-worker && cp -r build/worker build/worker-before, then the other, then:
//   node_modules/.bin/node benches/builds/main.mjs build/worker-before build/worker
import { readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";
import { entryOf } from "../../tests/http/runtime.mjs";

const ROUNDS = 400;
const REQUESTS = 100;

// The Worker imports its wasm as a module, which Node does otherwise.
registerHooks({
  load(url, context, next) {
    if (!url.endsWith(".wasm")) return next(url, context);
    const bytes = JSON.stringify(readFileSync(new URL(url)).toString("base64"));
    const source = `export default new WebAssembly.Module(Buffer.from(${bytes}, "base64"));`;
    return { format: "module", source, shortCircuit: true };
  },
});

const SECRET = "0123456789abcdef0123";
const AUTHORIZATION = `Bearer ${SECRET}`;
const POLICIES = {
  api: { rate: 1_000_000, period: "1s", capacity: 100_000_000 },
  none: { rate: 1, period: "1h", refusal_cache: "0s" },
};
const item = (policy) => ({ policy, key: "alice@example.com", cost: 1 });
const ASKED = {
  grant: ["consume", item("api")],
  refusal: ["consume", item("none")],
  "batch of two": ["batch", { requests: [item("api"), item("none")] }],
};

const builds = await Promise.all(process.argv.slice(2).map(load));
if (builds.length === 0) throw new Error("name one folder or more that scripts/build-worker has made");
for (const [name, [path, asked]] of Object.entries(ASKED)) {
  const body = new TextEncoder().encode(JSON.stringify(asked));
  const times = builds.map(() => []);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [index, ask] of builds.entries()) {
      const began = process.hrtime.bigint();
      for (let n = 0; n < REQUESTS; n++) ask(path, body);
      times[index].push(Number(process.hrtime.bigint() - began) / REQUESTS / 1000);
    }
  }
  // The first quarter warms up. The best decile is the least disturbed by others on the machine.
  const best = times.map((each) => {
    const sorted = each.slice(ROUNDS / 4).sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 10)];
  });
  console.log(name.padEnd(14), best.map((us) => `${us.toFixed(2)} us, ${(us / best[0]).toFixed(2)}`).join(" | "));
}

async function load(folder) {
  const { Frontend, KeyObject, Step } = await import(new URL("rust/index.js", `${pathToFileURL(folder)}/`));
  const nothing = () => {};
  const env = {
    POLICIES,
    TOLLGATE_TOKENS: { bench: entryOf(SECRET, "consume") },
    TOLLGATE_KEY_SECRET: SECRET,
    KEYS: { getByName: nothing },
  };
  const host = new Proxy({ rows: () => [] }, { get: (own, name) => own[name] ?? nothing });
  const { log } = console;
  console.log = nothing; // a frontend logs its policies
  const frontend = new Frontend(env);
  console.log = log;
  const object = new KeyObject("ab".repeat(32), env, host);
  const ask = (path, body) => {
    const url = `http://localhost/v1/${path}`;
    frontend.head("POST", url, AUTHORIZATION, undefined, "application/json", undefined, String(body.length));
    const [step, call] = frontend.ask(url, AUTHORIZATION, undefined, undefined, body);
    if (step === Step.Reply) return call; // decided without the object
    for (let next = call.next(); next; next = call.next()) {
      const [index, , policies, request, definitions] = next;
      call.answered(index, object.decide(policies, request, definitions));
    }
    const reply = call.reply();
    call.free();
    return reply;
  };
  ask("consume", new TextEncoder().encode(JSON.stringify(item("none"))));
  return ask;
}
