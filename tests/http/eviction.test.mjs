// An evicted object leaves nothing in memory: otherwise, with a key per IP address, an isolate would fill up.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { start } from "./workerd.mjs";

const around = fileURLToPath(new URL("evicting.mjs", import.meta.url));

/** The unit in which WebAssembly's memory grows. */
const PAGE_BYTES = 65_536;

test("evicted objects are freed, in JavaScript and in WebAssembly, and lose nothing", async () => {
  const tollgate = await start({
    // Each has a timer running when it is evicted, which then never fires: see Host.flush_in.
    policies: { api: { rate: 1, period: "1day", capacity: 10, write_ahead: 5 } },
    around,
    flags: ["unsafe_module"],
    v8Flags: ["--expose-gc"],
  });
  let bytes;
  const KEYS = 100;
  for (let round = 1; round <= 5; round++) {
    for (let at = 0; at < KEYS; at += 20) {
      const asks = Array.from({ length: 20 }, (_, i) => ({ policy: "api", key: `user ${round} ${at + i}` }));
      await Promise.all(asks.flatMap((ask) => [tollgate.consume(ask), tollgate.consume(ask)]));
    }
    const { body: found } = await tollgate.send({ path: "/evict", body: "" });
    assert.deepEqual([found.made, found.alive], [round * KEYS, 0]);
    bytes ??= found.bytes;
    // Fragmentation may cost one more page. Objects that are not freed take more than the 131 bytes each that this hides.
    assert.ok(found.bytes - bytes <= PAGE_BYTES, `round ${round}: memory is flat: ${bytes}, then ${found.bytes}`);
  }
  const { body } = await tollgate.peek({ policy: "api", key: "user 1 0", cost: 0 });
  assert.ok(body.remaining <= 8 && body.remaining >= 8 - 5, `${body.remaining} left`);
  await tollgate.stop();
});
