// The lint on Cloudflare Workers, which cannot compile WebAssembly while they run: the module is part of the bundle.

import module from "./lint.wasm";
import { type Lint, linter } from "./linter.js";

export type { Admitted, Finding, FindingCode, LimitFacts, Lint, LintResult, PolicyLint } from "./linter.js";

export const lint: Lint = /* @__PURE__ */ linter(async () => module);
