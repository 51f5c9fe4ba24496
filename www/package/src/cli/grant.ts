// `npx tollgate grant` and `npx tollgate grant-key`: grants for browsers, and the keys that sign them.
import { existsSync, readFileSync } from "node:fs";
import { parseEnv } from "node:util";
import { TollgateError } from "../errors.js";
import { GRANT_VERBS, type GrantOptions, type GrantVerb, mintGrant, randomText } from "../mint.js";
import { list, Mistake, NAME, parse, seconds } from "./arguments.js";

export async function grant(args: string[]): Promise<string> {
  const { values } = parse(args, ["key", "key-json", "policies", "verbs", "expires", "audience"], 0);
  const { key, "key-json": json, policies, verbs, expires, audience } = values;
  if (!key === !json) throw new Mistake('a grant is for one key: --key alice, or --key-json \'["tenant","user"]\'');
  if (!policies) throw new Mistake("a grant is for one or more policies: --policies api");
  const keys = process.env.TOLLGATE_GRANT_KEYS ?? devVars().TOLLGATE_GRANT_KEYS;
  if (!keys) {
    throw new Mistake(
      "TOLLGATE_GRANT_KEYS is neither in the environment nor in .dev.vars. Make a key: npx tollgate grant-key",
    );
  }
  try {
    return await mintGrant(keys, {
      key: json ? JSON.parse(json) : key,
      policies: list("policies", policies),
      ...(verbs !== undefined && { verbs: list("verbs", verbs, GRANT_VERBS) as GrantVerb[] }),
      ...(expires !== undefined && { expiresInS: seconds("expires", expires) }),
      ...(audience !== undefined && { audience }),
    } satisfies GrantOptions);
  } catch (error) {
    if (error instanceof SyntaxError) throw new Mistake(`--key-json is not JSON: ${error.message}`);
    if (error instanceof TollgateError) throw new Mistake(error.message);
    throw error;
  }
}

export function grantKey(args: string[]): string {
  const [id = new Date().toISOString().slice(0, 10)] = parse(args, [], 1).others;
  if (!NAME.test(id)) throw new Mistake(`a key's id has 1 to 40 letters, digits, - and _, not ${JSON.stringify(id)}`);
  // JavaScript moves such members to the front, and the first key signs.
  if (/^\d+$/.test(id)) throw new Mistake(`a key's id must not be a number: take 'k${id}' in place of ${id}`);
  return `Store this as the secret TOLLGATE_GRANT_KEYS, where the service runs (npx wrangler secret put TOLLGATE_GRANT_KEYS; .dev.vars)
and where your backend signs grants:

{"${id}":"${randomText()}"}

Wrangler reads it from .dev.vars only if wrangler.toml names it under [secrets]: required = ["TOLLGATE_KEY_SECRET", "TOLLGATE_GRANT_KEYS"].

To replace a key without a gap, put the new one after the old one in the same JSON object and deploy; then put it first: all are
accepted, and the first signs. Remove the old one when its last grant has ended, a day later at most.`;
}

/** The local service's secrets. */
function devVars(): NodeJS.Dict<string> {
  return existsSync(".dev.vars") ? parseEnv(readFileSync(".dev.vars", "utf8")) : {};
}
