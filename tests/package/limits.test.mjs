// docs/limits.md: each policy is valid, and admits at worst what its row says.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { parse } from "smol-toml";
import { lint } from "../../build/package/lint.js";
import { root } from "./stranger.mjs";

const page = readFileSync(join(root, "docs/limits.md"), "utf8");
const rows = [...page.matchAll(/^\| (.*?) \| `(.*?)` \| (.*?) \| .* \|$/gm)];

test("the rows are those of a table", () => assert.ok(rows.length > 10, `${rows.length} rows`));

for (const [, said, policy, worst] of rows) {
  test(`${said}: ${worst}`, async () => {
    const { errors, policies } = await lint(parse(policy));
    assert.deepEqual(errors, []);
    const [{ text, limits, together }] = policies;
    const [{ rate, burst, within, debt }] = limits;
    // As the command prints lengths of time.
    const periods = [...text.matchAll(/in any (\d+\w+(?: \d+\w+)*)/g)].map(([, period]) => period);
    const most = (burst, within) =>
      [`${burst} at once`, ...within.map(({ tokens }, at) => `${tokens} within any ${periods[at]}`)].join(", ");
    if (limits.length > 1) assert.equal(worst, most(burst, together));
    else if (rate === 0 && within.length > 0) assert.equal(worst, `${burst}, once`);
    else assert.equal(worst, debt ? `with debt ${most(debt.burst, debt.within)}` : most(burst, within));
  });
}
