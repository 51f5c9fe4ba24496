// A Node server and its database, each in its own process.
import { fork } from "node:child_process";
import { once } from "node:events";
import { Program } from "./program.mjs";

/** Starts the server in a file on an empty database. Its settings include the database's port. */
export async function onNode(file, database, settings) {
  const { port, program } = await database.start();
  const env = { ...process.env, SETTINGS: JSON.stringify({ ...settings, database: port }) };
  const server = new Program(fork(file, { env, stdio: ["ignore", "pipe", "pipe", "ipc"] }));
  const kill = () => Promise.all([server.kill(), program.kill()]);
  const listening = once(server.child, "message");
  const [message] = await Promise.race([listening, server.closed]);
  if (!message?.port) throw new Error(`the server did not start:\n${server.log}`);
  return {
    port: message.port,
    pids: [server.child.pid, program.child.pid],
    countsRows: false,
    kill,
    remove: kill,
    log: () => server.log + program.log,
  };
}
