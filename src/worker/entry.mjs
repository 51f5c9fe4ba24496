// The module the runtime loads; scripts/build-worker puts it beside what worker-build made of the Rust.
export { frontend as default } from "./frontend.mjs";
export { KeyObject } from "./key_object.mjs";
