// `tollgate/lint` brings its own WebAssembly module.
import { lint } from "tollgate/lint";
import { rate } from "tollgate/rate";
import { exerciseLint } from "./exercise-lint.mjs";

exerciseLint({ lint, rate }).then((outcome) => {
  globalThis.outcome = outcome;
  if (!globalThis.document) console.log(JSON.stringify(outcome));
});
