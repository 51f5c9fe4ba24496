// The whole service: the module that the runtime loads. scripts/build-worker puts it beside the Rust, which is in the folder `rust`.
export { RateLimit, Tollgate } from "./entrypoint.mjs";
export { frontend as default } from "./frontend.mjs";
export { KeyObject } from "./key_object.mjs";
export { PolicyRegistry } from "./registry.mjs";
