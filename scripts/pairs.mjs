// Prints which mechanisms have met on one budget in any test program; each leaves its table in build/pairs: see tests/pairs/mod.rs.
// Fails if a pair has never met although tests/pairs/apart.txt has no reason for it, or has met although it has one.
import { globSync, readFileSync } from "node:fs";

const APART = "tests/pairs/apart.txt";

const linesOf = (file) => readFileSync(file, "utf8").split("\n").filter(Boolean);

/** By mechanism, those it has met; itself if it has acted at all. */
const met = new Map();
for (const line of globSync("build/pairs/*.txt").flatMap(linesOf)) {
  const [name, names] = line.split(":");
  met.set(name, new Set([...(met.get(name) ?? []), ...names.split(" ").filter(Boolean)]));
}
if (met.size === 0) throw new Error("no test program has left a table in build/pairs");

/** By pair, in either order, why it cannot meet. */
const apart = new Map();
for (const line of linesOf(APART).filter((line) => !line.startsWith("#"))) {
  const [, one, others, why] = /^(\w+) × ([\w ]+): (.+\.)$/.exec(line) ?? [];
  if (!why) throw new Error(`${APART}: not of the form "A × B C: a sentence.": ${line}`);
  for (const other of others.split(" ")) {
    if (!met.has(one) || !met.has(other)) throw new Error(`${APART}: no such pair: ${one} × ${other}`);
    apart.set(`${one} ${other}`, why).set(`${other} ${one}`, why);
  }
}

const names = [...met.keys()];
const wrong = [];
const width = Math.max(...names.map((name) => name.length));
console.log(`\n# have met, - cannot meet, . have not met\n`);
for (const [index, name] of names.entries()) {
  const marks = names.slice(0, index + 1).map((other) => {
    const [hasMet, why] = [met.get(name).has(other), apart.get(`${name} ${other}`)];
    if (hasMet && why) wrong.push(`${name} × ${other} have met, and ${APART} says: ${why}`);
    if (!hasMet && !why) wrong.push(`${name} × ${other} have not met`);
    if (hasMet) return "#";
    return why ? "-" : ".";
  });
  console.log(`${name.padEnd(width)} ${String(index + 1).padStart(2)} ${marks.join(" ")}`);
}
console.log(`${" ".repeat(width + 3)} ${names.map((_, index) => (index + 1) % 10).join(" ")}\n`);
for (const line of wrong) console.error(line);
if (wrong.length > 0) process.exitCode = 1;
