// A gate where calls of objects wait: what happens meanwhile is done when the first is let through, on any computer.
import { createServer } from "node:http";

/** The fault of a call that waits until `count` calls are here and `meanwhile` is done. */
export async function gate(meanwhile, count = 1) {
  const waiting = [];
  const server = createServer(async (_, response) => {
    waiting.push(response);
    if (waiting.length !== count) return;
    await meanwhile();
    server.close();
    for (const one of waiting) one.end();
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { fault: "waits", port: server.address().port };
}
