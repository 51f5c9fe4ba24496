// The published package: its files, its entries, and what bundlers make of it.
import assert from "node:assert/strict";
import {
  copyFileSync,
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { gzipSync } from "node:zlib";
import { publint } from "publint";
import { build as viteBuild } from "vite";
import { coreText, printed, root, run, stranger } from "./stranger.mjs";
import { webpackBuild } from "./webpack.mjs";

const { folder, tarball, size, unpackedSize, files } = await stranger();
const installed = join(folder, "node_modules/tollgate");
const manifest = JSON.parse(readFileSync(join(installed, "package.json")));

test("has the modules of www/package/src with their types, the Worker, and nothing else", (t) => {
  const modules = globSync("www/package/src/*.ts", { cwd: root })
    .map((path) => path.split("/").at(-1).slice(0, -".ts".length))
    .filter((name) => !/\.d(\.|$)/.test(name));
  assert.ok(modules.length > 10);
  const others = [
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "answers-wasm.js",
    "carry-wasm.js",
    "core.wasm",
    "kinds-wasm.js",
    "kinds.wasm",
    "leases-wasm.js",
    "leases.wasm",
    "lint-wasm.js",
    "lint.wasm",
    "llms.txt",
    "package.json",
    "wasm.js",
  ];
  const halves = globSync("src/worker/*.mjs", { cwd: root }).map((path) => path.split("/").at(-1));
  const rust = files.filter((path) => /^worker\/rust\/(index\.js|index_bg\.wasm|snippets\/.*\.js)$/.test(path));
  assert.equal(rust.filter((path) => !path.includes("/snippets/")).length, 2);
  const worker = [...halves, "contract.mjs"].map((name) => `worker/${name}`).concat(rust);
  const commands = globSync("www/package/src/cli/*.{ts,mjs}", { cwd: root }).map((path) =>
    path.replace("www/package/src/", "").replace(/\.ts$/, ".js"),
  );
  const template = globSync("www/package/template/*", { cwd: root }).map((path) => path.replace("www/package/", ""));
  assert.deepEqual(
    files.toSorted(),
    [
      ...modules.flatMap((name) => [`${name}.js`, `${name}.d.ts`]),
      ...others,
      ...worker,
      ...commands,
      ...template,
    ].sort(),
  );
  t.diagnostic(`${size} bytes packed, ${unpackedSize} unpacked, in ${files.length} files`);
});

test("the Worker's WebAssembly contains no path of the machine that built it", () => {
  const wasm = readFileSync(join(installed, "worker/rust/index_bg.wasm"), "latin1");
  assert.match(wasm, /src\/[a-z_]+\.rs/, "panics say where");
  const { CARGO_HOME = join(homedir(), ".cargo") } = process.env;
  for (const path of [root, CARGO_HOME]) assert.ok(!wasm.includes(path), path);
});

test("has no dependencies", () => {
  const { packages } = JSON.parse(readFileSync(join(folder, "package-lock.json")));
  assert.deepEqual(Object.keys(packages), ["", "node_modules/tollgate"]);
});

test("has every file that its exports and side effects name, with types first", () => {
  const { exports, sideEffects } = manifest;
  assert.deepEqual(Object.keys(exports), [
    ".",
    "./slim",
    "./client",
    "./grants",
    "./keyed",
    "./kinds",
    "./leases",
    "./lint",
    "./rate",
    "./react",
    "./hono",
    "./node",
    "./shared",
    "./testing",
    "./worker",
    "./core.wasm",
    "./package.json",
  ]);
  const targets = Object.values(exports).flatMap((to) => (typeof to === "string" ? to : Object.values(to)));
  for (const path of [...targets, ...sideEffects]) assert.ok(existsSync(join(installed, path)), path);
  for (const to of Object.values(exports)) {
    if (typeof to === "object") assert.deepEqual([Object.keys(to)[0], Object.keys(to).at(-1)], ["types", "default"]);
  }
});

test("its hook is for client components", () => {
  assert.match(readFileSync(join(installed, "react.js"), "utf8"), /^"use client";\n/);
});

test("has the version of the crate, and the template asks for it", () => {
  const { version } = manifest;
  const text = (path) => readFileSync(join(root, path), "utf8");
  assert.equal(text("Cargo.toml").match(/^version = "(.*)"$/m)[1], version);
  assert.equal(JSON.parse(text("www/package/template/package.json")).dependencies.tollgate, `^${version}`);
});

test("its llms.txt leads to every document that users read", () => {
  const text = readFileSync(join(installed, "llms.txt"), "utf8");
  const paths = [...text.matchAll(/^- \[.+?\]\((.+?)\): \S/gm)].map(([, path]) =>
    path.replace(/^https:.*?\/blob\/v[^/]+\//, ""),
  );
  const documents = ["*.md", "docs/*.md", "{benches,src,www/package}/*.md"].flatMap((pattern) =>
    globSync(pattern, { cwd: root }),
  );
  const ofMaintainers = ["CHANGELOG.md", "docs/releasing.md"];
  assert.deepEqual(paths.toSorted(), documents.filter((path) => !ofMaintainers.includes(path)).toSorted());
});

test("publint finds nothing", async () => {
  const { buffer, byteOffset, byteLength } = readFileSync(tarball);
  const { messages } = await publint({
    pack: { tarball: buffer.slice(byteOffset, byteOffset + byteLength) },
    strict: true,
  });
  assert.deepEqual(messages, []);
});

test("attw finds nothing", async () => {
  // Without core.wasm, whose type each bundler defines. ES modules only: the package has no others.
  const args = [tarball, "--profile", "esm-only", "--exclude-entrypoints", "core.wasm", "--format", "json"];
  const { analysis } = await printed("attw", args, folder); // fails if it finds a problem
  assert.deepEqual(Object.keys(analysis.entrypoints), [
    ".",
    "./slim",
    "./client",
    "./grants",
    "./keyed",
    "./kinds",
    "./leases",
    "./lint",
    "./rate",
    "./react",
    "./hono",
    "./node",
    "./shared",
    "./testing",
    "./worker",
    "./package.json",
  ]);
});

describe("tree shaking", () => {
  const part = `
    import { Bucket } from "tollgate";
    const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
    bucket.tryConsume(0, 3);
    console.log(bucket.peek(0).retryAt);
  `;
  const whole = `
    import * as tollgate from "tollgate";
    import * as shared from "tollgate/shared";
    import * as slim from "tollgate/slim";
    console.log(Object.keys(tollgate).length, shared, slim);
  `;
  writeFileSync(join(folder, "part.mjs"), part);
  writeFileSync(join(folder, "whole.mjs"), whole);
  /** Text that only these parts contain. */
  const MARKS = {
    SharedLimiter: "BroadcastChannel",
    tabs: "indexedDB",
    Client: "/v1/",
    limitFetch: "retry-after",
    Queue: "drop_oldest",
  };

  const bundlers = {
    async esbuild(name, out) {
      await run(
        "esbuild",
        [`${name}.mjs`, "--bundle", "--minify", "--format=esm", `--outfile=${out}/${name}.js`],
        folder,
      );
    },
    async webpack(name, out) {
      assert.deepEqual(await webpackBuild(folder, { [name]: `./${name}.mjs` }, join(folder, out)), []);
    },
    async vite(name, out) {
      const rollupOptions = { input: join(folder, `${name}.mjs`), output: { entryFileNames: "[name].js" } };
      await viteBuild({
        root: folder,
        configFile: false,
        logLevel: "error",
        build: { outDir: out, emptyOutDir: false, rollupOptions },
      });
    },
  };
  for (const [bundler, bundle] of Object.entries(bundlers)) {
    test(`${bundler} ships only what is used`, async (t) => {
      const out = `parts-${bundler}`;
      const texts = {};
      for (const name of ["part", "whole"]) {
        await bundle(name, out);
        const path = join(folder, out, `${name}.js`);
        texts[name] = readFileSync(path, "utf8");
        t.diagnostic(`${name}: ${statSync(path).size} bytes, ${gzipSync(texts[name]).length} compressed`);
      }
      for (const [what, mark] of Object.entries(MARKS)) {
        assert.ok(texts.whole.includes(mark), `${what} is in the whole bundle`);
        assert.ok(!texts.part.includes(mark), `${what} is not in the part`);
      }
      assert.deepEqual(
        readdirSync(join(folder, out), { recursive: true }).filter((name) => name.includes("index_bg")),
        [],
        "the Worker is not there",
      );
      for (const text of Object.values(texts)) assert.ok(!text.includes("cloudflare:workers"));
      for (const text of Object.values(texts))
        assert.equal(text.split(coreText(folder)).length - 1, 1, "the core is there once");
      assert.equal(await printed(process.execPath, [join(out, "part.js")], folder), 334);
    });
  }
});

describe("its repository", () => {
  /** The manifest after scripts/name-repository has run with this environment. */
  const named = async (env) => {
    const copy = join(folder, "named");
    rmSync(copy, { recursive: true, force: true });
    mkdirSync(copy);
    copyFileSync(join(root, "www/package/package.json"), join(copy, "package.json"));
    await run(join(root, "scripts/name-repository"), [copy], folder, {
      env: { GITHUB_SERVER_URL: "", GITHUB_REPOSITORY: "", ...env },
    });
    return JSON.parse(readFileSync(join(copy, "package.json")));
  };
  const source = JSON.parse(readFileSync(join(root, "www/package/package.json")));

  test("is the one that CI builds from, as provenance requires", async () => {
    const env = { GITHUB_SERVER_URL: "https://github.example", GITHUB_REPOSITORY: "owner/repository" };
    const repository = {
      type: "git",
      url: "git+https://github.example/owner/repository.git",
      directory: "www/package",
    };
    assert.deepEqual(await named(env), { ...source, repository });
    assert.equal(source.publishConfig.provenance, true);
  });
  test("is absent elsewhere", async () => {
    assert.deepEqual(await named({}), source);
    assert.equal(source.repository, undefined);
  });
  test("is in the package that was built here", () => {
    const { GITHUB_SERVER_URL, GITHUB_REPOSITORY } = process.env;
    const isCI = GITHUB_SERVER_URL && GITHUB_REPOSITORY;
    assert.equal(manifest.repository?.url, isCI ? `git+${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}.git` : undefined);
  });
});
