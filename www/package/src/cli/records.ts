// `npx tollgate audit` and `npx tollgate overrides`: the registry's records, read page by page.
import { Mistake, oneOf, parse } from "./arguments.js";
import { hashed, removeOverride } from "./keys.js";
import { columns, grouped, type Level, moment, plain, tokens } from "./printed.js";
import { during } from "./progress.js";
import { type Answer, Service } from "./service.js";

export async function audit(args: string[]): Promise<string> {
  const { values, flags } = parse(args, ["limit", "hash"], 0, ["json"]);
  const most = values.limit === undefined ? USUAL_ACTS : Number(values.limit);
  if (!Number.isSafeInteger(most) || most < 1)
    throw new Mistake(`--limit is how many acts, 1 or more, not ${JSON.stringify(values.limit)}`);
  const { texts, entries } = await paged<"acts", Act>("acts", most, (before, rest) => {
    const query = {
      ...(values.hash !== undefined && { key: JSON.stringify(hashed(values.hash)) }),
      limit: String(Math.min(rest, MOST_ACTS)),
      ...(before !== null && { before: String(before) }),
    };
    return `/v1/audit?${new URLSearchParams(query)}`;
  });
  if (flags.json) return texts.join("\n");
  if (entries.length === 0) return "there are no acts";
  const heads = columns(entries.map(head)).split("\n");
  return entries
    .map(({ before, after, replayed }, i) => {
      const was = replayed ? "unknown: an earlier try did it" : shown(before);
      return `${heads[i]}\n  before  ${was}\n  after   ${shown(after)}`;
    })
    .join("\n");
}

export async function overrides([name, ...args]: string[]): Promise<string> {
  return oneOf("overrides", { list, remove: removeOverride }, name)(args);
}

async function list(args: string[]): Promise<string> {
  const { values, flags } = parse(args, ["policy"], 0, ["json"]);
  const { policy } = values;
  const { texts, entries } = await paged<"overrides", Standing>("overrides", Infinity, (after) => {
    const query = { ...(policy !== undefined && { policy }), ...(after !== null && { after: String(after) }) };
    return `/v1/overrides?${new URLSearchParams(query)}`;
  });
  if (flags.json) return texts.join("\n");
  return entries.length === 0 ? "there are no overrides" : columns(entries.map(row));
}

/** Requests page after page, until there are `most` entries or no more. `next` of a page is the cursor of the one after it. */
function paged<Member extends "acts" | "overrides", Entry>(
  member: Member,
  most: number,
  path: (next: Next, rest: number) => string,
): Promise<{ texts: string[]; entries: Entry[] }> {
  const service = Service.ofEnvironment();
  return during(async (say) => {
    const texts: string[] = [];
    const entries: Entry[] = [];
    let next: Next = null;
    do {
      say(`read ${grouped(entries.length)} ${member}`);
      const { text, body }: Answer<Page<Member, Entry>> = await service.ask(
        "GET",
        path(next, most - entries.length),
        member,
      );
      texts.push(text);
      for (const entry of body[member]) entries.push(entry);
      next = body.next;
    } while (next !== null && entries.length < most);
    return { texts, entries };
  });
}

type Next = string | number | null;
type Page<Member extends string, Entry> = { readonly [M in Member]: readonly Entry[] } & { readonly next: Next };

interface Act {
  readonly at: number;
  readonly by: string;
  readonly act: string;
  readonly policy: string;
  readonly key?: string;
  readonly carry?: string;
  /** How many repeated acts share this line, and when the first was. */
  readonly count?: number;
  readonly first_at?: number;
  /** An earlier attempt of the same request did it. */
  readonly replayed?: true;
  readonly before: unknown;
  readonly after: unknown;
}

interface Standing {
  readonly since: number;
  readonly override: Override;
}

interface Override {
  readonly policy: string;
  readonly key?: unknown;
  readonly prefix?: string;
  readonly until?: number;
  readonly multiple?: number;
  readonly banned?: true;
  readonly unlimited?: true;
}

function head({ at, by, act, policy, key, carry, count, first_at }: Act): string[] {
  return [
    moment(at),
    plain(by),
    act,
    policy,
    key === undefined ? "" : `key ${key}`,
    carry === undefined ? "" : `carry ${carry}`,
    count === undefined ? "" : `${grouped(count)} times since ${moment(first_at!)}`,
  ];
}

/** A state before or after an act: the levels of a key, an override, or a policy as JSON. */
function shown(state: unknown): string {
  if (state === null) return "nothing";
  if (Array.isArray(state)) return state.map(({ limit, level }: Level) => `${limit} ${tokens(level)}`).join(", ");
  return Object.hasOwn(Object(state), "policy") ? terms(state as Override).join(" ") : plain(JSON.stringify(state));
}

/** The effect of an override, and its end. */
function terms({ policy, key, prefix, until, multiple, banned, unlimited, ...numbers }: Override): string[] {
  const what = banned ? "blocked" : unlimited ? "without limits" : multiple && `${multiple} times the policy`;
  return [what || plain(JSON.stringify(numbers)), until === undefined ? "for good" : `until ${moment(until)}`];
}

function row({ since, override }: Standing): string[] {
  const { policy, key, prefix } = override;
  const whose = key === undefined ? `prefix ${JSON.stringify(prefix)}` : `key ${JSON.stringify(key)}`;
  return [policy, plain(whose), ...terms(override), `since ${moment(since)}`];
}

const USUAL_ACTS = 20;
/** Entries in one answer. */
const MOST_ACTS = 100;
