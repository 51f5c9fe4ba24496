// The limiter for all tabs, with its WebAssembly included.
import { init } from "./core.js";
import { wasm } from "./wasm.js";

init(wasm);

export { SharedLimiter } from "./shared-limiter.js";
