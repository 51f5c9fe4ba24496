// The limiter of servers on Cloudflare Workers, which cannot compile WebAssembly while they run: the module is part of the bundle.
import { initLeases } from "./lease-core.js";
import wasm from "./leases.wasm";

initLeases(wasm);

export * from "./leasing-limiter.js";
