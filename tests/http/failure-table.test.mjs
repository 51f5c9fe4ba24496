// docs/failures.md: each of its failures has tests, and these are there.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");

/** The rows of tables whose first column is of this name. */
function rowsOf(text) {
  const tables = text.split("\n\n").filter((block) => block.startsWith("| what fails |"));
  return tables.map((table) => table.split("\n").slice(2).filter(Boolean));
}

/** The cells of a row. */
const cells = (row) =>
  row
    .split("|")
    .slice(1, -1)
    .map((cell) => cell.trim());

/** The names of a file's tests, with `…` for what differs between several. */
function testsIn(file) {
  const found = read(file).matchAll(/\b(?:test|describe)\(\s*(["`])((?:(?!\1).|\\.)*)\1,/g);
  return [...found].map(([, , name]) => name.replace(/\$\{[^}]*\}/g, "…"));
}

const tables = rowsOf(read("../../docs/failures.md"));
const failures = tables.slice(0, -1).flat().map(cells);
const tested = tables.at(-1).map(cells);

test("each failure has a row of tests, in the same order", () => {
  assert.ok(failures.length > 30);
  assert.deepEqual(
    tested.map(([failure]) => failure),
    failures.map(([failure]) => failure),
  );
  for (const row of failures) assert.equal(row.length, 6, row[0]);
});

for (const [failure, tests] of tested) {
  test(`the tests are there: ${failure}`, () => {
    for (const named of tests.split("<br>")) {
      const [, file, name] = named.match(/^`(.+?)`: (.+)$/);
      assert.ok(testsIn(file).includes(name), `${file} has no test of the name: ${name}`);
    }
  });
}
