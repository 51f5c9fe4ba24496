// The types, in each kind of TypeScript project.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { run, stranger } from "./stranger.mjs";

const { folder } = await stranger({
  beside: ["@types/express", "@types/node", "@types/react", "express", "fastify", "hono", "react"],
});
const uses = readFileSync(join(folder, "types/uses.ts"), "utf8");
const wrong = readFileSync(join(folder, "types/wrong.ts"), "utf8");

/** Where the platform's types come from. */
const PLATFORMS = {
  "a page": { lib: ["es2022", "dom", "dom.iterable"], types: [] },
  "Node with the types of a page": { lib: ["es2022", "dom"], types: ["node"] },
};
const RESOLUTIONS = {
  bundler: { module: "esnext", moduleResolution: "bundler" },
  nodenext: { module: "nodenext", moduleResolution: "nodenext" },
};

for (const [platform, has] of Object.entries(PLATFORMS)) {
  describe(`in ${platform}`, () => {
    for (const [resolution, resolves] of Object.entries(RESOLUTIONS)) {
      for (const skipLibCheck of [true, false]) {
        test(`${resolution} resolution, ${skipLibCheck ? "without" : "with"} checking its declarations`, async () => {
          await check({ ...has, ...resolves, skipLibCheck }, ["uses.ts", "compiled.ts", "wrong.ts"]);
        });
      }
    }
  });
}

test("works in the strictest project", async () => {
  const strictest = {
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    noPropertyAccessFromIndexSignature: true,
    verbatimModuleSyntax: true,
  };
  await check({ ...PLATFORMS["a page"], ...RESOLUTIONS.bundler, ...strictest, skipLibCheck: false }, ["uses.ts"]);
});

test("works with require in CommonJS", async () => {
  const required = `
    import tollgate = require("tollgate");
    export const allowed: boolean = new tollgate.Bucket(0, { rate: 1, periodMs: 1 }).tryConsume(0);
  `;
  writeFileSync(join(folder, "types/required.cts"), required);
  await check({ ...PLATFORMS["a page"], ...RESOLUTIONS.nodenext, skipLibCheck: false }, ["required.cts"]);
});

test("needs only Node's types on a server", async () => {
  await check({ lib: ["es2022"], types: ["node"], ...RESOLUTIONS.nodenext, skipLibCheck: false }, ["uses.ts"]);
});

test("servers take a limit by the types of their frameworks", async () => {
  for (const resolution of Object.values(RESOLUTIONS))
    await check({ ...PLATFORMS["Node with the types of a page"], ...resolution, skipLibCheck: true }, ["servers.ts"]);
});

test("needs only Cloudflare's types in a Worker", async () => {
  writeFileSync(join(folder, "worker.ts"), "export default {};\n");
  writeFileSync(
    join(folder, "wrangler.toml"),
    `name = "worker"\nmain = "worker.ts"\ncompatibility_date = "2026-11-01"\n`,
  );
  await run("wrangler", ["types", "types/cloudflare.d.ts"], folder);
  const bound = `
    import { Client, Limiter, limitFetch } from "tollgate";
    import wasm from "tollgate/core.wasm";
    import { init } from "tollgate/slim";
    export const client = (fetcher: Fetcher) => new Client({ url: "https://tollgate", token: "token", fetcher });
    export const limited: typeof fetch = limitFetch(new Limiter({ rate: 1, periodMs: 1 }));
    init(wasm);
  `;
  writeFileSync(join(folder, "types/bound.ts"), bound);
  await check({ lib: ["es2022"], types: [], ...RESOLUTIONS.bundler, skipLibCheck: false }, [
    "bound.ts",
    "worker.ts",
    "cloudflare.d.ts",
  ]);
});

test("types/uses.ts uses every export", () => {
  const names = ["index", "grants", "keyed", "leases", "node", "react", "shared", "testing"].flatMap(exportsOf);
  assert.ok(names.includes("Bucket") && names.includes("useRateLimit") && names.length > 40);
  const [, body] = uses.split(/^import .* from "tollgate\/slim";$/m);
  for (const name of names) {
    assert.match(body, new RegExp(`\\b${name}\\b`), `${name} is used`);
  }
});

test("every mark in types/wrong.ts is an error", async () => {
  const marks = wrong.match(/@ts-expect-error/g).length;
  writeFileSync(join(folder, "types/unmarked.ts"), wrong.replaceAll("@ts-expect-error", "not expected"));
  const failed = await check({ ...PLATFORMS["a page"], ...RESOLUTIONS.bundler, skipLibCheck: true }, [
    "unmarked.ts",
  ]).catch(({ message }) => message);
  const lines = [...failed.matchAll(/^types\/unmarked\.ts\((\d+),/gm)].map(([, line]) => Number(line));
  const expected = wrong.split("\n").flatMap((line, i) => (line.includes("@ts-expect-error") ? [i + 2] : []));
  assert.equal(expected.length, marks);
  assert.deepEqual([...new Set(lines)], expected);
});

/** Type-checks files of types/ in a project with these options. Rejects with the errors. */
async function check(options, files) {
  const tsconfig = {
    compilerOptions: { target: "es2022", strict: true, noEmit: true, ...options },
    files: files.map((name) => `types/${name}`),
  };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(tsconfig));
  await run("tsc", ["-p", ".", "--pretty", "false"], folder);
}

/** The names that a module exports, types included, from its declarations. */
function exportsOf(module) {
  const text = readFileSync(join(folder, `node_modules/tollgate/${module}.d.ts`), "utf8");
  const from = [...text.matchAll(/^export \* from "\.\/(.*)\.js";$/gm)].flatMap(([, other]) => exportsOf(other));
  const listed = [...text.matchAll(/^export (?:type )?\{ (.*?),? \} from/gm)].flatMap(([, names]) =>
    names.split(", ").map((name) => name.replace(/^type /, "")),
  );
  const declared = [...text.matchAll(/^export (?:declare )?(?:class|const|function|interface|type) (\w+)/gm)].map(
    ([, name]) => name,
  );
  return [...from, ...listed, ...declared];
}
