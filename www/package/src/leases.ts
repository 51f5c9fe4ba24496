// The limiter of servers with its WebAssembly included.
import { initLeases } from "./lease-core.js";
import { wasm } from "./leases-wasm.js";

initLeases(wasm);

export * from "./leasing-limiter.js";
