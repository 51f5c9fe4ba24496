// A stranger's project: a folder outside this repository with the package as `npm pack` makes it, installed by npm
// without network, next to packages that a stranger may already have.
//
//   const { folder, tarball } = await stranger({ beside: ["react"] });
//   await run(process.execPath, ["whole.mjs"], folder);
//
// The folder contains the files of programs/. It is removed when the test file ends, however it ends.
import { execFile } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

/** The repository and its tools. */
export const root = fileURLToPath(new URL("../../", import.meta.url));
export const modules = join(root, "node_modules");

/**
 * Makes the project. `beside` names packages to link from this repository: installing them, npm would ask its registry.
 */
export async function stranger({ beside = [] } = {}) {
  const built = join(root, "build/package");
  if (!existsSync(join(built, "package.json")))
    throw new Error(`There is no package in ${built}. Run: npm test -- package`);
  const folder = join(home, "project");
  mkdirSync(folder);
  const packed = await run("npm", ["pack", "--json", "--pack-destination", folder], built);
  const [{ filename, size, unpackedSize, files }] = JSON.parse(packed.stdout);
  writeFileSync(join(folder, "package.json"), `{ "private": true, "type": "module" }`);
  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", `./${filename}`], folder);
  for (const name of beside) {
    const link = join(folder, "node_modules", name);
    mkdirSync(dirname(link), { recursive: true });
    symlinkSync(join(modules, name), link, "junction");
  }
  cpSync(fileURLToPath(new URL("programs", import.meta.url)), folder, { recursive: true });
  return { folder, tarball: join(folder, filename), size, unpackedSize, files: files.map(({ path }) => path) };
}

/** A piece of the core's text in the package: the longest that every bundler leaves unchanged. */
export function coreText(folder) {
  const [, text] = readFileSync(join(folder, "node_modules/tollgate/wasm.js"), "utf8").match(/^const text = "(.*)";$/m);
  return text
    .split(/[^A-Za-z0-9 !#()*+,.:;<=>?@[\]^_{|}~%&-]/)
    .reduce((longest, piece) => (piece.length > longest.length ? piece : longest));
}

/** Runs a command there with the repository's tools on the PATH. If it fails, rejects with its output. */
export async function run(command, args, cwd, { env = {} } = {}) {
  const running = promisify(execFile)(command, args, {
    cwd,
    env: { ...ENVIRONMENT, ...env },
    maxBuffer: 2 ** 26,
    timeout: COMMAND_TIMEOUT_MS,
    killSignal: "SIGKILL",
  });
  running.child.stdin.end(); // no prompts
  try {
    return await running;
  } catch (error) {
    throw new Error(`${error.message}\n${error.stdout}${error.stderr}`);
  }
}

/** Runs a command and parses its output as JSON. */
export async function printed(...command) {
  const { stdout, stderr } = await run(...command);
  try {
    return JSON.parse(stdout);
  } catch {
    throw new Error(`not JSON: ${stdout}${stderr}`);
  }
}

/** The root of everything, including the tools' caches. */
const home = realpathSync(mkdtempSync(join(tmpdir(), "tollgate-package-")));
const remove = () => rmSync(home, { recursive: true, force: true });
process.on("exit", remove);
process.on("uncaughtExceptionMonitor", remove); // the runner ends without "exit" if a file throws outside its tests
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(1));

/** Our environment without npm's variables, which describe this repository. */
const ENVIRONMENT = {
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_|^NODE_/i.test(name))),
  PATH: `${join(modules, ".bin")}${delimiter}${process.env.PATH}`,
  NO_COLOR: "1",
  npm_config_cache: join(home, "npm"),
  npm_config_update_notifier: "false",
  npm_config_loglevel: "error",
  DENO_DIR: join(home, "deno"),
  DENO_NO_UPDATE_CHECK: "1",
  WRANGLER_LOG_PATH: join(home, "wrangler"),
  WRANGLER_SEND_METRICS: "false",
};

/** The slowest takes a few seconds. */
const COMMAND_TIMEOUT_MS = 120_000;
