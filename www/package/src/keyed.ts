// The keyed limiter with its WebAssembly included.
import { init } from "./core.js";
import { wasm } from "./wasm.js";

init(wasm);

export * from "./keyed-limiter.js";
