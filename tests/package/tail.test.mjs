// `npx tollgate tail`: decisions of a running service, as they are made.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer, request } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { newToken } from "../http/credentials.mjs";
import { NOW, start } from "../http/workerd.mjs";
import { stranger } from "./stranger.mjs";

const { folder } = await stranger();
const all = newToken("consume", "admin");
const DAY = { period: "1day" };
const tollgate = await start({
  policies: {
    api: { rate: 1, ...DAY },
    llm: { limits: [{ name: "tokens", rate: 1, ...DAY }] },
    open: { rate: 1, ...DAY, mode: "shadow" },
  },
  tokens: { all: all.entry },
  token: all.text,
  registry: true,
});

/** In front of the service: a proxy, which can answer in its place. */
let blocked;
let answered = 0;
const proxy = createServer(({ method, url, headers }, response) => {
  if (blocked) return blocked(response);
  const passed = { ...headers, "x-tollgate-test-now": NOW };
  const outgoing = request({ port: tollgate.port, method, path: url, headers: passed }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response).on("finish", () => answered++);
  });
  outgoing.end();
});
await new Promise((listening) => proxy.listen(0, "127.0.0.1", listening));
after(() => proxy.close());

/** The command while it runs. */
function tail(args, env = {}) {
  const child = spawn(join(folder, "node_modules/.bin/tollgate"), ["tail", ...args], {
    env: {
      PATH: process.env.PATH,
      TZ: "UTC",
      TOLLGATE_URL: `http://127.0.0.1:${proxy.address().port}`,
      TOLLGATE_TOKEN: all.text,
      ...env,
    },
  });
  const running = { child, stdout: "", stderr: "" };
  for (const stream of ["stdout", "stderr"])
    child[stream].setEncoding("utf8").on("data", (text) => {
      running[stream] += text;
    });
  running.code = new Promise((ended) => child.on("close", ended));
  /** Waits until it has printed this. */
  running.said = (stream, text) =>
    until(
      () => running[stream].includes(text),
      () => JSON.stringify(running),
    );
  return running;
}

async function until(isSo, what) {
  for (let tries = 0; !isSo(); tries++) {
    if (tries === 1_500) throw new Error(`not yet: ${what()}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** Makes the decisions once the command is listening. */
async function whileListening(decide) {
  const before = answered;
  await until(
    () => answered > before,
    () => "it was not answered",
  );
  await decide();
}

test("shows decisions, one per line, until it is interrupted", async () => {
  const shown = tail([]);
  await whileListening(async () => {
    for (const policy of ["api", "api", "llm", "open", "open"])
      await tollgate.consume({ policy, key: "a-secret-key", cost: policy === "llm" ? { tokens: 1 } : 1 });
  });
  await shown.said("stdout", "a limit in shadow");
  const lines = shown.stdout.trimEnd().split("\n");
  const key = lines[0].match(/key ([0-9a-f]{32})$/)[1];
  const at = "2023-11-14T22:13:20.000+00:00";
  assert.deepEqual(lines, [
    `${at}  allowed      api  cost 1  0 left  key ${key}`,
    `${at}  refused      api  cost 1  0 left  passes in 1d  key ${key}`,
    `${at}  allowed      llm/tokens  cost 1  0 left  key ${key}`,
    `${at}  allowed      open  cost 1  key ${key}`,
    `${at}  allowed      open  cost 1  a limit in shadow would refuse it  key ${key}`,
  ]);
  shown.child.kill("SIGINT");
  assert.deepEqual([await shown.code, shown.stderr], [130, ""]);
});

test("shows JSON, and only matching decisions", async () => {
  const shown = tail(["--json", "--policy", "api", "--outcome", "refused,never"]);
  await whileListening(async () => {
    for (const policy of ["api", "llm", "api"])
      await tollgate.consume({ policy, key: "b", cost: policy === "llm" ? { tokens: 1 } : 1 });
  });
  await shown.said("stdout", "\n");
  const { object, ...decision } = JSON.parse(shown.stdout);
  const retry_at = NOW + 86_400_000;
  const expected = { at: NOW, policy: "api", outcome: "refused", source: "object", cost: 1, remaining: 0, retry_at };
  assert.deepEqual(decision, expected);
  assert.match(object, /^[0-9a-f]{32}$/);
  shown.child.kill("SIGTERM");
  assert.equal(await shown.code, 143);
});

test("a reader that closes the pipe ends it", async () => {
  const shown = tail([]);
  await whileListening(async () => {
    shown.child.stdout.destroy();
    await tollgate.consume({ policy: "api", key: "c" });
  });
  assert.equal(await shown.code, 0);
});

test("retries while the service does not answer, and says so", async () => {
  const shown = tail([]);
  await whileListening(async () => {
    blocked = (response) => response.writeHead(502).end("<h1>Bad gateway</h1>");
    await shown.said("stderr", "asks again in");
    blocked = (response) => response.destroy();
    await shown.said("stderr", "no answer from");
    blocked = undefined;
    await tollgate.consume({ policy: "api", key: "d" });
  });
  await shown.said("stdout", "allowed");
  assert.match(shown.stderr, /^tollgate: .* answers 502, but not as Tollgate does.*; asks again in (\d+ms|1s)/);
  assert.match(shown.stderr, /tollgate: it answers again\n$/);
  assert.ok(!shown.stderr.includes(all.text));
  shown.child.kill("SIGINT");
  assert.equal(await shown.code, 130);
});

test("says how many decisions were too many to be shown", async () => {
  const shown = tail([]);
  await whileListening(async () => {
    await Promise.all(Array.from({ length: 150 }, (_, i) => tollgate.consume({ policy: "open", key: `${i}` })));
  });
  await shown.said("stderr", "more decision");
  assert.match(shown.stderr, /^tollgate: \d+ more decisions?, too many to be shown$/m);
  shown.child.kill("SIGINT");
  await shown.code;
});

test("errors end it: in the arguments, the environment, the policy", async () => {
  const ended = async (args, env) => {
    const shown = tail(args, env);
    return [await shown.code, shown.stderr.trimEnd(), shown.stdout];
  };
  const outcomes = "allowed, refused, never, banned, unlimited, replayed, dropped, degraded, unavailable";
  for (const [args, env, code, error] of [
    [["--outcome", "denied"], {}, 2, `--outcome cannot have "denied": it is a list of ${outcomes}`],
    [["now"], {}, 2, "there is one argument too many: now"],
    [
      [],
      { TOLLGATE_TOKEN: "" },
      2,
      "TOLLGATE_TOKEN is not in the environment: a token of the service with the scope admin",
    ],
    [["--policy", "apo"], {}, 1, 'Unknown policy (404): there is no policy "apo"; there are api, llm, open'],
  ])
    assert.deepEqual(await ended(args, env), [code, `tollgate: ${error}`, ""]);
  const [code, error] = await ended([], { TOLLGATE_URL: "http://127.0.0.1:9" });
  assert.ok(code === 2 && error.startsWith("tollgate: no answer from http://127.0.0.1:9"), error);
});
