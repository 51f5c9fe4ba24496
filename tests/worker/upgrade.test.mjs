// From one version of the package to the next, and back: the state on disk stays valid.
import assert from "node:assert/strict";
import { cpSync, existsSync, globSync, rmSync } from "node:fs";
import { basename, join } from "node:path";
import { test } from "node:test";
import { root } from "../package/stranger.mjs";
import { folder, KEY_SECRET, makeProject, TOKEN, tokens, wranglerDev } from "./stranger.mjs";

const installed = join(folder, "node_modules/tollgate/worker");
const today = join(folder, "today");
/** The same with the protocol as a later version might have it. */
const next = join(root, "build/worker-next-format");
if (!existsSync(join(next, "rust"))) throw new Error(`There is no Worker in ${next}. Run: npm test -- http package`);

const POLICIES = { api: { rate: 0, period: "1day", capacity: 100, max_debt: 10 } };
const vars = { POLICIES, TOLLGATE_TOKENS: tokens("consume", "adjust"), TOLLGATE_KEY_SECRET: KEY_SECRET };
const project = makeProject("upgrade", { main: "service.mjs", vars });

test("budgets, reservations and replays survive an upgrade and a rollback", async () => {
  cpSync(installed, today, { recursive: true });
  let left = 100;
  let reservation;
  for (const version of [today, next, today]) {
    install(version);
    const worker = await wranglerDev([project]);
    const ask = async (verb, more, headers) => {
      const body = { policy: "api", key: "alice", ...more };
      const answer = await worker.post(`/v1/${verb}`, body, { authorization: `Bearer ${TOKEN}`, ...headers });
      assert.equal(answer.status, 200, `${answer.text}\n${worker.log}`);
      return answer.body;
    };
    assert.equal((await ask("peek", { cost: 0 })).remaining, left);
    if (reservation) {
      await ask("settle", { reservation, cost: 2 });
      left += 3;
    }
    ({ reservation } = await ask("consume", { mode: "reserve", cost: 5 }));
    const once = { "idempotency-key": "once" };
    const { replayed } = await ask("consume", { cost: 7 }, once);
    assert.equal(replayed, left === 100 ? undefined : true);
    left -= 5 + (replayed ? 0 : 7);
    assert.equal((await ask("consume", { cost: 3 })).remaining, left - 3);
    left -= 3;
    await worker.kill();
  }
});

function install(version) {
  rmSync(installed, { recursive: true });
  for (const path of [...globSync("*.mjs", { cwd: version }), "rust"]) {
    cpSync(join(version, path), join(installed, basename(path)), { recursive: true });
  }
}
