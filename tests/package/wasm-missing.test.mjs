// Where WebAssembly cannot be used, the error says why, and advises only what helps.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";

const built = new URL("../../build/package/", import.meta.url);

/** The error of making what `make` makes, in a program where `before` has run. */
async function failure(before, make) {
  const program = `
    ${before};
    const entry = async (name) => await import(\`${built}\${name}.js\`);
    try {
      await (${make});
    } catch ({ name, code, message }) {
      console.log(JSON.stringify({ name, code, message }));
    }
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
  return JSON.parse(stdout);
}

const MAKES = {
  Limiter: `new (await entry("index")).Limiter({ rate: 1, periodMs: 1000 })`,
  KeyedLimiter: `new (await entry("keyed")).KeyedLimiter({ rate: 1, periodMs: 1000 })`,
  LeasingLimiter: `new (await entry("leases")).LeasingLimiter({}, { policy: "api" }).consume("alice")`,
  lint: `(await entry("lint")).lint({ api: "1/s" })`,
};
const failing = (message) => `
  WebAssembly.Module = class {
    constructor() {
      throw new WebAssembly.CompileError(${JSON.stringify(message)});
    }
  };
  WebAssembly.compile = WebAssembly.instantiate = async () => new WebAssembly.Module();
`;

for (const [name, make] of Object.entries(MAKES)) {
  test(`${name} says that there is no WebAssembly`, async () => {
    const error = { name: "TollgateError", code: "wasm_failed", message: "ReferenceError: WebAssembly is not defined" };
    assert.deepEqual(await failure("delete globalThis.WebAssembly", make), error);
  });

  test(`${name} names the directive of a Content Security Policy only where one blocks it`, async () => {
    // biome-ignore format: a table
    const table = [
      // message of Chrome, Firefox, Safari, Cloudflare                                                                     advises
      [`Refused to compile WebAssembly module because neither 'wasm-eval' nor 'unsafe-eval' is an allowed source of script in the following Content Security Policy directive: "script-src 'self'"`, true],
      ["call to WebAssembly.Module() blocked by CSP",                                                                       true],
      ["Refused to create a WebAssembly object because 'unsafe-eval' is not an allowed source of script in the following CSP directive", true],
      ["Wasm code generation disallowed by embedder",                                                                       false],
    ];
    for (const [message, advises] of table) {
      const { code, message: said } = await failure(failing(message), make);
      assert.deepEqual(
        [code, said.includes(message), said.endsWith(": allow 'wasm-unsafe-eval'")],
        ["wasm_failed", true, advises],
        message,
      );
    }
  });
}

test("exports that need no WebAssembly, such as those of a translation to JavaScript, work without it", async () => {
  const program = `
    const { readFileSync } = await import("node:fs");
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(new URL("core.wasm", "${built}"))));
    delete globalThis.WebAssembly;
    const { Bucket, init } = await import("${built}slim.js");
    init({ exports });
    console.log(new Bucket(0, { rate: 3, periodMs: 1000 }).peek(0).remaining);
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
  assert.equal(stdout, "3\n");
});
