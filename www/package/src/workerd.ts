// The package on Cloudflare Workers, where a module has to be there before the Worker starts.
import wasm from "./core.wasm";
import { init } from "./core.js";

init(wasm);
export * from "./slim.js";
