// Asks Redis, by the script of an article. It returns how long to wait, so that is all that the answer has.
import { readFileSync } from "node:fs";
import { Redis } from "ioredis";
import { database, serve } from "./node-server.mjs";

const redis = new Redis({ port: database, enableAutoPipelining: true });
const lua = readFileSync(new URL("token-bucket.lua", import.meta.url), "utf8");
redis.defineCommand("take", { numberOfKeys: 3, lua }); // by EVALSHA

serve(async (name, policy, cost) => {
  const perSecond = policy.rate / (policy.periodMs / 1_000);
  // A cost that is not covered is granted too, and only the next has to wait: so one token less is stored.
  const waitMicros = await redis.take(`${policy.name}:${name}`, policy.capacity - 1, perSecond, cost, 0);
  const now = Date.now();
  if (waitMicros <= 0) return { allowed: true, now };
  return { allowed: false, now, retryAt: now + Math.ceil(waitMicros / 1_000) };
});
