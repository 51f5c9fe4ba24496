// SharedLimiter: without something that tabs need to share.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { describe, test } from "node:test";
import { promisify } from "node:util";
import { SharedLimiter } from "../../build/package/shared.js";
import { budget, consume, hasLanded, landed, open, queue, remaining, url } from "./tabs.mjs";

describe("if something is missing, the tab limits alone and says so once", () => {
  const WARNING = /^tollgate: limits are for this tab alone: /;
  const table = {
    "no IndexedDB": () => Object.defineProperty(globalThis, "indexedDB", { value: undefined }),
    "no Web Locks": () => Object.defineProperty(navigator, "locks", { value: undefined }),
    "no BroadcastChannel": () => delete globalThis.BroadcastChannel,
    "a database that does not open": () => {
      IDBFactory.prototype.open = () => {
        throw new DOMException("denied", "SecurityError");
      };
    },
    "a database that fails later": () => {
      const { open } = IDBFactory.prototype;
      IDBFactory.prototype.open = function (name) {
        return open.call(this, name, name === "tollgate" ? 1 : 2);
      };
      indexedDB.deleteDatabase("tollgate");
      open.call(indexedDB, "tollgate", 5);
    },
    "a database of another version": () => indexedDB.open("tollgate", 7),
    "a disk that is full": () => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("full", "QuotaExceededError");
      };
    },
    "a state that cannot be read": () => {
      const request = indexedDB.open("tollgate");
      request.onupgradeneeded = () => request.result.createObjectStore("limits").put("nonsense", "1:a");
    },
  };
  for (const [what, before] of Object.entries(table)) {
    test(what, async () => {
      const other =
        /BroadcastChannel|Locks|no IndexedDB|open|full/.test(what) && (await open({ rate: 7, periodMs: 3_600_000 }));
      const tab = await open({ rate: 5, periodMs: 3_600_000 }, { before });
      const got = [];
      for (let i = 0; i < 4; i++) {
        got.push((await consume(tab)).allowed);
        if (other) await consume(other);
      }
      got.push(await remaining(tab));
      await queue(tab, "large", { cost: 2 });
      await queue(tab, "small", { cost: 1 });
      got.push((await consume(tab)).allowed, await hasLanded(tab, "small"), await tab.evaluate(() => limiter.waiting));
      await tab.evaluate(() => limiter.refund(2));
      got.push(
        (await landed(tab, "large")).decision.allowed,
        (await landed(tab, "small")).decision.allowed,
        await remaining(tab),
      );
      assert.deepEqual(got, [true, true, true, true, 1, false, false, 2, true, true, 0]);
      await tab.make(budget(5), { name: "b" });
      assert.equal((await consume(tab, 5)).allowed, true);
      assert.equal(tab.warnings.length, 1, tab.warnings.join("\n"));
      assert.match(tab.warnings[0], WARNING);
      if (other) assert.deepEqual([await remaining(other), other.warnings], [3, []]);
    });
  }

  test("a frame without an origin", async () => {
    const tab = await open(budget(1));
    const text = `<script type="module">
      import { SharedLimiter } from "${url}/tollgate.js";
      const warnings = [];
      console.warn = (...args) => warnings.push(args.join(" "));
      const limiter = new SharedLimiter("a", { rate: 0, periodMs: 1, capacity: 2 });
      const answers = [];
      for (let i = 0; i < 3; i++) answers.push(await limiter.tryConsume());
      parent.postMessage({ answers, warnings: warnings.length }, "*");
    </script>`;
    const outcome = await tab.evaluate(
      (text) =>
        new Promise((resolve) => {
          addEventListener("message", ({ data }) => resolve(data));
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts";
          frame.srcdoc = text;
          document.body.append(frame);
        }),
      text,
    );
    assert.deepEqual(outcome, { answers: [true, true, false], warnings: 1 });
  });

  test("Node, whose process may end", async () => {
    const program = `
      import { SharedLimiter } from ${JSON.stringify(new URL("../../build/package/shared.js", import.meta.url).href)};
      const limiters = ["a", "b"].map((name) => new SharedLimiter(name, { rate: 0, periodMs: 1000, capacity: 2 }));
      const answers = [];
      for (const limiter of limiters) for (let i = 0; i < 3; i++) answers.push(await limiter.tryConsume());
      console.log(JSON.stringify(answers));
    `;
    const { stdout, stderr } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], {
      timeout: 20_000,
    });
    assert.deepEqual(JSON.parse(stdout), [true, true, false, true, true, false]);
    assert.match(stderr, WARNING);
    assert.equal(stderr.match(/tollgate:/g).length, 1);
  });
});

test("rejects wrong options: a cap on running calls, which it lacks, and a cost in their place", async () => {
  const limit = { rate: 9, periodMs: 1000 };
  for (const maxConcurrent of [1, 5, Infinity])
    assert.throws(() => new SharedLimiter("a", limit, { maxConcurrent }), {
      name: "TollgateError",
      code: "maxConcurrent_unknown",
      message: "a SharedLimiter has no maxConcurrent",
    });
  const limiter = new SharedLimiter("a", limit);
  const wrong = { name: "TollgateError", code: "options_unknown" };
  await assert.rejects(limiter.decide(5), wrong);
  await assert.rejects(async () => limiter.reserve(5), wrong);
  await assert.rejects(limiter.acquire(5), wrong);
  assert.deepEqual([limiter.remaining(), limiter.waiting], [9, 0]);
});

test("there is no warning if nothing is missing", async () => {
  const tab = await open(budget(5));
  await consume(tab);
  await queue(tab, 1);
  await landed(tab, 1);
  assert.deepEqual(tab.warnings, []);
});
