// Bundles a module as a browser gets it.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const PACKAGE = fileURLToPath(new URL("../../build/package", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));

/**
 * The text of `source`, bundled and minified with whatever it imports but for what is `external`. Of the package's module
 * `without`, only the names of what it exports are left: the result is there to be weighed, not to be run.
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

/** Replaces what `module` of the package exports by nothing. */
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
