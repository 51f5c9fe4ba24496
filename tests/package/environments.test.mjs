// The package behaves the same wherever JavaScript runs, installed as a stranger would: without settings or plug-ins.
import assert from "node:assert/strict";
import { globSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { createServer as createViteServer, build as viteBuild, preview as vitePreview } from "vite";
import { Runtime } from "../http/runtime.mjs";
import { page, serve, visit } from "./pages.mjs";
import { EXPECTED } from "./programs/exercise.mjs";
import { EXPECTED_KEYED } from "./programs/exercise-keyed.mjs";
import { EXPECTED_LINT } from "./programs/exercise-lint.mjs";
import { coreText, modules, printed, run, stranger } from "./stranger.mjs";
import { webpackBuild } from "./webpack.mjs";

const { folder } = await stranger({ beside: ["hono", "react", "react-dom"] });
const write = (name, text) => {
  mkdirSync(join(folder, name, ".."), { recursive: true });
  writeFileSync(join(folder, name), text);
};
const core = readFileSync(join(folder, "node_modules/tollgate/core.wasm"));

/** The outcome of programs/page.mjs. */
const PAGE = {
  outcome: { isOne: true, hooked: ["true 3 0", "false 0 334", "false 0 334", "true 1 0"], exercise: EXPECTED },
  instances: 1,
};
/** The outcome of programs/keyed.mjs. */
const KEYED = { isOne: true, exercise: EXPECTED_KEYED };
/** The outcome of programs/slim.mjs. */
const NOT_INITIALISED = { name: "TollgateError", code: "not_initialised", message: "call init(module) first" };
const SLIM = { before: [NOT_INITIALISED, NOT_INITIALISED], exercise: EXPECTED, again: EXPECTED };

/**
 * A page that loads the module as a file. `wasm` is the statement that gives its `url`, in the form that the bundler
 * knows.
 */
const slimPage = (wasm) => `
  ${wasm}
  import * as tollgate from "tollgate/slim";
  import { exercise } from "./exercise.mjs";
  WebAssembly.instantiateStreaming(fetch(url)).then(async ({ instance }) => {
    tollgate.init(instance);
    globalThis.outcome = await exercise(tollgate);
  });
`;
const SLIM_PAGE = { outcome: EXPECTED, instances: 0 };

describe("Node", () => {
  const node = (...args) => printed(process.execPath, args, folder);

  test("imports it, and slim has the same exports", async () => {
    assert.deepEqual(await node("whole.mjs"), { isOne: true, exercise: EXPECTED });
  });
  test("imports the keyed limiter, and no timer of it keeps the process alive", async () => {
    assert.deepEqual(await node("keyed.mjs"), KEYED);
  });
  test("imports the lint", async () => {
    assert.deepEqual(await node("lint.mjs"), EXPECTED_LINT);
  });
  test("imports it from CommonJS", async () => {
    assert.deepEqual(await node("import.cjs"), EXPECTED);
  });
  test("requires it, and its hook", {
    skip: !process.features.require_module && `Node ${process.version} cannot require an ES module`,
  }, async () => {
    assert.deepEqual(await node("require.cjs"), { html: "3 left", exercise: EXPECTED });
  });
  for (const form of ["bytes", "module", "instance", "function"]) {
    test(`slim says what to call first, and takes the core as ${form}, once`, async () => {
      assert.deepEqual(await node("slim.mjs", form), SLIM);
    });
  }
  test("prints no warning", async () => {
    assert.equal((await run(process.execPath, ["whole.mjs"], folder)).stderr, "");
  });
});

describe("Deno and Bun", () => {
  // Not from node_modules/.bin, which has wrappers for Node.
  const runtimes = [
    {
      name: "Deno",
      pattern: "@deno/*/deno",
      whole: ["run", "--cached-only"],
      slim: ["run", "--cached-only", "--allow-read"],
    },
    { name: "Bun", pattern: "@oven/bun-*/bin/bun", whole: ["--no-install"], slim: ["--no-install"] },
  ];
  for (const { name, pattern, whole, slim } of runtimes) {
    const [binary] = globSync(pattern, { cwd: modules }).map((path) => join(modules, path));
    const skip = !binary && `node_modules has no ${name} for ${process.platform} on ${process.arch}`;
    test(`${name} imports it, without permissions`, { skip }, async () => {
      assert.deepEqual(await printed(binary, [...whole, "whole.mjs"], folder), { isOne: true, exercise: EXPECTED });
    });
    test(`${name} imports the keyed limiter`, { skip }, async () => {
      assert.deepEqual(await printed(binary, [...whole, "keyed.mjs"], folder), KEYED);
    });
    test(`${name} imports the lint`, { skip }, async () => {
      assert.deepEqual(await printed(binary, [...whole, "lint.mjs"], folder), EXPECTED_LINT);
    });
    test(`${name} serves an app on Hono with a limit per address`, { skip }, async () => {
      const args = [...whole, ...(name === "Deno" ? ["--allow-net=127.0.0.1"] : []), "hono.mjs"];
      const { left, ...answers } = await printed(binary, args, folder);
      assert.deepEqual(answers, { passed: 200, text: "passed", refused: 429 });
      assert.match(left, /^"default";r=0;t=\d+$/);
    });
    test(`${name} imports slim`, { skip }, async () => {
      assert.deepEqual(await printed(binary, [...slim, "slim.mjs", "bytes"], folder), SLIM);
    });
  }
});

describe("Vite", () => {
  write("vite/index.html", page("/page.mjs"));
  write("vite/slim.html", page("/slim-page.mjs"));
  for (const name of ["page.mjs", "exercise.mjs"]) write(`vite/${name}`, readFileSync(join(folder, name)));
  write("vite/slim-page.mjs", slimPage(`import url from "tollgate/core.wasm?url";`));
  const root = join(folder, "vite");
  const common = { root, configFile: false, logLevel: "error", clearScreen: false };

  test("serves it in development", async () => {
    const server = await createViteServer({ ...common, server: { host: "127.0.0.1", port: 0 } });
    try {
      await server.listen();
      const [url] = server.resolvedUrls.local;
      assert.deepEqual(await visit(url), PAGE);
      assert.deepEqual(await visit(`${url}slim.html`), SLIM_PAGE);
    } finally {
      await server.close();
    }
  });
  test("builds it", async () => {
    const input = [join(root, "index.html"), join(root, "slim.html")];
    await viteBuild({ ...common, build: { outDir: "dist", rollupOptions: { input } } });
    const server = await vitePreview({ ...common, build: { outDir: "dist" }, preview: { host: "127.0.0.1", port: 0 } });
    try {
      const [url] = server.resolvedUrls.local;
      assert.deepEqual(await visit(url), PAGE);
      assert.deepEqual(await visit(`${url}slim.html`), SLIM_PAGE);
    } finally {
      await server.close();
    }
  });
});

test("webpack builds it for production", async () => {
  write("webpack-slim.mjs", slimPage(`const url = new URL("tollgate/core.wasm", import.meta.url);`));
  const path = join(folder, "webpack");
  assert.deepEqual(await webpackBuild(folder, { page: "./page.mjs", slim: "./webpack-slim.mjs" }, path), []);
  write("webpack/index.html", page("page.js", "text/javascript"));
  write("webpack/slim.html", page("slim.js", "text/javascript"));
  const { url } = await serve(path);
  assert.deepEqual(await visit(`${url}/index.html`), PAGE);
  assert.deepEqual(await visit(`${url}/slim.html`), SLIM_PAGE);
});

test("esbuild bundles it", async () => {
  write("esbuild-slim.mjs", slimPage(`import url from "tollgate/core.wasm";`));
  const args = [
    "--bundle",
    "--minify",
    "--format=esm",
    '--define:process.env.NODE_ENV="production"',
    "--loader:.wasm=file",
    "--outdir=esbuild",
  ];
  const { stderr } = await run("esbuild", ["page.mjs", "esbuild-slim.mjs", "--log-level=warning", ...args], folder);
  assert.equal(stderr, "");
  write("esbuild/index.html", page("page.js"));
  write("esbuild/slim.html", page("esbuild-slim.js"));
  const { url } = await serve(join(folder, "esbuild"));
  assert.deepEqual(await visit(`${url}/index.html`), PAGE);
  assert.deepEqual(await visit(`${url}/slim.html`), SLIM_PAGE);
});

test("esbuild and webpack bundle the keyed limiter for a server", async () => {
  await run(
    "esbuild",
    ["keyed.mjs", "--bundle", "--platform=node", "--format=esm", "--outfile=keyed/esbuild.mjs"],
    folder,
  );
  await webpackBuild(folder, { webpack: "./keyed.mjs" }, join(folder, "keyed"));
  for (const file of ["keyed/esbuild.mjs", "keyed/webpack.js"])
    assert.deepEqual(await printed(process.execPath, [file], folder), KEYED, file);
});

test("vite, webpack and esbuild bundle the lint for a page", async () => {
  const path = join(folder, "linting");
  const root = join(folder, "vite-lint");
  for (const name of ["lint.mjs", "exercise-lint.mjs"]) write(`vite-lint/${name}`, readFileSync(join(folder, name)));
  write("vite-lint/index.html", page("/lint.mjs"));
  await viteBuild({ root, configFile: false, logLevel: "error", build: { outDir: join(path, "vite") } });
  assert.deepEqual(await webpackBuild(folder, { lint: "./lint.mjs" }, join(path, "webpack")), []);
  const args = ["--bundle", "--minify", "--format=esm", "--outdir=linting/esbuild"];
  await run("esbuild", ["lint.mjs", ...args], folder);
  for (const bundler of ["webpack", "esbuild"]) write(`linting/${bundler}/index.html`, page("lint.js"));
  for (const bundler of ["vite", "webpack", "esbuild"]) {
    const { url } = await serve(join(path, bundler));
    assert.deepEqual((await visit(`${url}/index.html`)).outcome, EXPECTED_LINT, bundler);
  }
});

describe("a page without a bundler", () => {
  const program = (from) => page(`/static.mjs?from=${from}`);
  write("static.html", program("/node_modules/tollgate/index.js"));
  write("refused.html", page("/refused.mjs"));

  test("imports the files as they are", async () => {
    const { url } = await serve(folder);
    assert.deepEqual(await visit(`${url}/static.html`), { outcome: EXPECTED, instances: 1 });
  });
  test("imports them from another origin, as from a CDN", async () => {
    const cdn = await serve(join(folder, "node_modules"), { "access-control-allow-origin": "*" });
    const { url } = await serve(folder);
    write("cdn.html", program(`${cdn.url}/tollgate/index.js`));
    assert.deepEqual(await visit(`${url}/cdn.html`), { outcome: EXPECTED, instances: 1 });
  });
  test("may have a strict policy, with 'wasm-unsafe-eval'", async () => {
    const { url } = await serve(folder, {
      "content-security-policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'",
    });
    assert.deepEqual(await visit(`${url}/static.html`), { outcome: EXPECTED, instances: 1 });
  });
  test("without it, throws at each use and not on import", async () => {
    const { url } = await serve(folder, { "content-security-policy": "default-src 'none'; script-src 'self'" });
    const { outcome, instances } = await visit(`${url}/refused.html`);
    assert.equal(instances, 0);
    assert.equal(outcome.length, 3);
    for (const { message, ...error } of outcome) {
      assert.match(
        message,
        /^CompileError: .*Content Security Policy.*script-src 'self'.*: allow 'wasm-unsafe-eval'$/s,
      );
      assert.deepEqual(error, { name: "TollgateError", code: "wasm_failed", cause: "CompileError" });
    }
  });
});

describe("a Worker", () => {
  /** The answer of a built Worker on workerd, the real runtime. */
  const workerd = async (out, main) => {
    const files = readdirSync(join(folder, out)).filter((name) => /\.(js|wasm)$/.test(name));
    const names = [main, ...files.filter((name) => name !== main)];
    const runtime = new Runtime();
    await runtime.start({
      modules: Object.fromEntries(names.map((name) => [name, join(folder, out, name)])),
      bindings: {},
    });
    const response = await fetch(`http://127.0.0.1:${runtime.port}/`);
    const text = await response.text();
    assert.equal(response.status, 200, `${text}\n${runtime.log}`);
    return JSON.parse(text);
  };
  /** The WebAssembly files of a bundle, and whether its text contains the bytes too. */
  const wasmOf = (out, main) => {
    const files = readdirSync(join(folder, out)).filter((name) => name.endsWith(".wasm"));
    const text = readFileSync(join(folder, out, main), "utf8");
    return {
      files: files.map((name) => readFileSync(join(folder, out, name))),
      isInText: text.includes(coreText(folder)),
    };
  };
  const bundle = (program, ...args) =>
    run("esbuild", [`${program}.mjs`, "--bundle", "--format=esm", `--outdir=${program}`, ...args], folder);
  after(Runtime.removeAll);

  test("gets the core as a module from Wrangler", async () => {
    const date = ["--compatibility-date", "2026-11-01"];
    await run(
      "wrangler",
      ["deploy", "worker.mjs", "--name", "worker", ...date, "--dry-run", "--outdir", "wrangler"],
      folder,
    );
    assert.deepEqual(wasmOf("wrangler", "worker.js"), { files: [core], isInText: false });
    assert.deepEqual(await workerd("wrangler", "worker.js"), {
      early: 3,
      start: [0, false, true], // the limiter starts when it is first used, not full after half a century
      exercise: EXPECTED,
    });
  });
  test("does not compile at run time, which the platform refuses", async () => {
    await bundle("worker-late");
    assert.deepEqual(wasmOf("worker-late", "worker-late.js"), { files: [], isInText: true });
    const error = "CompileError: WebAssembly.Module(): Wasm code generation disallowed by embedder";
    assert.equal(await workerd("worker-late", "worker-late.js"), error);
    await bundle("worker-late", "--conditions=workerd", "--loader:.wasm=copy");
    assert.equal(await workerd("worker-late", "worker-late.js"), 3);
  });
  test("has a keyed limiter, with the core as a module", async () => {
    await bundle("worker-keyed", "--conditions=workerd", "--loader:.wasm=copy");
    const { files, isInText } = wasmOf("worker-keyed", "worker-keyed.js");
    assert.deepEqual([files, isInText], [[core], false]);
    assert.deepEqual(await workerd("worker-keyed", "worker-keyed.js"), {
      own: [true, false],
      exercise: EXPECTED_KEYED,
    });
  });
  test("has more kinds of limit, with their module", async () => {
    await bundle("worker-kinds", "--conditions=workerd", "--loader:.wasm=copy");
    assert.equal(wasmOf("worker-kinds", "worker-kinds.js").isInText, false);
    assert.deepEqual(await workerd("worker-kinds", "worker-kinds.js"), [
      [true, Date.UTC(2027, 1, 15, 3)],
      [true, Date.UTC(2027, 0, 20, 0, 1)],
      [true, 1375],
    ]);
  });
  test("has the lint, with its module", async () => {
    await bundle("worker-lint", "--conditions=workerd", "--loader:.wasm=copy");
    assert.equal(wasmOf("worker-lint", "worker-lint.js").files.length, 1);
    assert.deepEqual(await workerd("worker-lint", "worker-lint.js"), EXPECTED_LINT);
  });
  test("decides from leases, with their module", async () => {
    await bundle("worker-leases", "--conditions=workerd", "--loader:.wasm=copy");
    assert.equal(wasmOf("worker-leases", "worker-leases.js").files.length, 1);
    assert.deepEqual(await workerd("worker-leases", "worker-leases.js"), [false, false, true, true]);
  });
  test("can pass the module to slim", async () => {
    await bundle("worker-slim", "--conditions=workerd", "--loader:.wasm=copy");
    assert.deepEqual(await workerd("worker-slim", "worker-slim.js"), { isModule: true, exercise: EXPECTED });
  });
});
