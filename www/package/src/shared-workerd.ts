// The limiter for all tabs on Cloudflare Workers, which cannot compile WebAssembly while they run, as when a page is rendered there.
import { init } from "./core.js";
import wasm from "./core.wasm";

init(wasm);

export { SharedLimiter } from "./shared-limiter.js";
