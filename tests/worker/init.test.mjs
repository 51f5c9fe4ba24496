// A new service, made and run by `npx tollgate`, as by a stranger.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { afterEach, test } from "node:test";
import { promisify } from "node:util";
import { unstable_readConfig as readConfig } from "wrangler";
import { ENVIRONMENT, folder, run } from "./stranger.mjs";

const bin = join(folder, "node_modules/.bin/tollgate");
const service = join(folder, "my-limits");
const port = await freePort();
/** Time limit of tests that would wait for ever for a text if they fail; otherwise they take some ten seconds. */
const ends = { timeout: 120_000 };
let running;
// Leftovers of a failed test would keep the port from the next.
afterEach(async () => {
  if (running && running.exitCode === null && running.signalCode === null) await stop();
});

const tollgate = async (args, cwd = service) => (await run(bin, args, cwd)).stdout;
const post = async (verb, body, token) => {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const ask = () =>
    fetch(`http://localhost:${port}/v1/${verb}`, { method: "POST", headers, body: JSON.stringify(body) });
  // Wrangler closes connections while it reloads a file that was written as it started.
  for (let left = 100; ; left--) {
    try {
      const response = await ask();
      return { status: response.status, ...(await response.json()) };
    } catch (error) {
      if (left === 0) throw error;
      await new Promise((done) => setTimeout(done, 100));
    }
  }
};

test("init and start: the printed request works, and budgets survive a restart", async () => {
  await tollgate(["init", "my-limits"], folder);
  symlinkSync(join(folder, "node_modules"), join(service, "node_modules"), "junction"); // in place of `npm install`
  for (const remaining of [999, 998]) {
    const [printed] = (await start()).match(/^curl .*$/m);
    const { stdout } = await promisify(execFile)("sh", [
      "-c",
      printed.replace("curl", "curl -sS").replace("api", "daily"),
    ]);
    assert.match(stdout, /^HTTP\/1\.1 200 OK/);
    assert.match(stdout, new RegExp(`"policy":"daily".*"remaining":${remaining}`));
    await stop();
  }
});

test("a created token has its scopes, and a grant its key", async () => {
  const said = await tollgate(["token", "backend"]);
  const [token] = said.match(/^tg_.*$/m);
  const [lines] = said.match(/^\[vars\.TOLLGATE_TOKENS\.backend\]\n(.+\n)+/m);
  const [keys] = (await tollgate(["grant-key", "k1"])).match(/^\{.*\}$/m);
  const toml = readFileSync(join(service, "wrangler.toml"), "utf8");
  const required = 'required = ["TOLLGATE_KEY_SECRET"';
  assert.ok(toml.includes("[vars.TOLLGATE_TOKENS]\n") && toml.includes(required));
  writeFileSync(
    join(service, "wrangler.toml"),
    toml.replace("[vars.TOLLGATE_TOKENS]\n", lines).replace(required, `${required}, "TOLLGATE_GRANT_KEYS"`),
  );
  appendFileSync(join(service, ".dev.vars"), `TOLLGATE_GRANT_KEYS='${keys}'\n`);
  const grant = (await tollgate(["grant", "--key", "alice", "--policies", "daily"])).trim();
  await start();
  const ask = { policy: "daily", key: "alice" };
  assert.equal((await post("consume", ask, token)).status, 200);
  const { status, scope } = await post("reset", ask, token);
  assert.deepEqual([status, scope], [403, "adjust"]);
  assert.equal((await post("consume", { policy: "daily" }, grant)).remaining, 998 - 2);
  assert.equal((await post("consume", { policy: "daily", key: "bob" }, grant)).status, 403);
  assert.equal((await post("consume", { policy: "api" }, grant)).status, 403);
  await stop();
});

test("a token removed from the settings is refused, and only the owner may read the token and the secret", async () => {
  const removed = readFileSync(join(service, "wrangler.toml"), "utf8");
  const [, name] = removed.match(/^\[vars\.TOLLGATE_TOKENS\.(\w+)\]$/m);
  const made = (await tollgate(["token", name])).match(/^tg_.*$/m)[0];
  const sha256 = createHash("sha256").update(made).digest("hex");
  const toml = (hash) => removed.replace(/^sha256 = "\w+"$/m, `sha256 = "${hash}"`);
  const owners = [".tollgate/token", ".dev.vars"].map((file) => join(service, file));
  for (const file of owners) chmodSync(file, 0o644);
  const own = readFileSync(owners[0], "utf8").trim();
  const ask = { policy: "daily", key: "removed" };
  for (const [settings, status] of [
    [toml(sha256), 200],
    [removed, 401],
    // The last of the tokens, with their table.
    [removed.replace(/^\[vars\.TOLLGATE_TOKENS\.\w+\]\n(.+\n)+/m, ""), 401],
  ]) {
    writeFileSync(join(service, "wrangler.toml"), settings);
    await start();
    assert.equal((await post("consume", ask, made)).status, status);
    assert.equal((await post("consume", ask, own)).status, 200, "that of start");
    for (const file of owners) assert.equal(statSync(file).mode & 0o777, 0o600, file);
    await stop();
  }
  writeFileSync(join(service, "wrangler.toml"), removed);
});

test("while it runs, an added token works, and a removed one does not", async () => {
  const file = join(service, "wrangler.toml");
  const settings = readFileSync(file, "utf8");
  const made = "tg_added-while-it-runs";
  const sha256 = createHash("sha256").update(made).digest("hex");
  const ask = { policy: "daily", key: "while" };
  const own = readFileSync(join(service, ".tollgate/token"), "utf8").trim();
  await start();
  assert.equal((await post("consume", ask, made)).status, 401);
  for (const [text, status] of [
    [`${settings}\n[vars.TOLLGATE_TOKENS.while]\nsha256 = "${sha256}"\nscopes = ["consume"]\n`, 200],
    [settings, 401],
  ]) {
    const again = printed("Tollgate runs again");
    writeFileSync(file, text);
    await again;
    assert.equal((await post("consume", ask, made)).status, status);
    assert.equal((await post("consume", ask, own)).status, 200, "that of start");
  }
  // A half-written edit changes no token.
  const complaint = printed("the tokens stay as they are");
  writeFileSync(file, `${settings}\n[vars`);
  await complaint;
  assert.equal((await post("consume", ask, own)).status, 200);
  writeFileSync(file, settings);
  await stop();
});

test("a half-written configuration saved during a restart is waited out", ends, async () => {
  const file = join(service, "wrangler.toml");
  const settings = readFileSync(file, "utf8");
  const made = "tg_added-in-two-halves";
  const sha256 = createHash("sha256").update(made).digest("hex");
  const added = `\n[vars.TOLLGATE_TOKENS.halves]\nsha256 = "${sha256}"\nscopes = ["consume"]\n`;
  await start();
  const stopping = printed("Starting again");
  writeFileSync(file, settings + added);
  await stopping;
  const waiting = printed("Wrangler could not start. Tollgate runs again after the next change of wrangler.toml");
  writeFileSync(file, `${settings}\n[vars`);
  await waiting;
  const again = printed("Tollgate runs again, with");
  writeFileSync(file, settings + added);
  await again;
  assert.equal((await post("consume", { policy: "daily", key: "halves" }, made)).status, 200);
  // A signal ends it with the same code at every moment.
  const replaced = printed("Starting again");
  writeFileSync(file, settings);
  await replaced;
  const ended = once(running, "exit");
  running.kill("SIGINT");
  assert.deepEqual(await ended, [130, null]);
});

test("a hung Wrangler is killed along with its runtime, which has the port", ends, async () => {
  const file = join(service, "wrangler.toml");
  const settings = readFileSync(file, "utf8");
  const made = "tg_added-while-it-hangs";
  const sha256 = createHash("sha256").update(made).digest("hex");
  await start();
  const { stdout } = await promisify(execFile)("ps", ["-A", "-o", "pid=,args="]);
  const [, hanging] = stdout.match(new RegExp(`^ *(\\d+) .*/cli\\.js dev .*--port ${port} `, "m"));
  process.kill(Number(hanging), "SIGSTOP");
  const again = printed("Tollgate runs again, with");
  writeFileSync(file, `${settings}\n[vars.TOLLGATE_TOKENS.hangs]\nsha256 = "${sha256}"\nscopes = ["consume"]\n`);
  await again;
  assert.equal((await post("consume", { policy: "daily", key: "hangs" }, made)).status, 200);
  writeFileSync(file, settings);
  await stop();
});

test("start accepts each configuration that Wrangler does, and takes tokens from .dev.vars if that has none", async () => {
  const other = join(folder, "my-limits-jsonc");
  await tollgate(["init", "my-limits-jsonc"], folder);
  symlinkSync(join(folder, "node_modules"), join(other, "node_modules"), "junction");
  const { vars, ...config } = readConfig({ config: join(other, "wrangler.toml") });
  renameSync(join(other, "wrangler.toml"), join(other, "unused.toml"));
  const { name, compatibility_date, durable_objects, exports, secrets } = config;
  const written = { name, main: "index.ts", compatibility_date, durable_objects, exports, secrets };
  written.vars = { POLICIES: vars.POLICIES };
  writeFileSync(join(other, "wrangler.jsonc"), `// ours\n${JSON.stringify(written)}`);
  const file = join(other, ".dev.vars");
  const hash = (token) => createHash("sha256").update(token).digest("hex");
  writeFileSync(file, `TOLLGATE_TOKENS='{"mine":{"sha256":"${hash("tg_of-dev-vars")}","scopes":["consume"]}}'\n`);
  assert.match(await start(other), /^curl .*"policy":"api"/m);
  const ask = { policy: "daily", key: "a" };
  assert.equal((await post("consume", ask, "tg_of-dev-vars")).status, 200);
  // Also while it runs.
  const again = printed("Tollgate runs again");
  writeFileSync(file, readFileSync(file, "utf8").replace(hash("tg_of-dev-vars"), hash("tg_changed")));
  await again;
  assert.equal((await post("consume", ask, "tg_changed")).status, 200);
  assert.equal((await post("consume", ask, "tg_of-dev-vars")).status, 401);
  await stop();
});

test("start says what is missing", async () => {
  const empty = join(folder, "empty");
  mkdirSync(empty);
  const none = /There is no wrangler\.json or wrangler\.jsonc or wrangler\.toml here\. Make a service first/;
  await assert.rejects(tollgate(["start"], empty), none);
  await assert.rejects(tollgate(["start", "now"]), /one argument too many: now/);
});

/** The output of `tollgate start` once it is ready. */
async function start(cwd = service) {
  running = spawn(bin, ["start"], { cwd, env: { ...process.env, ...ENVIRONMENT, PORT: port }, stdio: "pipe" });
  for (const stream of [running.stdout, running.stderr]) stream.setEncoding("utf8");
  return printed("curl ");
}

/** Its output from now on, once that contains this text. */
function printed(part) {
  const { stdout, stderr } = running;
  let all = "";
  return new Promise((resolve, reject) => {
    const read = (text) => {
      all += text;
      if (all.includes(part)) settle(resolve, all);
    };
    const ended = () => settle(reject, new Error(`it ended:\n${all}`));
    const settle = (how, what) => {
      for (const stream of [stdout, stderr]) stream.off("data", read);
      running.off("exit", ended);
      how(what);
    };
    for (const stream of [stdout, stderr]) stream.on("data", read);
    running.on("exit", ended);
  });
}

async function stop() {
  const ended = once(running, "exit");
  running.kill();
  await ended;
}

async function freePort() {
  const server = createServer();
  await once(server.listen(0), "listening");
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}
