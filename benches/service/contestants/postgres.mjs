// Asks PostgreSQL, by the function of an article, which takes one token. It returns how many remain, so that is all that the
// answer has.
import { readFileSync } from "node:fs";
import pg from "pg";
import { database, serve } from "./node-server.mjs";

const pool = new pg.Pool({ host: "127.0.0.1", port: database, user: "tollgate", database: "postgres" });
await pool.query(readFileSync(new URL("token-bucket.sql", import.meta.url), "utf8"));

serve(async (name, policy) => {
  const perSecond = policy.rate / (policy.periodMs / 1_000);
  const { rows } = await pool.query({
    name: "take", // a prepared statement
    text: "select rate_limiting_token_bucket_request($1, $2, $3) as remaining",
    values: [`${policy.name}:${name}`, perSecond, policy.capacity],
  });
  const [{ remaining }] = rows;
  return { allowed: remaining >= 0, remaining: Math.max(0, remaining), now: Date.now() };
});
