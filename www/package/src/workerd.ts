// The package on Cloudflare Workers, which cannot compile WebAssembly while they run: the module is part of the bundle.
import wasm from "./core.wasm";
import { init } from "./core.js";

init(wasm);
export * from "./slim.js";
