// What scripts/release-check.mjs requires of a commit before it is released.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("../../scripts/release-check.mjs", import.meta.url));
const ready = {
  "Cargo.toml": '[package]\nversion = "1.2.3"\nrepository = "https://github.example/owner/name"\n',
  "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n* Something.\n",
  ".github/SECURITY.md": "Fixes go to the latest release.\n",
};

/** What it says of a commit with these files. */
function failures(files, tag = "v1.2.3") {
  const cwd = mkdtempSync(join(tmpdir(), "tollgate-release-"));
  for (const [path, text] of Object.entries({ ...ready, ...files })) {
    mkdirSync(dirname(join(cwd, path)), { recursive: true });
    writeFileSync(join(cwd, path), text);
  }
  const { status, stderr } = spawnSync(process.execPath, [script, tag], { cwd, encoding: "utf8" });
  rmSync(cwd, { recursive: true });
  assert.equal(status, stderr === "" ? 0 : 1);
  return stderr.trim();
}

test("a commit that is ready can be released", () => {
  assert.equal(failures({}), "");
});

for (const [what, files, tag, expected] of [
  ["another tag", {}, "v1.2.4", "the tag is v1.2.4, but the version is 1.2.3"],
  ["a tag without its v", {}, "1.2.3", "the tag is 1.2.3, but the version is 1.2.3"],
  [
    "no repository",
    { "Cargo.toml": '[package]\nversion = "1.2.3"\n' },
    undefined,
    "Cargo.toml has no `repository`, the address of this one",
  ],
  ["no date", { "CHANGELOG.md": "## [1.2.3]\n" }, undefined, 'CHANGELOG.md has no section "## [1.2.3] - YYYY-MM-DD"'],
  [
    "a longer version's date",
    { "CHANGELOG.md": "## [1.2.30] - 2026-12-01\n" },
    undefined,
    'CHANGELOG.md has no section "## [1.2.3] - YYYY-MM-DD"',
  ],
  [
    "a document of before",
    { "docs/a.md": "It is not published yet.\n" },
    undefined,
    "docs/a.md says that nothing is released",
  ],
  [
    "advice of before",
    { "README.md": "(Until the package is published, run ...)\n" },
    undefined,
    "README.md says that nothing is released",
  ],
  [
    "a policy of before",
    { ".github/SECURITY.md": "Nothing has been released yet.\n" },
    undefined,
    ".github/SECURITY.md says that nothing is released",
  ],
])
  test(`it cannot with ${what}`, () => assert.equal(failures(files, tag), expected));
