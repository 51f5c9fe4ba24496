// `tollgate start`: runs the service on this machine with Wrangler, prints when it answers and how to try it, and shows the output
// that matters. Plain JavaScript, so that a checkout needs no compiler of TypeScript to start.
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname } from "node:path";
import { unstable_readConfig } from "wrangler";
import { CONFIGURATIONS, configurationHere } from "./configuration.mjs";
import { keepRunning } from "./running.mjs";

/**
 * Runs the service in this folder until it is stopped; `build` comes before. PORT is the port. Budgets are kept in .tollgate/state,
 * the token in .tollgate/token, secrets in .dev.vars. When the tokens in the settings change, Wrangler is started again with the new ones.
 */
export async function start(build = () => {}) {
  const port = Number(process.env.PORT || 8787);
  const found = configurationHere();
  if (!found)
    fail(`There is no ${CONFIGURATIONS.join(" or ")} here. Make a service first: npx tollgate init my-limits`);
  const configuration = orFail(() => unstable_readConfig({ config: found }));
  keepSecret();
  const token = keepToken();
  const tokens = orFail(() => tokensIn(configuration, token));
  if (!(await isFree(port)))
    fail(`Cannot listen on port ${port}: it is taken or not a port. Choose another: PORT=8788 npm start`);
  build();
  keepRunning({
    config: found,
    port,
    files: [found, SECRETS_FILE],
    tokens,
    readTokens: () => tokensIn(unstable_readConfig({ config: found }, { hideWarnings: true }), token),
    introduce: () => introduce(`http://localhost:${port}`, token, configuration),
  });
}

async function introduce(url, token, configuration) {
  const page = configuration.assets ? " (open it to see limits at work)" : "";
  console.log(`\nTollgate runs at ${url}${page}. Ctrl-C stops it; budgets stay in .tollgate/state. Its policies:\n`);
  const health = await fetch(`${url}/healthz`); // on its first request the Worker logs its policies and their errors
  await new Promise((done) => setTimeout(done, LOGS_ARRIVE_MS));
  if (!health.ok) return console.error(`\n${url}/healthz answers ${health.status}: ${await health.text()}`);
  const { POLICIES } = configuration.vars;
  const [[policy, { key }]] = Object.entries(typeof POLICIES === "string" ? JSON.parse(POLICIES) : POLICIES);
  const request = JSON.stringify({ policy, ...(key === undefined && { key: "alice" }), cost: 1 }); // `key = []` takes none
  console.log(`
Try it:

curl -i ${url}/v1/consume -H 'Authorization: Bearer ${token}' -H 'Content-Type: application/json' -d '${request}'
`);
}

/** Makes the secret that names the objects, and keeps it in .dev.vars, where Wrangler reads it. */
function keepSecret() {
  if (existsSync(SECRETS_FILE)) chmodSync(SECRETS_FILE, 0o600);
  if (secret("TOLLGATE_KEY_SECRET")) return;
  const lines = [...secretLines(), `TOLLGATE_KEY_SECRET=${randomBytes(32).toString("hex")}`];
  writePrivate(SECRETS_FILE, `${lines.join("\n")}\n`);
}

/** A token for this machine, kept in .tollgate/token, where users find it. */
function keepToken() {
  const token = existsSync(TOKEN_FILE)
    ? readFileSync(TOKEN_FILE, "utf8").trim()
    : `tg_${randomBytes(32).toString("base64url")}`;
  mkdirSync(dirname(TOKEN_FILE), { recursive: true });
  writePrivate(TOKEN_FILE, `${token}\n`);
  return token;
}

/**
 * All tokens of the service, as JSON: that of this machine, and those of the settings, which are in the configuration or, if that has
 * none, in .dev.vars. They are never copied to a file, so that one removed from the settings is gone.
 */
function tokensIn({ vars: { TOLLGATE_TOKENS: configured } }, token) {
  const start = { sha256: createHash("sha256").update(token).digest("hex"), scopes: ["consume", "adjust", "admin"] };
  const own =
    configured === undefined
      ? objectIn(secret("TOLLGATE_TOKENS") ?? "{}", SECRETS_FILE)
      : typeof configured === "string"
        ? objectIn(configured, "Wrangler's configuration")
        : configured;
  return JSON.stringify({ ...own, start });
}

/** A value in .dev.vars, without its quotes. */
function secret(name) {
  const line = secretLines().find((line) => line.match(/^\s*(\w+)\s*=/)?.[1] === name);
  return line
    ?.slice(line.indexOf("=") + 1)
    .trim()
    .replace(/^(['"])(.*)\1$/, "$2");
}

function secretLines() {
  return existsSync(SECRETS_FILE) ? readFileSync(SECRETS_FILE, "utf8").split("\n").filter(Boolean) : [];
}

/** Writes a file that only its owner may read, even if it existed and others could. */
function writePrivate(file, text) {
  if (existsSync(file)) chmodSync(file, 0o600);
  writeFileSync(file, text, { mode: 0o600 });
}

function objectIn(json, place) {
  try {
    return Object(JSON.parse(json));
  } catch {
    throw new Error(`TOLLGATE_TOKENS in ${place} is not valid JSON. Correct it, or remove it.`);
  }
}

async function isFree(port) {
  const listens = (host) =>
    new Promise((answer) => {
      const server = createServer();
      server.on("error", (error) => answer(error.code === "EADDRNOTAVAIL" || error.code === "EAFNOSUPPORT")); // no IPv6 here
      server.listen(port, host, () => server.close(() => answer(true)));
    });
  return Number.isInteger(port) && port > 0 && port < 65536 && (await listens("127.0.0.1")) && (await listens("::1"));
}

/** The result of `read`; without it nothing can start. */
function orFail(read) {
  try {
    return read();
  } catch (error) {
    return fail(error.message);
  }
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

const TOKEN_FILE = ".tollgate/token";
const SECRETS_FILE = ".dev.vars";
// Wrangler forwards log lines shortly after the answer.
const LOGS_ARRIVE_MS = 300;
