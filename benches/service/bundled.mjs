// Workers that import the built one.
import { mkdirSync, writeFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/** The Worker bundled with its imports into one file, as Wrangler would send it. */
export async function bundled(url) {
  const outdir = fileURLToPath(new URL("../../build/bench/", import.meta.url));
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(url)],
    bundle: true,
    minify: true,
    format: "esm",
    external: ["cloudflare:*"],
    loader: { ".wasm": "copy" },
    outdir,
    write: false,
  });
  mkdirSync(outdir, { recursive: true });
  for (const { path, contents } of outputFiles) writeFileSync(path, contents);
  const names = outputFiles.map(({ path }) => basename(path));
  const main = names.filter((name) => name.endsWith(".js"));
  return Object.fromEntries(
    [...main, ...names.filter((name) => !main.includes(name))].map((name) => [name, outdir + name]),
  );
}
