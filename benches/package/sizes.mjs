// What a browser loads for each package. All are measured in the same way: bundled by esbuild and minified by Terser, as
// webpack does for production, then compressed. Beside it, what esbuild's own minifier makes.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";
import { minify } from "terser";
import { bundled, PACKAGE } from "./bundle.mjs";

/** The import; in parentheses, its one class that decides. */
const IMPORTS = [
  { name: "tollgate (Bucket)", source: `export { Bucket } from "tollgate"` },
  { name: "tollgate", source: `export * from "tollgate"` },
  { name: "tollgate (Limiter)", source: `export { Limiter } from "tollgate"` },
  { name: "tollgate/shared", source: `export * from "tollgate/shared"` },
  { name: "tollgate/client", source: `export { Client } from "tollgate/client"` },
  { name: "tollgate/client (Client, acquire)", source: `export { acquire, Client } from "tollgate/client"` },
  { name: "tollgate/keyed", source: `export * from "tollgate/keyed"` },
  {
    name: "tollgate/leases (LeasingLimiter, Client)",
    source: `export * from "tollgate/leases"; export { Client } from "tollgate/client"`,
  },
  { name: "tollgate/node", source: `export * from "tollgate/node"` },
  { name: "tollgate/hono", source: `export * from "tollgate/hono"`, external: ["hono"] },
  { name: "tollgate/react", source: `export * from "tollgate/react"`, external: ["react"] },
  {
    name: "tollgate/kinds (Limiter)",
    source: `export { Limiter } from "tollgate"; export * from "tollgate/kinds"`,
  },
  { name: "tollgate/rate", source: `export * from "tollgate/rate"` },
  { name: "tollgate/lint", source: `export * from "tollgate/lint"` },
  {
    name: "tollgate, tollgate/keyed and tollgate/shared",
    source: `export * from "tollgate"; export * from "tollgate/keyed"; export * from "tollgate/shared"`,
  },
  { name: "plain JavaScript, no more than consume and peek", source: `export * from "./contestants/plain.mjs"` },
  { name: "limiter (TokenBucket)", source: `export { TokenBucket } from "limiter"` },
  { name: "limiter", source: `export * from "limiter"` },
  {
    name: "rate-limiter-flexible (RateLimiterMemory)",
    source: `export { RateLimiterMemory } from "rate-limiter-flexible"`,
  },
  {
    name: "rate-limiter-flexible/lib/RateLimiterMemory.js",
    source: `export { default } from "rate-limiter-flexible/lib/RateLimiterMemory.js"`,
  },
  { name: "p-throttle", source: `export { default } from "p-throttle"` },
  { name: "bottleneck", source: `export { default } from "bottleneck"` },
  { name: "bottleneck/light", source: `export { default } from "bottleneck/light.js"` },
  { name: "@tanstack/pacer (RateLimiter)", source: `export { RateLimiter } from "@tanstack/pacer"` },
  { name: "@tanstack/pacer", source: `export * from "@tanstack/pacer"` },
];

/** `[{ name, raw, gzip, brotli, esbuild }]`, all in bytes; the last is compressed with gzip. */
export async function sizes() {
  const bundles = await Promise.all(
    IMPORTS.map(async ({ name, source, external }) => {
      const { code } = await minify(await bundled(source, { external, minify: false }), {
        module: true,
        compress: { passes: 2 },
      });
      return { name, bytes: Buffer.from(code), esbuild: gzip(await bundled(source, { external })) };
    }),
  );
  const bytes = readFileSync(join(PACKAGE, "core.wasm"));
  const core = { name: "tollgate/core.wasm", bytes, esbuild: gzip(bytes) };
  const ours = bundles.filter(({ name }) => name.startsWith("tollgate"));
  return [...ours, core, ...bundles.slice(ours.length)].map(({ name, bytes, esbuild }) => ({
    name,
    raw: bytes.length,
    gzip: gzip(bytes),
    brotli: brotliCompressSync(bytes).length,
    esbuild,
  }));
}

/** The modules that `Limiter` alone brings, and their contents. */
const PARTS = {
  wasm: "the WebAssembly and its decoder",
  limiter: "`Limiter`: the forecast of who waits how long, pauses, save and restore",
  queue: "its queue: `acquire`, signals, `throttle`, concurrency, `onIdle`, `clear`, `close`",
  bucket: "`Bucket`",
  budget: "`Budget`: several limits, named costs",
  core: "loads the WebAssembly, owns its memory",
  waiters: "those who wait, by priority",
  clock: "the clock and its timers",
  errors: "`TollgateError`, the checks of arguments",
  events: "`on`",
};

/**
 * The weight of each part of `Limiter`: by how many bytes the whole is smaller without it, as esbuild minifies and
 * gzip compresses. Code shared by several is in none of them.
 */
export async function parts() {
  const imports = Object.keys(PARTS).map((module) => `export * from "${join(PACKAGE, module)}.js";`);
  const source = `export { Limiter } from "tollgate"; ${imports.join(" ")}`;
  const whole = gzip(await bundled(source));
  const rows = Object.entries(PARTS).map(async ([module, name]) => ({
    name,
    bytes: whole - gzip(await bundled(source, { without: module })),
  }));
  return await Promise.all(rows);
}

/** By the command: Node's own zlib gives different sizes. */
function gzip(bytes) {
  return execFileSync("gzip", ["-9n"], { input: bytes }).length;
}
