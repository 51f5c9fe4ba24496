// A TOML text by lines: where the limits of a policy are written, and how one value is changed while every other byte stays. The
// parser alone says where a statement ends and what it means; a change that it does not read back as meant is not made here.
import { parse, stringify } from "smol-toml";

/** Fields of a policy or a limit, as in the settings. */
export type Fields = Record<string, unknown>;

/** A key with its value, or the head of a table: lines `from` to `to`, the last not included, counted from 0. */
interface Statement {
  readonly from: number;
  readonly to: number;
  readonly path: readonly string[];
}

/** A table with its keys. */
interface Block {
  readonly head: Statement;
  readonly keys: readonly Statement[];
}

/** The policies by name: those under `[vars.POLICIES]` of a wrangler.toml, or else all tables. */
export function policiesOf(toml: string): Fields {
  const settings = parse(toml) as Fields;
  return (within(settings) ?? settings) as Fields;
}

/** Where a policy is: its line, if it is only a rate, or else its own table, if any, and those of its limits. */
export function tablesOf(toml: string, policy: string) {
  const place = [...(within(parse(toml) as Fields) ? ["vars", "POLICIES"] : []), policy];
  const blocks = blocksOf(toml.split("\n"));
  const named = (path: readonly string[]) => blocks.filter(({ head }) => head.path.join("\n") === path.join("\n"));
  const line = named(place.slice(0, -1))[0]?.keys.find(({ path }) => path[0] === policy);
  return { line, own: named(place)[0], limits: named([...place, "limits"]) };
}

/**
 * The text in which a policy has these limits in place of its own. Comments, order and spaces stay, unless the
 * policy is written in an unsupported form, such as on one line: then the whole text is rewritten.
 */
export function withLimits(toml: string, policy: string, before: readonly Fields[], after: readonly Fields[]): string {
  const settings = parse(toml) as Fields;
  const policies = (within(settings) ?? settings) as Fields;
  const old = policies[policy];
  const { limits, ...fields } = Object(old) as Fields;
  const rest = Array.isArray(limits)
    ? fields
    : Object.fromEntries(Object.entries(fields).filter(([field]) => !isOfLimit(field)));
  if (typeof old === "string")
    policies[policy] = isRate(after) ? after[0]!.rate : isAlone(after) ? after[0] : { limits: after };
  else
    policies[policy] = !Array.isArray(limits) && isAlone(after) ? { ...rest, ...after[0] } : { ...rest, limits: after };
  const text = inPlace(toml, policy, before, after);
  return text !== undefined && canonical(readable(text)) === canonical(settings) ? text : written(settings);
}

function inPlace(
  toml: string,
  policy: string,
  before: readonly Fields[],
  after: readonly Fields[],
): string | undefined {
  const { line, own, limits } = tablesOf(toml, policy);
  const lines = toml.split("\n");
  const text = new Lines(lines);
  if (line && isRate(after)) {
    text.replace(line, exchanged(lines, line, before[0]!.rate, after[0]!.rate));
    return text.join();
  }
  const blocks = limits.length > 0 ? limits : own ? [own] : [];
  if (blocks.length !== before.length) return undefined;
  if (after.length < before.length) {
    const gone = before.findIndex((limit, i) => canonical(limit) !== canonical(after[i]));
    const { head, keys } = blocks[gone]!;
    const end = (keys.at(-1) ?? head).to;
    text.remove(head.from, lines[end]?.trim() === "" ? end + 1 : end);
    return text.join();
  }
  const last = blocks.at(-1)!;
  const opened = lines[last.head.from]!.match(/^\s*\[+(.*?)\]/)?.[1];
  const opens = `[[${limits.length > 0 ? opened : `${opened}.limits`}]]`;
  if (after.length > before.length && limits.length === 0) {
    // The policy's own fields come first, and its only limit gets its own table.
    for (const { from, to } of last.keys.filter(({ path }) => !isOfLimit(path[0]!))) {
      text.add(last.head, lines.slice(from, to).map(trimmedEnd));
      text.remove(from, to);
    }
    text.add(last.head, ["", opens]);
  }
  for (const [i, block] of blocks.entries()) change(text, lines, block, before[i]!, after[i]!);
  for (const limit of after.slice(before.length))
    text.add(last.keys.at(-1) ?? last.head, [
      "",
      opens,
      ...Object.entries(limit).map(([field, value]) => one(field, value)),
    ]);
  return text.join();
}

/** Changes those fields of a limit that differ. */
function change(text: Lines, lines: readonly string[], { head, keys }: Block, before: Fields, after: Fields) {
  for (const field of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (canonical(before[field]) === canonical(after[field])) continue;
    const at = keys.find(({ path }) => path[0] === field);
    if (after[field] === undefined) {
      if (at) text.remove(at.from, at.to);
    } else if (at) {
      text.replace(at, exchanged(lines, at, before[field], after[field]));
    } else {
      const indent = /^\s*/.exec(lines[(keys[0] ?? head).from]!)![0];
      text.add(field === "name" ? head : (keys.at(-1) ?? head), [indent + one(field, after[field])]);
    }
  }
}

/** A key with another value: its spaces and its comment stay. */
function exchanged(lines: readonly string[], { from, to }: Statement, value: unknown, other: unknown): string {
  const all = lines.slice(from, to).join("\n");
  const [name, text] = [all.slice(0, all.indexOf("=") + 1), all.slice(all.indexOf("=") + 1)];
  const isValue = (part: string) => canonical(readable(`x =${part}`)) === canonical({ x: value });
  const comments = Array.from(text.matchAll(/#/g), ({ index }) => index);
  const written = text.slice(
    0,
    comments.find((index) => isValue(text.slice(0, index))),
  );
  const [, before, after] = /^(\s*).*?(\s*)$/s.exec(written)!;
  return name + before + one("x", other).slice("x = ".length) + after + text.slice(written.length);
}

/** The lines of a text during a change. Each keeps its place until the end. */
class Lines {
  readonly #lines: string[][];
  /** How its lines end, but for the line feed. */
  readonly #end: string;

  constructor(lines: readonly string[]) {
    this.#lines = lines.map((line) => [line]);
    this.#end = lines[0]!.endsWith("\r") ? "\r" : "";
  }

  replace({ from, to }: Statement, text: string) {
    this.remove(from, to);
    this.#lines[from] = [text];
  }

  remove(from: number, to: number) {
    for (let i = from; i < to; i++) this.#lines[i] = [];
  }

  /** Behind a statement. */
  add({ to }: Statement, lines: readonly string[]) {
    this.#lines[to - 1]!.push(...lines.map((line) => line + this.#end));
  }

  join(): string {
    return this.#lines.flat().join("\n");
  }
}

function blocksOf(lines: readonly string[]): Block[] {
  const blocks: { head: Statement; keys: Statement[] }[] = [{ head: { from: 0, to: 0, path: [] }, keys: [] }];
  for (let from = 0, to = 1; from < lines.length; from = to, to = from + 1) {
    let read = readable(lines[from]!);
    // A value of several lines is one as soon as it can be read.
    while (!read && to < lines.length) {
      to += 1;
      read = readable(lines.slice(from, to).join("\n"));
    }
    if (lines[from]!.trimStart().startsWith("[")) blocks.push({ head: { from, to, path: pathOf(read) }, keys: [] });
    else if (read && Object.keys(read).length > 0) blocks.at(-1)!.keys.push({ from, to, path: Object.keys(read) });
  }
  return blocks;
}

/** The path of a head, from what it reads as: tables within tables, the innermost empty. */
function pathOf(read: unknown): string[] {
  const [[key, inner] = []] = Object.entries(Object(Array.isArray(read) ? read[0] : read));
  return key === undefined ? [] : [key, ...pathOf(inner)];
}

function readable(toml: string): Fields | undefined {
  try {
    return parse(`${toml}\n`) as Fields;
  } catch {
    return undefined;
  }
}

function within(settings: Fields): unknown {
  return (Object(settings.vars) as Fields).POLICIES;
}

function one(field: string, value: unknown): string {
  return stringify({ [field]: value }).trim();
}

function written(settings: Fields): string {
  return stringify(settings)
    .replace(/^\[vars(\.POLICIES)?\]\n(?=\n*\[)/gm, "")
    .trim();
}

/** Equal for equal values, whatever the order of fields. */
function canonical(value: unknown): string {
  const sorted = (_: string, inner: unknown) =>
    typeof inner === "object" && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner;
  return JSON.stringify(value, sorted) ?? "";
}

const trimmedEnd = (line: string) => line.trimEnd();
const isAlone = (limits: readonly Fields[]) => limits.length === 1 && limits[0]!.name === undefined;
const isRate = (limits: readonly Fields[]) =>
  isAlone(limits) && typeof limits[0]!.rate === "string" && Object.keys(limits[0]!).length === 1;

/** Any other field of a policy that has one limit is the policy's. */
export function isOfLimit(field: string): boolean {
  return [
    "kind",
    "rate",
    "period",
    "calendar",
    "starts",
    "zone",
    "capacity",
    "max_debt",
    "initial",
    "offset",
    "grains",
    "write_ahead",
  ].includes(field);
}
