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
    const most = limits.map(({ debt }) => debt).find(Boolean) ?? limits[0];
    const { burst, within } = limits.length > 1 ? { burst: limits[0].burst, within: together } : most;
    const lengths = [...text.matchAll(/within any (\w+)/g)].map(([, length]) => length);
    const periods = lengths.length > 0 ? lengths : ["1day"]; // a budget that is spent once has no other interval
    const numbers = within.map(({ tokens }, at) => `, ${tokens} within any ${periods[at]}`);
    assert.equal(`${burst} at once${numbers.join("")}`, worst);
  });
}
