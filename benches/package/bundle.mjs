// Bundles a module as for a browser.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const PACKAGE = fileURLToPath(new URL("../../build/package", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));

/**
 * The text of `source`, bundled and minified with its imports except the `external` ones. Of the package's module
 * `without`, only the names of its exports are left: the result is for weighing, not for running.
 */
export async function bundled(source, { external = [], minify = true, without } = {}) {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: HERE },
    bundle: true,
    minify,
    format: "esm",
    platform: "browser",
    target: "es2022",
    define: { "process.env.NODE_ENV": '"production"' }, // which esbuild takes for granted only where it minifies
    external,
    plugins: [TOLLGATE, ...(without ? [emptied(without)] : [])],
    write: false,
    logLevel: "error",
  });
  return outputFiles[0].text;
}

/** `tollgate` is the built package, by its own `exports`. */
const TOLLGATE = {
  name: "tollgate",
  setup(build) {
    build.onResolve({ filter: /^tollgate(\/|$)/ }, ({ path, kind, resolveDir }) => {
      if (resolveDir === PACKAGE) return undefined;
      return build.resolve(path, { kind, resolveDir: PACKAGE });
    });
  },
};

/** Replaces the exports of the package's `module` with nothing. */
function emptied(module) {
  return {
    name: "emptied",
    setup(build) {
      build.onLoad({ filter: new RegExp(`/build/package/${module}\\.js$`) }, ({ path }) => {
        const exported = readFileSync(path, "utf8").matchAll(/^export (?:class|const|function|let) (\w+)/gm);
        return { contents: Array.from(exported, ([, name]) => `export let ${name};`).join("\n") };
      });
    },
  };
}
