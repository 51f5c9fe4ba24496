// `npx tollgate inspect`, `explain`, `reset`, `credit`, `block` and `overrides remove`: what operators do with one key.
import { checkCarry, Mistake, parse, seconds } from "./arguments.js";
import { type KeyState, standing } from "./key-state.js";
import { coloured, columns, type Level, lasting, moment, plain, tokens } from "./printed.js";
import { Service } from "./service.js";

export async function inspect(args: string[]): Promise<string> {
  const { values, flags, others } = parse(args, ["key-json", "hash"], 1, ["json"]);
  const key = keyOf(others, values);
  const { text, body } = await Service.ofEnvironment().ask<KeyState>("POST", "/v1/keys/inspect", "decisions", {
    body: { key },
  });
  return flags.json ? text : standing(body);
}

export async function explain(args: string[]): Promise<string> {
  const { text, body, isJson } = await about<Explanation>("explain", "explanation", args, ["cost"]);
  return isJson ? text : coloured(body.allowed ? "green" : "red", plain(body.explanation));
}

export async function reset(args: string[]): Promise<string> {
  const { text, body, isJson, shown } = await about<KeyAct>("reset", "after", args, []);
  return isJson ? text : acted(`reset ${body.policy} of ${shown}`, body);
}

export async function credit(args: string[]): Promise<string> {
  const { text, body, isJson, shown } = await about<KeyAct>("credit", "after", args, ["cost"]);
  return isJson ? text : acted(`gave tokens of ${body.policy} to ${shown}`, body);
}

export async function block(args: string[]): Promise<string> {
  const { text, body, isJson, shown, asked } = await about<Changed>("block", "changes", args, ["for"]);
  if (isJson) return text;
  const before = body.replaced > 0 ? "another override, which npx tollgate audit shows" : "no override";
  return [
    `blocked ${shown} from ${asked.policy} for ${lasting(asked.for_ms!)}`,
    `  before  ${before}`,
    "  after   an override that bans it; npx tollgate explain says until when",
    ...changesOf(body),
  ].join("\n");
}

/** Removes the override of a key, or of a prefix. */
export async function removeOverride(args: string[]): Promise<string> {
  const { values, flags, others } = parse(args, ["key-json", "hash", "policy", "prefix", "carry"], 1, ["json"]);
  const { policy, prefix, carry } = values;
  checkCarry(carry, ["additive", "as_is", "reset"]);
  if (policy === undefined) throw new Mistake("an override is of one policy: --policy api");
  if (prefix !== undefined && (others.length > 0 || values["key-json"] !== undefined || values.hash !== undefined))
    throw new Mistake("give a key or a prefix, not both");
  const whose = prefix === undefined ? { key: keyOf(others, values) } : { prefix };
  // By PUT, because URLs are logged.
  const path = `/v1/overrides${carry === undefined ? "" : `?carry=${carry}`}`;
  const { text, body } = await Service.ofEnvironment().ask<Changed>("PUT", path, "removed", {
    body: { removed: [{ policy, ...whose }] },
    changes: true,
  });
  if (flags.json) return text;
  const shown = plain(JSON.stringify(prefix ?? whose.key));
  const [of] = Object.keys(whose);
  if (body.removed === 0) return `there is no override of the ${of} ${shown} under ${policy}`;
  return [`removed the override of the ${of} ${shown} under ${policy}`, ...changesOf(body)].join("\n");
}

interface Explanation {
  readonly explanation: string;
  readonly allowed: boolean;
}

/** The results for overrides. */
interface Changed {
  readonly replaced: number;
  readonly removed: number;
  readonly changes: readonly string[];
}

interface KeyAct {
  readonly policy: string;
  readonly now: number;
  readonly replayed?: true;
  /** Absent from a replay. */
  readonly before?: readonly Level[];
  readonly after: readonly Level[];
  readonly recorded: boolean;
}

function changesOf({ changes }: Changed): string[] {
  return changes.map((line) => `  ${plain(line)}`);
}

/** Asks about a key under a policy, as the arguments say. */
async function about<Body>(
  verb: string,
  member: keyof Body & string,
  args: string[],
  options: readonly ("cost" | "for")[],
) {
  const { values, flags, others } = parse(args, ["key-json", "hash", "policy", ...options], 1, ["json"]);
  const key = keyOf(others, values);
  const { policy, cost, for: time } = values;
  if (policy === undefined) throw new Mistake(`${verb} is about one policy: --policy api`);
  if (options.includes("for") && time === undefined) throw new Mistake("a key is blocked for a time: --for 1h");
  const asked = {
    policy,
    key,
    ...(cost !== undefined && { cost: costOf(cost) }),
    ...(time !== undefined && { for_ms: seconds("for", time) * 1_000 }),
  };
  const changes = verb !== "explain";
  const { text, body } = await Service.ofEnvironment().ask<Body>("POST", `/v1/keys/${verb}`, member, {
    body: asked,
    changes,
  });
  return { text, body, isJson: flags.json === true, asked, shown: plain(JSON.stringify(key)) };
}

/** The key: literal text, JSON for any other kind, or the hash of one. */
function keyOf([text]: string[], { "key-json": json, hash }: { "key-json"?: string; hash?: string }): unknown {
  if ([text, json, hash].filter((given) => given !== undefined).length !== 1)
    throw new Mistake(
      `give one key: a text, or --key-json '["tenant","user"]', --key-json '{"ip":"203.0.113.9"}', or its --hash`,
    );
  if (hash !== undefined) return hashed(hash);
  if (text !== undefined && HASH.test(text))
    throw new Mistake(
      `${text} looks like the hash of a key: give --hash ${text}, or --key-json '${JSON.stringify(text)}' for a key with this text`,
    );
  if (json === undefined) return text;
  try {
    return JSON.parse(json);
  } catch (error) {
    throw new Mistake(`--key-json is not JSON: ${(error as Error).message}`);
  }
}

/** A key given as the hash that lists and logs show. */
export function hashed(hash: string): { readonly hash: string } {
  if (HASH.test(hash)) return { hash };
  throw new Mistake(
    `--hash is the 32 hexadecimal digits that lists and logs show of a key, not ${JSON.stringify(hash)}`,
  );
}

const HASH = /^[0-9a-f]{32}$/i;

function costOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Mistake(
      `--cost is a number, or one for each limit: --cost '{"requests":1}', not ${JSON.stringify(text)}`,
    );
  }
}

function acted(what: string, { now, before, after, recorded, replayed }: KeyAct): string {
  const had = (i: number) => (before?.[i] === undefined ? "unknown" : tokens(before[i].level));
  const rows = after.map(({ limit, level }, i) => [limit, had(i), "->", tokens(level)]);
  const lines = [`${what} at ${moment(now)}`, columns(rows, "  ")];
  if (replayed) lines.push("  an earlier try of the same request had done it");
  if (!recorded)
    lines.push("  the audit log has no line of it, for the registry did not answer; the service's own log has one");
  return lines.join("\n");
}
