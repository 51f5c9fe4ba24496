// Where Wrangler's configuration is, and whether Wrangler runs here. Plain JavaScript, as `start.mjs` is.
import { existsSync } from "node:fs";

/** The names of Wrangler's configuration. If there are several, Wrangler takes the first. */
export const CONFIGURATIONS = ["wrangler.json", "wrangler.jsonc", "wrangler.toml"];

/** Wrangler's configuration in this folder, if there is one. */
export const configurationHere = () => CONFIGURATIONS.find((name) => existsSync(name));

/** Why Wrangler does not run on this version of Node; `undefined` if it does. */
export function nodeFault(version = process.versions.node) {
  const [major, minor] = version.split(".").map(Number);
  if (major > MAJOR || (major === MAJOR && minor >= MINOR)) return undefined;
  return `Wrangler, which this command uses, needs Node ${MAJOR}.${MINOR} or newer, and this is ${version}: install a newer one from https://nodejs.org`;
}

/** `engines` of Wrangler 4.164. */
const [MAJOR, MINOR] = [22, 12];
