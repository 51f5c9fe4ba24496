// Bucket: its memory.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Bucket } from "../../build/package/index.js";

test("errors leave nothing behind", () => {
  const bucket = new Bucket(0, { rate: 3, periodMs: 1000 });
  for (let i = 0; i < 20_000; i++) assert.throws(() => bucket.tryConsume(NaN));
  for (let i = 0; i < 5000; i++) assert.throws(() => new Bucket(0, { rate: 3, periodMs: 1000, initial: 4 }));
  assert.deepEqual([bucket.tryConsume(0, 3), bucket.remaining(0)], [true, 0]);
});

test("the memory of 100 000 collected buckets is reused, and 1000 live ones keep theirs", () => {
  const url = (name) => new URL(`../../build/package/${name}`, import.meta.url).href;
  const script = `
    import { setImmediate } from "node:timers/promises";
    import { Bucket } from "${url("index.js")}";
    import { core } from "${url("core.js")}";
    const held = Array.from({ length: 1000 }, (_, i) => new Bucket(0, { rate: 1, periodMs: 1000, capacity: i }));
    for (let i = 0; i < 100; i++) {
      for (let j = 0; j < 1000; j++) new Bucket(0, { rate: 1, periodMs: 1000 }).tryConsume(0);
      gc();
      await setImmediate();
    }
    const right = held.every((bucket, i) => bucket.remaining(0) === i);
    console.log(JSON.stringify({ right, bytes: core.memory.buffer.byteLength }));`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--expose-gc", "--input-type=module", "--eval", script], {
    encoding: "utf8",
    cwd: fileURLToPath(new URL(".", import.meta.url)),
  });
  assert.equal(stderr, "");
  const { right, bytes } = JSON.parse(stdout);
  assert.equal(right, true);
  assert.ok(bytes < 3 * 2 ** 20, `${bytes} bytes: 100 000 buckets at once are 16 MB`);
});
