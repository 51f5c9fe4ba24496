// Runs Wrangler, and starts it again when the tokens change: it reloads the settings, but not the tokens on its command line.
// Plain JavaScript, as `start.mjs` is.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync, watchFile } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/**
 * Runs Wrangler until it exits or a signal ends it, and then exits with its code. `tokens` are JSON. `readTokens` reads them again when one
 * of `files` changes, and throws if they cannot be read. `introduce` is called when Wrangler answers for the first time.
 */
export function keepRunning({ config, port, files, tokens, readTokens, introduce }) {
  // starting → ready → stopping → restarting → ready ...; restarting → waiting → restarting, if the settings are wrong; any → ending
  let state = "starting";
  let wrangler;
  let settings;
  const run = () => {
    settings = textOf(files);
    wrangler = runWrangler({ config, port, tokens, onReady });
    wrangler.on("close", onClose);
  };
  const restart = () => {
    state = "restarting";
    run();
  };
  const onReady = async () => {
    if (state === "starting")
      await introduce().catch(({ message }) => {
        if (state !== "ending") console.error(message);
      });
    if (state === "restarting") console.log("Tollgate runs again, with the tokens in the settings.");
    if (state === "starting" || state === "restarting") state = "ready";
    follow(); // the settings may have changed meanwhile
  };
  const follow = () => {
    if (state !== "ready" && state !== "waiting") return;
    const before = tokens;
    try {
      tokens = readTokens();
    } catch (error) {
      const effect = state === "ready" ? "the tokens stay as they are" : "Tollgate does not run";
      return console.error(`${error.message}\nUntil that is corrected, ${effect}.`);
    }
    if (state === "waiting") return restart();
    if (tokens === before) return;
    console.log("The tokens in the settings have changed. Starting again ...");
    state = "stopping";
    end(wrangler, "SIGTERM");
  };
  const onClose = (code, signal) => {
    if (state === "starting" || state === "ready") process.exit(code ?? codeOf(signal));
    if (state === "stopping") restart();
    else if (state === "restarting") {
      state = "waiting";
      console.error(`Wrangler could not start. Tollgate runs again after the next change of ${files.join(" or ")}.`);
      if (textOf(files) !== settings) follow(); // changed while it started
    }
  };
  run();
  // By polling: editors that replace files, and some shared folders, break any other watch.
  for (const file of files) watchFile(file, { interval: WATCH_MS }, follow);
  for (const signal of ["SIGINT", "SIGTERM"])
    process.on(signal, () => {
      if (state === "waiting") process.exit(codeOf(signal));
      // The shell's prompt returns only when Wrangler has stopped. Ctrl-C reaches Wrangler directly, too, unless it began only now.
      state = "ending";
      wrangler.on("close", () => process.exit(codeOf(signal)));
      end(wrangler, signal);
    });
}

/** Runs Wrangler with these tokens, and calls `onReady` once it answers. */
function runWrangler({ config, port, tokens, onReady }) {
  const args = ["dev", "--config", config, "--port", port, "--persist-to", ".tollgate/state"];
  // A variable on the command line overrides those of the configuration and of .dev.vars.
  args.push("--show-interactive-dev-session=false", "--var", `TOLLGATE_TOKENS:${tokens}`);
  // By its file, without a shell that would read the quotes in the JSON.
  const wrangler = spawn(process.execPath, [WRANGLER, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const began = Date.now();
  const progress = setInterval(() => console.log(`starting: ${Math.round((Date.now() - began) / 1_000)} s`), 5_000);
  const show = (line) => {
    const text = line.replace("[custom build] ", "").replace("[wrangler:info] ", "");
    if (text.startsWith("Ready on ")) {
      clearInterval(progress);
      onReady();
    } else if (!NOISE.test(text)) console.log(text);
  };
  for (const stream of [wrangler.stdout, wrangler.stderr]) createInterface({ input: stream }).on("line", show);
  wrangler.on("exit", () => clearInterval(progress));
  return wrangler;
}

/** Sends a signal to Wrangler. If that does not end it, kills it and all its descendants, such as the runtime that has the port. */
function end(wrangler, signal) {
  wrangler.kill(signal);
  const last = setTimeout(() => {
    for (const pid of [wrangler.pid, ...descendants(wrangler.pid)]) kill(pid);
    for (const stream of [wrangler.stdout, wrangler.stderr]) stream.destroy(); // another process may still have them
  }, END_MS);
  wrangler.on("close", () => clearTimeout(last));
}

/** All descendants of a process. None without `ps`. */
function descendants(pid) {
  const { stdout } = spawnSync("ps", ["-A", "-o", "pid=,ppid="], { encoding: "utf8" });
  const rows = (stdout ?? "").split("\n").map((row) => row.trim().split(/\s+/).map(Number));
  const below = (pid) => rows.filter(([, parent]) => parent === pid).flatMap(([child]) => [child, ...below(child)]);
  return below(pid);
}

function kill(pid) {
  try {
    process.kill(pid, "SIGKILL");
  } catch {} // already ended
}

const textOf = (files) => files.map((file) => (existsSync(file) ? readFileSync(file, "utf8") : "")).join("\n");

/** The exit code of a process ended by a signal, as in a shell. */
const codeOf = (signal) => 128 + constants.signals[signal];

/** The installed Wrangler's command. */
const WRANGLER = join(dirname(fileURLToPath(import.meta.resolve("wrangler"))), "../bin/wrangler.js");
const WATCH_MS = 500;
/** How long Wrangler may take to stop; usually it takes a tenth of a second. */
const END_MS = 5_000;
// Output of Wrangler that users do not need.
const NOISE = /^\s*$|^Running: |^⎔ Starting|^Using secrets|^Your Worker has access|^Binding |^env\.|GET \/healthz/u;
