// `tollgate/slim` alone, with the module read from its file and passed in the form that the first argument names.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as tollgate from "tollgate/slim";
import { exercise } from "./exercise.mjs";

const before = [];
for (let i = 0; i < 2; i++) {
  try {
    new tollgate.Bucket(0, { rate: 1, periodMs: 1000 });
  } catch ({ name, code, message }) {
    before.push({ name, code, message });
  }
}
const bytes = readFileSync(fileURLToPath(import.meta.resolve("tollgate/core.wasm")));
const forms = {
  bytes: () => bytes,
  module: () => new WebAssembly.Module(bytes),
  instance: () => new WebAssembly.Instance(new WebAssembly.Module(bytes)),
  function: () => () => bytes,
};
tollgate.init(forms[process.argv[2]]());
tollgate.init(new Uint8Array([1, 2, 3])); // only the first call counts
const first = await exercise(tollgate);
tollgate.init(bytes);
console.log(JSON.stringify({ before, exercise: first, again: await exercise(tollgate) }));
