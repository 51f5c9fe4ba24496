// A running service, and the command that operates it, installed as by a stranger.
//
//   const service = await operated({ policies: { api: "10/s" } });
//   const { code, stdout, stderr } = await service.run(["policies", "list"]);
//
// Between the two is a relay, like a company's proxy: it has the service's clock, and can delay or lose requests.
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { join } from "node:path";
import { after } from "node:test";
import { newToken } from "../http/credentials.mjs";
import { start } from "../http/workerd.mjs";
import { stranger } from "./stranger.mjs";

/** The moment of the tests, as in the documents' examples. */
export const NOW = 1_795_214_376_930;

const { folder } = await stranger({ beside: ["wrangler"] });

export { folder };

/** The policies of most tests. */
export const POLICIES = {
  api: { refusal_cache: "1s", rate: 100, period: "1m", capacity: 200, max_debt: 50, write_ahead: 0 },
  llm: {
    refusal_cache: "1s",
    limits: [
      { name: "requests", rate: 60, period: "1m", write_ahead: 0 },
      { name: "tokens", kind: "fixed_window", rate: 100_000, period: "1day", offset: "0s", write_ahead: 0 },
    ],
  },
  firm: { rate: 1, period: "1s", fixed: true, write_ahead: 0, refusal_cache: "1s" },
};

/** The condition of a change, whatever the version. */
export const MATCH = { "if-match": "*" };

/** Writes policies into a file of this name, which is returned. */
export function written(name, policies) {
  writeFileSync(join(folder, name), typeof policies === "string" ? policies : JSON.stringify(policies));
  return name;
}

const admin = newToken("consume", "adjust", "admin");

/** Starts a service with a registry. `tokens` are additional ones, by name. */
export async function operated({ policies, tokens, ...changes }) {
  const all = { ops: admin.entry, ...tokens };
  const tollgate = await start({ policies, tokens: all, token: admin.text, registry: true, ...changes });
  const sent = [];
  const relay = createServer(async (incoming, response) => {
    const { method, url: path, headers } = incoming;
    sent.push({ method, path, headers });
    await service.before?.(sent.at(-1));
    const passed = { ...headers, "x-tollgate-test-now": service.now };
    const outgoing = request({ port: tollgate.port, method, path, headers: passed }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    outgoing.on("error", () => response.destroy());
    incoming.pipe(outgoing);
  });
  await new Promise((done) => relay.listen(0, "127.0.0.1", done));
  after(() => {
    relay.closeAllConnections();
    relay.close();
  });
  const service = {
    tollgate,
    now: NOW,
    /** Every request sent by the command: its method, path and headers. */
    sent,
    /** Called with each request before it is forwarded. */
    before: undefined,
    url: `http://127.0.0.1:${relay.address().port}`,
    token: admin.text,
    /** Runs the command. */
    run: (args, { env, ...options } = {}) =>
      command(args, { env: { TOLLGATE_URL: service.url, TOLLGATE_TOKEN: admin.text, ...env }, ...options }),
    /** Asks the service itself: its answer. */
    ask: (method, path, body, headers) =>
      tollgate.send({ method, path, body: body && JSON.stringify(body), now: service.now, headers }),
  };
  return service;
}

/**
 * Runs `npx tollgate`: its exit code and output. `heard` is called with the whole stderr so far, each time it grows. On a
 * `terminal` its output is that of one.
 */
export function command(args, { env = {}, cwd = folder, heard, terminal = false } = {}) {
  const program = join(folder, "node_modules/.bin/tollgate");
  const [file, ...rest] = terminal ? onTerminal([program, ...args]) : [program, ...args];
  const child = spawn(file, rest, {
    cwd,
    env: { PATH: process.env.PATH, HOME: process.env.HOME, TZ: "UTC", WRANGLER_SEND_METRICS: "false", ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const said = { stdout: "", stderr: "" };
  for (const stream of ["stdout", "stderr"])
    child[stream].setEncoding("utf8").on("data", (text) => {
      said[stream] += text;
      if (stream === "stderr") heard?.(said.stderr);
    });
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, ...said }));
  });
}

/** The same on its own terminal, by the system's tool for that. */
function onTerminal(words) {
  if (process.platform === "darwin") return ["script", "-q", "/dev/null", ...words];
  const quoted = words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(" ");
  return ["script", "--quiet", "--return", "--command", quoted, "/dev/null"];
}
