// Dependencies between the files of src, by their `use` lines and the paths in their code, without tests.
//   node scripts/rings.mjs           prints which ring needs which
//   node scripts/rings.mjs --check   fails if two files or two rings need each other, or if CONTRIBUTING.md says something else
// A ring is a folder of src, or a file beside them. A re-export counts for the file that defines it.
import { globSync, readFileSync } from "node:fs";

const ROOT = new URL("../", import.meta.url);
const GUIDE = ".github/CONTRIBUTING.md";

const files = new Map(); // by module, such as "policy::named"
for (const file of globSync("src/**/*.rs", { cwd: ROOT })) {
  const path = file.replace(/^src\//, "").replace(/(\/?mod|^lib)?\.rs$/, "");
  files.set(path.replaceAll("/", "::"), { file, ...parsed(readFileSync(new URL(file, ROOT), "utf8")) });
}

/** The paths of a file's `use` lines, its re-exports by name, and the paths in its code. */
function parsed(text) {
  const code = text
    .replace(/\/\/.*$/gm, "")
    .replace(/^#\[cfg\((?:test|all\(test, .*\))\)\]\s*mod \w+ \{[\s\S]*?^\}/gm, "");
  const used = [];
  const exported = new Map();
  const rest = code.replace(/^\s*(pub(?:\([\w ]+\))?\s+)?use ([^;]+);/gm, (_, isExported, tree) => {
    for (const [path, name] of leaves(tree.replace(/\s+/g, " "))) {
      if (isExported) exported.set(name, path);
      else used.push(path);
    }
    return "";
  });
  const paths = [...rest.matchAll(/(?<![\w:])\w+(?:::\w+)+/g)].map(([path]) => path);
  return { used: [...used, ...paths], exported };
}

/** The paths of a `use` tree, each with its name: `a::{b, c as d}` has `a::b` and `a::c`, the latter as `d`. */
function leaves(tree, before = "") {
  const brace = tree.indexOf("{");
  if (brace < 0) {
    const [path, name] = tree.trim().split(" as ");
    const whole = before + path.replace(/(::)?\bself$/, "");
    return [[whole.replace(/::$/, ""), name ?? whole.split("::").findLast(Boolean)]];
  }
  const parts = [];
  let [depth, from] = [0, brace + 1];
  for (let at = brace; at < tree.length; at++) {
    if (tree[at] === "{") depth++;
    if (tree[at] === "}") depth--;
    if ((tree[at] === "," && depth === 1) || depth === 0) {
      parts.push(tree.slice(from, at));
      from = at + 1;
      if (depth === 0) break;
    }
  }
  const prefix = before + tree.slice(0, brace).trim();
  return parts.filter((part) => part.trim()).flatMap((part) => leaves(part.trim(), prefix));
}

/** The module that defines what `path` names in `module`, if it is one of ours. */
function home(module, path, tried = new Set()) {
  let [at, ...names] = path.split("::");
  let where = module;
  if (at === "crate") where = "";
  else if (at === "super") where = parent(module);
  else if (at === "self") where = module;
  else if (files.has(inside(module, at)) || files.get(module).exported.has(at)) names = [at, ...names];
  else return undefined;
  for (at of names) {
    if (at === "super") where = parent(where);
    else if (files.has(inside(where, at))) where = inside(where, at);
    else {
      const again = files.get(where).exported.get(at);
      const key = `${where} ${at}`;
      if (again === undefined || tried.has(key)) return where;
      return home(where, again, tried.add(key)) ?? where;
    }
  }
  return where;
}

const parent = (module) => module.split("::").slice(0, -1).join("::");
const inside = (module, name) => (module === "" ? name : `${module}::${name}`);
const ringOf = (module) => module.split("::")[0];

const needs = new Map();
for (const [module, { used }] of files) {
  const homes = used.map((path) => home(module, path)).filter((of) => of !== undefined && of !== module && of !== "");
  needs.set(module, new Set(homes));
}
const rings = new Map();
for (const [module, of] of needs) {
  if (module === "") continue;
  const ring = rings.get(ringOf(module)) ?? rings.set(ringOf(module), new Set()).get(ringOf(module));
  for (const other of of) if (ringOf(other) !== ringOf(module)) ring.add(ringOf(other));
}

/** The cycles, as lists, by Tarjan's algorithm. */
function circles(graph) {
  const [index, low, stack, found] = [new Map(), new Map(), [], []];
  const visit = (node) => {
    index.set(node, index.size);
    low.set(node, index.get(node));
    stack.push(node);
    for (const next of graph.get(node) ?? []) {
      if (!index.has(next)) visit(next);
      if (stack.includes(next)) low.set(node, Math.min(low.get(node), low.get(next)));
    }
    if (low.get(node) === index.get(node)) {
      const circle = stack.splice(stack.indexOf(node));
      if (circle.length > 1) found.push(circle);
    }
  };
  for (const node of graph.keys()) if (!index.has(node)) visit(node);
  return found;
}

/** All that a ring needs, directly or not. */
function reach(ring, seen = new Set()) {
  for (const other of rings.get(ring) ?? []) if (!seen.has(other)) reach(other, seen.add(other));
  return seen;
}

const wrong = [
  ...circles(needs).map((circle) => `These files need each other: ${circle.join(", ")}`),
  ...circles(rings).map((circle) => `These rings need each other: ${circle.join(", ")}`),
];
const lines = [];
if (wrong.length === 0) {
  const byDepth = [...rings.keys()].sort((a, b) => reach(b).size - reach(a).size || (a < b ? -1 : 1));
  for (const ring of byDepth) {
    const direct = [...rings.get(ring)].sort();
    const nearest = direct.filter((other) => !direct.some((via) => via !== other && reach(via).has(other)));
    if (nearest.length > 0) lines.push(`${ring} → ${nearest.join(", ")}`);
  }
}
const block = `\`\`\`text\n${lines.join("\n")}\n\`\`\``;
if (process.argv[2] === "--check") {
  const guide = readFileSync(new URL(GUIDE, ROOT), "utf8");
  if (wrong.length === 0 && !guide.includes(block.replace(/^/gm, "  ")))
    wrong.push(`${GUIDE} lacks what node scripts/rings.mjs prints:\n${block}`);
} else console.log(block);
for (const line of wrong) console.error(line);
process.exitCode = wrong.length > 0 ? 1 : 0;
