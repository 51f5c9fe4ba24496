// More kinds of limit, with a larger WebAssembly module, which is included.
import { include } from "./kinds-module.js";
import { wasm } from "./kinds-wasm.js";

include(() => new WebAssembly.Module(wasm()));

export * from "./more-kinds.js";
