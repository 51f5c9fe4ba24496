// The contestants: Tollgate in its modes, limiters written by hand on the same runtime, and databases behind a server.
import { createHmac, randomBytes } from "node:crypto";
import { fileURLToPath } from "node:url";
import { bindings, tollgate } from "../../tests/http/runtime.mjs";
import { bundled } from "./bundled.mjs";
import { postgres, redis } from "./hosts/databases.mjs";
import { onNode } from "./hosts/node.mjs";
import { onWorkerd } from "./hosts/workerd.mjs";
import { POLICIES, policies } from "./scenarios.mjs";

export const TOKEN = "the-bearer-token-of-the-benchmarks";

const settings = (fields = {}) => ({
  policies: policies(fields),
  token: TOKEN,
  keySecret: "the-key-secret-of-the-benchmarks",
});
/** Each refusal is the object's own. `write_ahead` is Tollgate's default. */
export const EXACT = settings({ refusal_cache: "0s" });

const EMBEDDED = await bundled(contestant("embedded.mjs"));
const GRANT_KEY = randomBytes(32);

/**
 * `start` starts it, `credentialOf` returns the credential for a key, and `needs` is a program that may be missing. Those whose
 * `isCompared` is true are compared with all others.
 */
export const CONTESTANTS = [
  { name: "Tollgate, embedded", isCompared: true, start: () => embedded(EXACT) },
  { name: "Tollgate, refusals cached", isCompared: true, start: () => embedded(settings()) },
  { name: "Tollgate, with leases", isCompared: true, start: () => embedded(settings({ lease: "2s" })) },
  { name: "Tollgate, by HTTP", start: () => onWorkerd(tollgate({ ...EXACT, build: "deployed" })) },
  { name: "Tollgate, with a grant", start: withGrants, credentialOf: grantOf },
  { name: "Tollgate, by RPC", start: byRpc },
  { name: "JavaScript, a row per call", start: () => written("row-per-call.mjs") },
  { name: "JavaScript, memory only", start: () => written("memory.mjs") },
  { name: "JavaScript, no object", start: () => written("no-object.mjs") },
  { name: "Redis and Node", start: () => onNode(contestant("redis.mjs"), redis, settings()), needs: redis },
  {
    name: "PostgreSQL and Node",
    start: () => onNode(contestant("postgres.mjs"), postgres, settings()),
    needs: postgres,
  },
];

/** Tollgate inside the calling Worker. */
function embedded(settings) {
  return onWorkerd({ modules: EMBEDDED, bindings: bindings(settings) });
}

function withGrants() {
  const grantKeys = JSON.stringify({ k1: GRANT_KEY.toString("base64url") });
  return onWorkerd(tollgate({ ...EXACT, grantKeys, build: "deployed" }));
}

/** A grant for a key, as a backend makes it. */
function grantOf(key) {
  const exp = Math.floor(Date.now() / 1_000) + 3_600;
  const claims = { aud: "tollgate", exp, key, policies: POLICIES, verbs: ["consume"] };
  const parts = [{ alg: "HS256", kid: "k1" }, claims].map((part) =>
    Buffer.from(JSON.stringify(part)).toString("base64url"),
  );
  const text = parts.join(".");
  return `${text}.${createHmac("sha256", GRANT_KEY).update(text).digest("base64url")}`;
}

/** Another Worker is called instead, and calls Tollgate by RPC. */
function byRpc() {
  const bindings = { MAIN: 'service = "main"', TOLLGATE: 'service = (name = "main", entrypoint = "Tollgate")' };
  const before = { modules: { "rpc.mjs": fileURLToPath(contestant("rpc.mjs")) }, bindings };
  return onWorkerd(tollgate({ ...EXACT, build: "deployed", before }));
}

/** A limiter written by hand. */
async function written(file) {
  const own = { ...bindings(settings()), TOKEN: `text = "${TOKEN}"` };
  return onWorkerd({ modules: await bundled(contestant(file)), bindings: own });
}

function contestant(file) {
  return new URL(`contestants/${file}`, import.meta.url);
}
