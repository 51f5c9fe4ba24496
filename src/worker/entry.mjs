// The module the runtime loads; scripts/build-worker puts it beside what worker-build made of the Rust.
export { front as default } from "./front.mjs";
export { KeyObject } from "./object.mjs";
