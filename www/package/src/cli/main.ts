#!/usr/bin/env node
// `npx tollgate`: creates a service, tokens, grants and types, checks policies, and operates a running service.
import { GRANT_VERBS } from "../mint.js";
import { Mistake, parse } from "./arguments.js";
// @ts-expect-error: scripts/build-package copies it
import { nodeFault } from "./configuration.mjs";
import { grant, grantKey } from "./grant.js";
import { init } from "./init.js";
import { block, credit, explain, inspect, reset } from "./keys.js";
import { lint } from "./lint.js";
import { audit, overrides } from "./records.js";
import { policies } from "./registry.js";
import { Refusal } from "./service.js";
import { tail } from "./tail.js";
import { token } from "./token.js";
import { types } from "./types.js";

const USAGE = `Usage: npx tollgate <command>

  init [folder]       writes a rate-limiting service for Cloudflare Workers into the folder; here if left out
  lint [file]         says what policies admit and cost at worst, what about them is probably a mistake, and what each environment
                      lacks to be deployed; the file is Wrangler's configuration here if left out, another one, or a .json file of
                      policies by name. Exits with 0, or with 1 if there are errors; warnings are no errors
    --json            says it as JSON, with all the numbers
  start               runs it here; PORT is the port, 8787 if not set. Needs Node 22.12 or newer, as Wrangler does
  token <name>        makes a token for a backend, and prints what to store and what to give away
    --scopes <list>   what it may do: consume, adjust, admin; consume if left out
    --policies <list> for which policies; all if left out
  grant-key [id]      makes a key that signs grants; if left out, its id is the date
  grant               signs a grant for a browser or an app with the first key in TOLLGATE_GRANT_KEYS
    --key <key>       whose budget: a text
    --key-json <key>  any other key: ["tenant","user"] or {"ip":"203.0.113.9"}
    --policies <list> for which policies
    --verbs <list>    what it may do: ${GRANT_VERBS.join(", ")}; consume,peek if left out
    --expires <time>  for how long: 90s, 10m, 1h, at most 1d; 1h if left out
    --audience <text> for which service: what its TOLLGATE_AUDIENCE says; tollgate if left out
  tail                shows the decisions of a service as they are made, until it is interrupted. TOLLGATE_URL in the environment is
                      the service, TOLLGATE_TOKEN a token of it with the scope admin
    --policy <name>   only those under this policy
    --outcome <list>  only those: allowed, refused, never, banned, unlimited, replayed, dropped, degraded, unavailable
    --json            each as JSON, on a line of its own
  types [file]        prints a TypeScript type with the names of policies and their limits, for Client<Policies>. The file is
                      Wrangler's configuration, which is the one here if left out, or JSON: {"api":{"rate":100,"period":"1m"}}
    --url <url>       asks a service that runs instead; TOLLGATE_TOKEN in the environment is its token, with the scope admin
    --out <file>      writes the type into this file, such as policies.d.ts

To operate a service that runs. TOLLGATE_URL in the environment is its address, TOLLGATE_TOKEN a token with the scope admin.

  policies list       says which policies there are, and what they admit
  policies diff <file>
                      compares the policies of a file, as lint reads it, with those of the service: what applying it would change.
                      Exits with 0 if they are the same, 1 if they differ, 2 if that cannot be told
    --env <name>      those of an environment of Wrangler
  policies apply <file>
                      creates and replaces policies, so that the service has those of the file; others stay. Nothing is changed if
                      the service would refuse one of them. One that was changed since it was read is not overwritten; the
                      first change that fails is the last
    --env <name>      those of an environment of Wrangler
    --carry <how>     what happens to the tokens that keys have: additive (the default), as_is (the default with shards), proportional, reset
    --dry-run         changes nothing, and says what would change, and for whom
  inspect <key>       shows the state of a key: buckets, reservations, latest decisions
  explain <key>       says why a request would be granted or refused; takes nothing
    --policy <name>   under which policy
    --cost <cost>     how many tokens, or how many of each limit: {"requests":1,"tokens":500}; 1 if left out
  reset <key>         fills the budget of a key
    --policy <name>   under which policy
  credit <key>        gives tokens to a key, up to the capacity
    --policy <name>   under which policy
    --cost <cost>     how many tokens, or how many of each limit; 1 if left out
  block <key>         refuses a key for a time, in place of any other override of it; overrides remove ends that
    --policy <name>   under which policy
    --for <time>      for how long: 90s, 10m, 1h, 30d
  overrides list      says which keys and prefixes have limits of their own
    --policy <name>   under which policy; all if left out
  overrides remove <key>
                      lets the policy count for a key again
    --policy <name>   under which policy
    --prefix <text>   the override of a prefix, instead of a key
    --carry <how>     what happens to the tokens that keys have: additive (the default), as_is (the default with shards), reset
  audit               says who has changed what, the latest first
    --limit <count>   how many acts; 20 if left out
    --hash <digits>   only those on the key of this hash

A key is a text. For others there is --key-json in its place: '["tenant","user"]', '{"ip":"203.0.113.9"}'. A key that is known only by the
hash that lists and logs show of it is --hash <digits>. With --json, all of these print the service's answer as it came; page by page,
one on each line, where it has several. Policies that are compared or applied are one object, with the answer for each.

A list is names with commas between them. Exit codes: 0 done; 1 the service refuses, policies have errors, or they differ; 2 wrong
arguments, a wrong environment, or no answer.
`;

const COMMANDS: Record<string, (args: string[]) => Promise<string | undefined> | string> = {
  init,
  lint,
  start,
  token,
  "grant-key": grantKey,
  grant,
  tail,
  types,
  policies,
  inspect,
  explain,
  reset,
  credit,
  block,
  overrides,
  audit,
};

/** Only this command needs Wrangler. */
async function start(args: string[]): Promise<undefined> {
  parse(args, [], 0);
  const fault = nodeFault(); // before Wrangler is imported, which such a Node may not even read
  if (fault) throw new Mistake(fault);
  // @ts-expect-error: scripts/build-package copies it
  const service = await import("./start.mjs").catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new Mistake("Wrangler is missing: npm install --save-dev wrangler");
  });
  return service.start();
}

/** The usage of one command; all of it, if there is no such command. */
function helpOn(name: string): string {
  const paragraphs = USAGE.split("\n\n");
  const commands = paragraphs.flatMap((paragraph) => paragraph.split(/^(?= {2}\S)/m));
  const own = commands.filter((text) => text.startsWith(`  ${name} `)).map((text) => text.trimEnd());
  if (own.length === 0) return USAGE;
  const notes = paragraphs.slice(-2).join("\n\n");
  return `${paragraphs[0]}\n\n${own.join("\n")}\n\n${notes}`;
}

async function main([name, ...args]: string[]): Promise<void> {
  if (name === undefined || name === "--help" || name === "-h") return console.log(USAGE);
  const isText = args.indexOf("--"); // all after it, even a key such as -h
  const wantsHelp = (isText < 0 ? args : args.slice(0, isText)).some((arg) => arg === "--help" || arg === "-h");
  if (wantsHelp) return console.log(helpOn(name));
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
