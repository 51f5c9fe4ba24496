// What the crate costs at compile time, beside governor and tower_governor: crates in a program that needs nothing else, and the time to
// build them from nothing.
//   node benches/crates/main.mjs [--rounds 3]
// The dependencies are the newest that Cargo finds. They are fetched before anything is timed.
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values } = parseArgs({ options: { rounds: { type: "string", default: "3" } } });

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const tollgate = (features) =>
  `tollgate = { path = ${JSON.stringify(ROOT)}, default-features = false, features = ${JSON.stringify(features)} }`;

const CONTESTANTS = {
  "no feature": tollgate([]),
  std: tollgate(["std"]),
  serde: tollgate(["std", "serde"]),
  api: tollgate(["api"]),
  tower: tollgate(["tower"]),
  axum: tollgate(["axum"]),
  "governor, without default features": 'governor = { version = "0.10", default-features = false, features = ["std"] }',
  governor: 'governor = "0.10"',
  "tower_governor, without default features": 'tower_governor = { version = "0.8", default-features = false }',
  tower_governor: 'tower_governor = "0.8"',
};

const { CARGO_TARGET_DIR: _, ...env } = process.env; // each program has its own, to be removed

function cargo(folder, ...options) {
  const { status, stdout, stderr } = spawnSync("cargo", options, { cwd: folder, encoding: "utf8", env });
  if (status !== 0) throw new Error(`cargo ${options.join(" ")}: ${stderr}`);
  return stdout;
}

const programs = Object.entries(CONTESTANTS).map(([name, dependency], index) => {
  const folder = `${ROOT}build/crates/${index}`;
  rmSync(folder, { recursive: true, force: true }); // with its lock file, or its versions would be those of an earlier run
  mkdirSync(`${folder}/src`, { recursive: true });
  const head = '[package]\nname = "program"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n';
  writeFileSync(`${folder}/Cargo.toml`, `${head}${dependency}\n`);
  writeFileSync(`${folder}/src/main.rs`, "fn main() {}\n");
  cargo(folder, "fetch", "--quiet");
  const tree = cargo(folder, "tree", "--edges", "normal", "--prefix", "none", "--format", "{p}");
  const crates = new Set(tree.split("\n").filter((line) => line && !line.endsWith("(*)")));
  return { name, folder, crates: crates.size - 1, seconds: [] };
});

for (let round = 0; round < Number(values.rounds); round++) {
  for (const { folder, seconds } of programs) {
    rmSync(`${folder}/target`, { recursive: true, force: true });
    const began = performance.now();
    cargo(folder, "build", "--quiet", "--offline");
    seconds.push((performance.now() - began) / 1000);
    rmSync(`${folder}/target`, { recursive: true, force: true });
  }
}

const shown = (numbers) => {
  const sorted = numbers.toSorted((a, b) => a - b);
  return `${sorted[Math.floor(sorted.length / 2)].toFixed(1)} s (${sorted[0].toFixed(1)} to ${sorted.at(-1).toFixed(1)})`;
};
console.log("| | crates | build |\n|---|---|---|");
for (const { name, crates, seconds } of programs) console.log(`| ${name} | ${crates} | ${shown(seconds)} |`);
