// What a browser loads for each package. All are measured in the same way: bundled and minified by esbuild, then compressed.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";
import { PACKAGE, bundled } from "./bundle.mjs";

/** What is imported; in parentheses, the one class of it that decides. */
const IMPORTS = [
  { name: "tollgate (Bucket)", source: `export { Bucket } from "tollgate"` },
  { name: "tollgate", source: `export * from "tollgate"` },
  { name: "tollgate/react", source: `export * from "tollgate/react"`, external: ["react"] },
  { name: "plain JavaScript, no more than consume and peek", source: `export * from "./contestants/plain.mjs"` },
  { name: "limiter (TokenBucket)", source: `export { TokenBucket } from "limiter"` },
  { name: "limiter", source: `export * from "limiter"` },
  { name: "rate-limiter-flexible (RateLimiterMemory)", source: `export { RateLimiterMemory } from "rate-limiter-flexible"` },
  { name: "rate-limiter-flexible/lib/RateLimiterMemory.js", source: `export { default } from "rate-limiter-flexible/lib/RateLimiterMemory.js"` },
  { name: "p-throttle", source: `export { default } from "p-throttle"` },
  { name: "bottleneck", source: `export { default } from "bottleneck"` },
  { name: "bottleneck/light", source: `export { default } from "bottleneck/light.js"` },
  { name: "@tanstack/pacer (RateLimiter)", source: `export { RateLimiter } from "@tanstack/pacer"` },
  { name: "@tanstack/pacer", source: `export * from "@tanstack/pacer"` },
];

/** `[{ name, raw, gzip, brotli }]`, all in bytes. */
export async function sizes() {
  const bundles = await Promise.all(IMPORTS.map(async ({ name, source, external }) => ({ name, bytes: Buffer.from(await bundled(source, { external })) })));
  const core = { name: "tollgate/core.wasm", bytes: readFileSync(join(PACKAGE, "core.wasm")) };
  return [...bundles.slice(0, 3), core, ...bundles.slice(3)].map(({ name, bytes }) => ({
    name,
    raw: bytes.length,
    // The command: the zlib that Node brings is another, and makes other sizes.
    gzip: execFileSync("gzip", ["-9n"], { input: bytes }).length,
    brotli: brotliCompressSync(bytes).length,
  }));
}
