// The package without its WebAssembly.
export * from "./main.js";
export { SharedLimiter } from "./shared-limiter.js";
