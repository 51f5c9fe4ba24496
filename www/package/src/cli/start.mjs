// `tollgate start`: runs the service on this machine with Wrangler, prints when it answers and how to try it, and shows the output
// that matters. Plain JavaScript, so that a checkout needs no compiler of TypeScript to start.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { unstable_readConfig } from "wrangler";
import { CONFIGURATIONS, configurationHere } from "./configuration.mjs";

/**
 * Runs the service in this folder until it is stopped; `build` comes before. PORT is the port. Budgets are kept in .tollgate/state,
 * the token in .tollgate/token, secrets in .dev.vars.
 */
export async function start(build = () => {}) {
  const port = Number(process.env.PORT || 8787);
  const found = configurationHere();
  if (!found)
    fail(`There is no ${CONFIGURATIONS.join(" or ")} here. Make a service first: npx tollgate init my-limits`);
  const configuration = readConfiguration(found);
  const { token, tokens } = keepCredentials(configuration);
  if (!(await isFree(port)))
    fail(`Cannot listen on port ${port}: it is taken or not a port. Choose another: PORT=8788 npm start`);
  build();
  const args = ["dev", "--config", found, "--port", port, "--persist-to", ".tollgate/state"];
  // A variable of the command line comes before those of the configuration and of .dev.vars.
  args.push("--show-interactive-dev-session=false", "--var", `TOLLGATE_TOKENS:${JSON.stringify(tokens)}`);
  // By its file, without a shell that would read the quotes in the JSON.
  const wrangler = spawn(process.execPath, [WRANGLER, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const began = Date.now();
  const progress = setInterval(() => console.log(`starting: ${Math.round((Date.now() - began) / 1_000)} s`), 5_000);
  const show = (line) => {
    const text = line.replace("[custom build] ", "").replace("[wrangler:info] ", "");
    if (text.startsWith("Ready on ")) {
      clearInterval(progress);
      introduce(`http://localhost:${port}`, token, configuration);
    } else if (!NOISE.test(text)) console.log(text);
  };
  for (const stream of [wrangler.stdout, wrangler.stderr]) createInterface({ input: stream }).on("line", show);
  wrangler.on("exit", (code, signal) => process.exit(signal ? 0 : code));
  // Ctrl-C reaches Wrangler directly. We wait until it has stopped, so that the shell's prompt returns only then.
  process.on("SIGINT", () => {});
  process.on("SIGTERM", () => wrangler.kill());
}

async function introduce(url, token, configuration) {
  const page = configuration.assets ? " (open it to see limits at work)" : "";
  console.log(`\nTollgate runs at ${url}${page}. Ctrl-C stops it; budgets stay in .tollgate/state. Its policies:\n`);
  const health = await fetch(`${url}/healthz`); // the first request: on it the Worker logs its policies and what is wrong with them
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

/**
 * A token for this machine, kept in .tollgate/token, where users find it, and all tokens of the service: that one, and those of the
 * settings, which are in the configuration or, where that has none, in .dev.vars. They are never copied to a file, so that one removed
 * from the settings is gone. The secret that names the objects is kept in .dev.vars, where Wrangler reads it.
 */
function keepCredentials(configuration) {
  const file = ".dev.vars";
  const lines = existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean) : [];
  const get = (name) => {
    const line = lines.find((line) => line.match(/^\s*(\w+)\s*=/)?.[1] === name);
    return line
      ?.slice(line.indexOf("=") + 1)
      .trim()
      .replace(/^(['"])(.*)\1$/, "$2");
  };
  if (existsSync(file)) chmodSync(file, 0o600);
  if (!get("TOLLGATE_KEY_SECRET"))
    writePrivate(file, `${[...lines, `TOLLGATE_KEY_SECRET=${randomBytes(32).toString("hex")}`].join("\n")}\n`);
  const token = existsSync(TOKEN_FILE)
    ? readFileSync(TOKEN_FILE, "utf8").trim()
    : `tg_${randomBytes(32).toString("base64url")}`;
  mkdirSync(dirname(TOKEN_FILE), { recursive: true });
  writePrivate(TOKEN_FILE, `${token}\n`);
  const start = { sha256: createHash("sha256").update(token).digest("hex"), scopes: ["consume", "adjust", "admin"] };
  const { TOLLGATE_TOKENS: configured } = configuration.vars;
  const own =
    configured === undefined
      ? objectIn(get("TOLLGATE_TOKENS") ?? "{}", file)
      : typeof configured === "string"
        ? objectIn(configured, "Wrangler's configuration")
        : configured;
  return { token, tokens: { ...own, start } };
}

/** Writes a file that only its owner may read, also if it was there and others could. */
function writePrivate(file, text) {
  if (existsSync(file)) chmodSync(file, 0o600);
  writeFileSync(file, text, { mode: 0o600 });
}

function readConfiguration(config) {
  try {
    return unstable_readConfig({ config });
  } catch (error) {
    return fail(error.message);
  }
}

function objectIn(json, place) {
  try {
    return Object(JSON.parse(json));
  } catch {
    return fail(`TOLLGATE_TOKENS in ${place} is not valid JSON. Correct it, or remove it.`);
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

function fail(message) {
  console.error(message);
  process.exit(1);
}

/** The command of the Wrangler that is imported above. */
const WRANGLER = join(dirname(fileURLToPath(import.meta.resolve("wrangler"))), "../bin/wrangler.js");
const TOKEN_FILE = ".tollgate/token";
// Output of Wrangler that users do not need.
const NOISE = /^\s*$|^Running: |^⎔ Starting|^Using secrets|^Your Worker has access|^Binding |^env\.|GET \/healthz/u;
// Wrangler forwards log lines shortly after the answer.
const LOGS_ARRIVE_MS = 300;
