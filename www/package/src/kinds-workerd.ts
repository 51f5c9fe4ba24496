// More kinds of limit on Cloudflare Workers, which cannot compile WebAssembly while they run: the module is part of the bundle.
import module from "./kinds.wasm";
import { include } from "./kinds-module.js";

include(() => module);

export * from "./more-kinds.js";
