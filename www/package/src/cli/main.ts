#!/usr/bin/env node
// `npx tollgate`: makes a service, tokens, grants and types, and checks policies.
import { GRANT_VERBS } from "../mint.js";
import { Mistake, parse } from "./arguments.js";
import { grant, grantKey } from "./grant.js";
import { init } from "./init.js";
import { lint } from "./lint.js";
import { Refusal } from "./service.js";
import { token } from "./token.js";
import { types } from "./types.js";

const USAGE = `Usage: npx tollgate <command>

  init [folder]       writes a rate-limiting service for Cloudflare Workers into the folder; here if left out
  lint [file]         says what policies admit and cost at worst, and what about them is probably a mistake; the file is wrangler.toml
                      if left out, another configuration of Wrangler, or a .json file of policies by name. Exits with 0, or with 1
                      if the policies have errors; warnings are no errors
    --json            says it as JSON, with all the numbers
  start               runs it here; PORT is the port, 8787 if not set
  token <name>        makes a token for a backend, and prints what to store and what to give away
    --scopes <list>   what it may do: consume, adjust, admin; consume if left out
    --policies <list> for which policies; all if left out
  grant-key [id]      makes a key that signs grants; if left out, its id is the date
  grant               signs a grant for a browser or an app with the first key in TOLLGATE_GRANT_KEYS
    --key <key>       whose budget: a text, or JSON: ["tenant","user"] or {"ip":"203.0.113.9"}
    --policies <list> for which policies
    --verbs <list>    what it may do: ${GRANT_VERBS.join(", ")}; consume,peek if left out
    --expires <time>  for how long: 90s, 10m, 1h, at most 1d; 1h if left out
    --audience <text> for which service: what its TOLLGATE_AUDIENCE says; tollgate if left out
  types [file]        prints a TypeScript type with the names of policies and their limits, for Client<Policies>. The file is
                      Wrangler's configuration, which is the one here if left out, or JSON: {"api":{"rate":100,"period":"1m"}}
    --url <url>       asks a service that runs instead; TOLLGATE_TOKEN in the environment is its token, with the scope admin
    --out <file>      writes the type into this file, such as policies.d.ts

A list is names with commas between them.
`;

const COMMANDS: Record<string, (args: string[]) => Promise<string | undefined> | string> = {
  init,
  lint,
  start,
  token,
  "grant-key": grantKey,
  grant,
  types,
};

/** Only this command needs Wrangler. */
async function start(args: string[]): Promise<undefined> {
  parse(args, [], 0);
  // @ts-expect-error: scripts/build-package copies it
  const service = await import("./start.mjs").catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new Mistake("Wrangler is missing: npm install --save-dev wrangler");
  });
  return service.start();
}

async function main([name, ...args]: string[]): Promise<void> {
  const wantsHelp = name === undefined || [name, ...args].some((arg) => arg === "--help" || arg === "-h");
  if (wantsHelp) return console.log(USAGE);
  try {
    const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
    if (!command) throw new Mistake(`there is no command ${name}\n\n${USAGE}`);
    const said = await command(args);
    if (said !== undefined) console.log(said);
  } catch (error) {
    if (!(error instanceof Mistake || error instanceof Refusal)) throw error;
    console.error(`tollgate: ${error.message}`);
    process.exitCode = error instanceof Refusal ? 1 : 2;
  }
}

await main(process.argv.slice(2));
