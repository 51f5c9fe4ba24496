// What a commit must say before it is released as a version: docs/releasing.md. That the package, the crate and the contract have one
// version is a test.
//   npm run release-check v0.1.0
import { globSync, readFileSync } from "node:fs";
import { parse } from "smol-toml";

const [tag] = process.argv.slice(2);
const text = (path) => readFileSync(path, "utf8");
const { version, repository } = parse(text("Cargo.toml")).package;
const failures = [];
const must = (holds, failure) => holds || failures.push(failure);

must(tag === `v${version}`, `the tag is ${tag}, but the version is ${version}`);
must(repository?.startsWith("https://"), "Cargo.toml has no `repository`, the address of this one");
const dates = text("CHANGELOG.md").matchAll(/^## \[(.+)\] - \d{4}-\d{2}-\d{2}$/gm);
must(
  [...dates].some(([, of]) => of === version),
  `CHANGELOG.md has no section "## [${version}] - YYYY-MM-DD"`,
);
for (const path of globSync(["*.md", "{.github,docs,src,www/package}/*.md"]))
  must(
    !/not published yet|[Uu]ntil the package is published|has been released yet/.test(text(path)),
    `${path} says that nothing is released`,
  );

for (const failure of failures) console.error(failure);
process.exitCode = failures.length > 0 ? 1 : 0;
