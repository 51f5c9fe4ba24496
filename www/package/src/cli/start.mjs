// `tollgate start`: runs the service on this machine with Wrangler, prints when it answers and how to try it, and shows the output
// that matters. Plain JavaScript, so that a checkout needs no compiler of TypeScript to start.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname } from "node:path";
import { createInterface } from "node:readline";
import { unstable_readConfig } from "wrangler";

/**
 * Runs the service in this folder until it is stopped; `build` comes before. PORT is the port. Budgets are kept in .tollgate/state,
 * the token in .tollgate/token, secrets in .dev.vars.
 */
export async function start(build = () => {}) {
  const port = Number(process.env.PORT || 8787);
  if (!existsSync(CONFIGURATION))
    fail(`There is no ${CONFIGURATION} here. Make a service first: npx tollgate init my-limits`);
  const token = keepCredentials();
  if (!(await isFree(port)))
    fail(`Cannot listen on port ${port}: it is taken or not a port. Choose another: PORT=8788 npm start`);
  build();
  const wrangler = spawn(
    "wrangler",
    ["dev", "--port", port, "--persist-to", ".tollgate/state", "--show-interactive-dev-session=false"],
    { stdio: ["ignore", "pipe", "pipe"], shell: process.platform === "win32" },
  );
  wrangler.on("error", () => fail("Wrangler is missing. Run: npm install"));
  const began = Date.now();
  const progress = setInterval(() => console.log(`starting: ${Math.round((Date.now() - began) / 1_000)} s`), 5_000);
  const show = (line) => {
    const text = line.replace("[custom build] ", "").replace("[wrangler:info] ", "");
    if (text.startsWith("Ready on ")) {
      clearInterval(progress);
      introduce(`http://localhost:${port}`, token);
    } else if (!NOISE.test(text)) console.log(text);
  };
  for (const stream of [wrangler.stdout, wrangler.stderr]) createInterface({ input: stream }).on("line", show);
  wrangler.on("exit", (code, signal) => process.exit(signal ? 0 : code));
  // Ctrl-C reaches Wrangler directly. We wait until it has stopped, so that the shell's prompt returns only then.
  process.on("SIGINT", () => {});
  process.on("SIGTERM", () => wrangler.kill());
}

async function introduce(url, token) {
  const page = readConfiguration().assets ? " (open it to see limits at work)" : "";
  console.log(`\nTollgate runs at ${url}${page}. Ctrl-C stops it; budgets stay in .tollgate/state. Its policies:\n`);
  const health = await fetch(`${url}/healthz`); // the first request: on it the Worker logs its policies and what is wrong with them
  await new Promise((done) => setTimeout(done, LOGS_ARRIVE_MS));
  if (!health.ok) return console.error(`\n${url}/healthz answers ${health.status}: ${await health.text()}`);
  const [policy] = Object.keys(configuration().POLICIES);
  console.log(`
Try it:

curl -i ${url}/v1/consume -H 'Authorization: Bearer ${token}' -H 'Content-Type: application/json' -d '{"policy":"${policy}","key":"alice","cost":1}'
`);
}

/**
 * A token for this machine, kept in .tollgate/token, where users find it. Wrangler reads its hash, and the secret that names the
 * objects, from .dev.vars; what is not there yet is made up, and the rest of the file stays.
 */
function keepCredentials() {
  const file = ".dev.vars";
  let lines = existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean) : [];
  const get = (name) => {
    const line = lines.find((line) => line.match(/^\s*(\w+)\s*=/)?.[1] === name);
    return line
      ?.slice(line.indexOf("=") + 1)
      .trim()
      .replace(/^(['"])(.*)\1$/, "$2");
  };
  const set = (name, value) => {
    lines = [...lines.filter((line) => line.match(/^\s*(\w+)\s*=/)?.[1] !== name), `${name}=${value}`];
    writeFileSync(file, `${lines.join("\n")}\n`, { mode: 0o600 });
    chmodSync(file, 0o600);
  };
  // TOLLGATE_TOKEN is what earlier versions have put there.
  const token = existsSync(TOKEN_FILE)
    ? readFileSync(TOKEN_FILE, "utf8").trim()
    : get("TOLLGATE_TOKEN") || `tg_${randomBytes(32).toString("base64url")}`;
  mkdirSync(dirname(TOKEN_FILE), { recursive: true });
  writeFileSync(TOKEN_FILE, `${token}\n`, { mode: 0o600 });
  // Where .dev.vars has the setting, Wrangler does not read that of its configuration. So it has both.
  const start = { sha256: createHash("sha256").update(token).digest("hex"), scopes: ["consume", "adjust", "admin"] };
  const tokens = { ...objectIn(get("TOLLGATE_TOKENS") || "{}"), ...Object(configuration().TOLLGATE_TOKENS), start };
  set("TOLLGATE_TOKENS", `'${JSON.stringify(tokens)}'`);
  if (!get("TOLLGATE_KEY_SECRET")) set("TOLLGATE_KEY_SECRET", randomBytes(32).toString("hex"));
  return token;
}

/** The variables in the configuration. */
const configuration = () => readConfiguration().vars;

function readConfiguration() {
  try {
    return unstable_readConfig({ config: CONFIGURATION });
  } catch (error) {
    return fail(error.message);
  }
}

function objectIn(json) {
  try {
    return JSON.parse(json);
  } catch {
    return fail("TOLLGATE_TOKENS in .dev.vars is not valid JSON. Correct it, or remove its line.");
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

const CONFIGURATION = "wrangler.toml";
const TOKEN_FILE = ".tollgate/token";
// Output of Wrangler that users do not need.
const NOISE = /^\s*$|^Running: |^⎔ Starting|^Using secrets|^Your Worker has access|^Binding |^env\.|GET \/healthz/u;
// Wrangler forwards log lines shortly after the answer.
const LOGS_ARRIVE_MS = 300;
