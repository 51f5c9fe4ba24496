// `npx tollgate token`: a random token, and its hash for the service.
import { createHash } from "node:crypto";
import { randomText } from "../mint.js";
import { list, Mistake, NAME, parse } from "./arguments.js";

export function token(args: string[]): string {
  const { values, others } = parse(args, ["scopes", "policies"], 1);
  const [name] = others;
  if (name === undefined) throw new Mistake("a token has a name, such as the backend's: npx tollgate token backend");
  if (!NAME.test(name))
    throw new Mistake(`a token's name has 1 to 40 letters, digits, - and _, not ${JSON.stringify(name)}`);
  const scopes = list("scopes", values.scopes ?? "consume", SCOPES);
  const policies = values.policies === undefined ? undefined : list("policies", values.policies);
  const { token, stored } = makeToken(scopes, policies);
  const lines = Object.entries(stored).map(([name, value]) => `${name} = ${JSON.stringify(value)}\n`);
  return `Give this to the caller, who sends it as "Authorization: Bearer <token>". It is not stored and not shown again:

${token}

Add this to wrangler.toml and deploy. It is no secret: the hash does not reveal the token.

[vars.TOLLGATE_TOKENS.${name}]
${lines.join("")}
To replace a token without a gap, add the new one under another name, deploy, let the callers change, then remove the old one.`;
}

/** A new token, and its hash, which the service stores. */
export function makeToken(scopes: readonly string[], policies?: readonly string[]) {
  const token = `tg_${randomText()}`;
  const sha256 = createHash("sha256").update(token).digest("hex");
  return { token, stored: { sha256, scopes, ...(policies && { policies }) } };
}

const SCOPES = ["consume", "adjust", "admin"];
