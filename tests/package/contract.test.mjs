// The client's types are those of the contract of the HTTP API.
import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { typesOf } from "../contract/types.mjs";
import { root, run } from "./stranger.mjs";

const contract = JSON.parse(readFileSync(join(root, "src/api/openapi.json"), "utf8"));
const folder = mkdtempSync(join(tmpdir(), "tollgate-contract-"));
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
after(() => rmSync(folder, { recursive: true }));

test("requests and answers have exactly the client's types", async () => {
  await check(contract);
});

test("a contract with another member, type or status fails the check", async () => {
  for (const [change, error] of [
    [({ Verdict }) => Object.assign(Verdict.properties, { more: { type: "string" } }), /onlyInB/],
    [({ TokenCounts }) => delete TokenCounts.properties.near_limit, /near_limit/],
    [({ Moment }) => Object.assign(Moment, { type: "string" }), /'string' is not assignable to type 'number'/],
    [({ Cause }) => Cause.enum.push("other"), /"other"/],
    [({ Inspection }) => Inspection.required.pop(), /is optional in type/],
    [({ Unauthorized }) => Object.assign(Unauthorized.properties.status, { const: 402 }), /402/],
    [({ TakeRequest }) => Object.assign(TakeRequest.properties, { more: { type: "string" } }), /onlyInB/],
  ]) {
    const changed = structuredClone(contract);
    change(changed.components.schemas);
    await assert.rejects(check(changed), error, String(change));
  }
});

/** Checks tests/contract/types.ts with the types of this contract. Rejects with the compiler's errors. */
async function check({ components }) {
  const problems = Object.entries(components.schemas).filter(([, { properties }]) => properties?.type?.const);
  const names = problems.map(([name]) => `${name}: ${name};`).join(" ");
  mkdirSync(join(folder, "src"), { recursive: true });
  writeFileSync(join(folder, "src/wire.ts"), `${typesOf({ components })}export type Problems = { ${names} };\n`);
  copyFileSync(join(root, "tests/contract/types.ts"), join(folder, "src/types.ts"));
  const compilerOptions = {
    noEmit: true,
    rootDir: "/",
    paths: { "tollgate/client": [join(root, "www/package/src/client.ts")] },
  };
  const tsconfig = { extends: join(root, "www/package/tsconfig.json"), compilerOptions, include: ["src"] };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(tsconfig));
  await run("tsc", ["-p", ".", "--pretty", "false"], folder);
}
