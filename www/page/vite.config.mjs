// Builds the page into build/page, from where Wrangler serves it. The package is that of build/library, as npm would install it.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  root: at("."),
  resolve: {
    alias: [
      { find: /^tollgate$/, replacement: at("../../build/library/index.js") },
      { find: /^tollgate\/(\w+)$/, replacement: at("../../build/library/$1.js") },
    ],
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: at("../../build/page"),
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the policy of the page takes no data: addresses
    modulePreload: { polyfill: false },
  },
});
