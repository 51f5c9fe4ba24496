// A service of one's own, made and run by `npx tollgate`, as a stranger does it.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { ENVIRONMENT, folder, run } from "./stranger.mjs";

const bin = join(folder, "node_modules/.bin/tollgate");
const service = join(folder, "my-limits");
const port = await freePort();
let running;
after(() => running?.exitCode ?? running?.kill());

const tollgate = async (args, cwd = service) => (await run(bin, args, cwd)).stdout;
const post = async (verb, body, token) => {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(`http://localhost:${port}/v1/${verb}`, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  });
  return { status: response.status, ...(await response.json()) };
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

test("a token that was made has its scopes, and a grant its key", async () => {
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

test("start says what is missing", async () => {
  await assert.rejects(tollgate(["start"], folder), /There is no wrangler\.toml here\. Make a service first/);
  await assert.rejects(tollgate(["start", "now"]), /one argument too many: now/);
});

/** What `tollgate start` has printed when it is ready. */
async function start() {
  running = spawn(bin, ["start"], { cwd: service, env: { ...process.env, ...ENVIRONMENT, PORT: port }, stdio: "pipe" });
  let printed = "";
  const told = new Promise((resolve, reject) => {
    for (const stream of [running.stdout, running.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => {
        printed += text;
        if (printed.includes("curl ")) resolve();
      });
    }
    running.on("exit", () => reject(new Error(`it ended:\n${printed}`)));
  });
  await told;
  return printed;
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
