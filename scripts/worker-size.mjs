// Prints the size of the built Worker's wasm: by section, and its code by crate and by function.
//   scripts/build-worker && node scripts/worker-size.mjs [HOW MANY FUNCTIONS]
// A function includes whatever the compiler inlined into it, from any crate. Bytes are uncompressed; the first line has
// the compressed size of the whole.
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const built = new URL("../build/worker/", import.meta.url);
const bytes = readFileSync(new URL("rust/index_bg.wasm", built));
const SECTIONS = "custom type import function table memory global export start element code data data-count".split(" ");

let at = 8; // after the magic number and the version

function number() {
  let value = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = bytes[at++];
    value += (byte & 127) * 2 ** shift;
    if (byte < 128) return value;
  }
}

const sections = [];
const sizes = [];
while (at < bytes.length) {
  const name = SECTIONS[bytes[at++]];
  const size = number();
  const end = at + size;
  sections.push([size, name]);
  if (name === "code") {
    for (let count = number(); count > 0; count--) {
      const length = number();
      sizes.push(length);
      at += length;
    }
  }
  at = end;
}

// A line `number:name` for each function, beginning with those that are imported and have no code.
const names = readFileSync(new URL("names.txt", built), "utf8")
  .trim()
  .split("\n")
  .map((line) => line.slice(line.indexOf(":") + 1).replace(/::h[0-9a-f]{16}$|\[[0-9a-f]{16}\]/g, ""));
const functions = names.slice(-sizes.length).map((name, index) => ({ size: sizes[index], name }));

/** The first crate in a name; `<A as B>::f` belongs to A's crate. The exports that wasm-bindgen generates have no path. */
const crateOf = (name) => name.match(/(\w+)::/)?.[1] ?? "exports and other names without a path";

const crates = new Map();
for (const { size, name } of functions) {
  const crate = crateOf(name);
  const [sum, count] = crates.get(crate) ?? [0, 0];
  crates.set(crate, [sum + size, count + 1]);
}
const largestFirst = (rows) => rows.toSorted(([a], [b]) => b - a);
const print = (title, rows) => {
  console.log(`\n${title}`);
  for (const [size, name] of rows) console.log(String(size).padStart(8), name);
};
console.log(`${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} with gzip -9`);
print("sections", sections);
print("code by crate", largestFirst([...crates].map(([crate, [sum, count]]) => [sum, `${crate}, ${count} functions`])));
const most = Number(process.argv[2] ?? 30);
print("code by function", largestFirst(functions.map(({ size, name }) => [size, name])).slice(0, most));
