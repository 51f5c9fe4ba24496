// The keyed limiter on Cloudflare Workers, which cannot compile WebAssembly while they run: the module is part of the bundle.
import { init } from "./core.js";
import wasm from "./core.wasm";

init(wasm);

export * from "./keyed-limiter.js";
