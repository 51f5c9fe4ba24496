// Bundles a module as a browser gets it.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const PACKAGE = fileURLToPath(new URL("../../build/package", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));

/** The text of `source`, bundled and minified with whatever it imports but for what is `external`. */
export async function bundled(source, { external = [], minify = true } = {}) {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: HERE },
    bundle: true,
    minify,
    format: "esm",
    platform: "browser",
    target: "es2022",
    define: { "process.env.NODE_ENV": '"production"' }, // which esbuild takes for granted only where it minifies
    external,
    plugins: [TOLLGATE],
    write: false,
    logLevel: "error",
  });
  return outputFiles[0].text;
}

/** `tollgate` is the package that was built, by its own `exports`. */
const TOLLGATE = {
  name: "tollgate",
  setup(build) {
    build.onResolve({ filter: /^tollgate(\/|$)/ }, ({ path, kind, resolveDir }) => {
      if (resolveDir === PACKAGE) return undefined;
      return build.resolve(path, { kind, resolveDir: PACKAGE });
    });
  },
};
