// What policies admit and cost at worst, in numbers and in words, by the service's own Rust as WebAssembly.
import { wasm } from "./lint-wasm.js";
import { type Lint, linter } from "./linter.js";

export type { Admitted, Finding, FindingCode, LimitFacts, Lint, LintResult, PolicyLint } from "./linter.js";

export const lint: Lint = /* @__PURE__ */ linter(() => WebAssembly.compile(wasm()));
