// The dashboard in docs type-checks against Grafana's own types.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";

const root = new URL("../../", import.meta.url).pathname;
// Here, so that the compiler finds Grafana's types in node_modules.
const folder = mkdtempSync(join(root, "build/grafana-"));
after(() => rmSync(folder, { recursive: true }));

const dashboard = readFileSync(join(root, "docs/grafana.json"), "utf8");

/** The compiler's errors for a dashboard, given as JSON. */
function faultsOf(json) {
  const file = join(folder, "dashboard.ts");
  writeFileSync(
    file,
    `import type { Dashboard } from "@grafana/schema";\nexport const dashboard: Dashboard = ${json};\n`,
  );
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"];
  try {
    execFileSync(join(root, "node_modules/.bin/tsc"), [...options, file], { encoding: "utf8" });
    return "";
  } catch (error) {
    return error.stdout;
  }
}

test("the dashboard type-checks", () => assert.equal(faultsOf(dashboard), ""));

test("a dashboard with unknown fields or wrong types does not", () => {
  for (const [from, to, fault] of [
    ['"schemaVersion"', '"schemeVersion"', /schemeVersion/],
    ['"graphTooltip": 1', '"graphTooltip": "all"', /DashboardCursorSync/],
    ['"gridPos"', '"position"', /position/],
  ]) {
    assert.ok(dashboard.includes(from), from);
    assert.match(faultsOf(dashboard.replace(from, to)), fault);
  }
});
