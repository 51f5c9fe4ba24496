// The package where it brings its WebAssembly along.
import { init } from "./core.js";
import { wasm } from "./wasm.js";

init(wasm);
export * from "./slim.js";
