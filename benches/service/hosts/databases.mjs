// Redis and PostgreSQL as this system packages them, with their defaults, each in a temporary folder and on a free port.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, chownSync, constants, mkdtempSync, readdirSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { Program } from "./program.mjs";

/** Keeps everything in memory: nothing is written while it is measured. */
export const redis = {
  path: installed("redis-server"),
  packaged: "redis-server",

  async start() {
    const port = await freePort();
    const folder = temporary();
    const options = ["--bind", "127.0.0.1", "--port", String(port), "--dir", folder, "--save", ""];
    const program = new Program(spawn(this.path, options), { folder });
    await program.prints("Ready to accept connections");
    return { port, program };
  },
};

/** Answers when a change is on disk. */
export const postgres = {
  path: installed("postgres"),
  packaged: "postgresql",

  async start() {
    const port = await freePort();
    const folder = temporary();
    const user = unprivileged(folder);
    const data = join(folder, "data");
    const init = join(this.path, "../initdb");
    execFileSync(init, ["--pgdata", data, "--username", "tollgate", "--auth", "trust"], { ...user, stdio: "pipe" });
    const options = ["-D", data, "-h", "127.0.0.1", "-p", String(port), "-k", folder];
    // SIGQUIT: at once, with all its child processes.
    const program = new Program(spawn(this.path, options, user), { folder, signal: "SIGQUIT" });
    await program.prints("ready to accept connections");
    return { port, program };
  },
};

/** The path of a program, including where Debian puts PostgreSQL's. */
function installed(name) {
  const versions = list("/usr/lib/postgresql").sort((a, b) => Number(b) - Number(a));
  const folders = [
    ...versions.map((version) => `/usr/lib/postgresql/${version}/bin`),
    ...process.env.PATH.split(delimiter),
  ];
  return folders.map((folder) => join(folder, name)).find(isProgram);
}

function isProgram(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function list(folder) {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** The user for PostgreSQL, which does not run as root: one that owns only the folder. */
function unprivileged(folder) {
  if (process.getuid() !== 0) return { cwd: folder };
  const [uid, gid] = ["-u", "-g"].map((option) => Number(execFileSync("id", [option, "nobody"])));
  chownSync(folder, uid, gid);
  return { cwd: folder, uid, gid };
}

function temporary() {
  return mkdtempSync(join(tmpdir(), "tollgate-bench-"));
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}
