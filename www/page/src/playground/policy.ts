// A policy as it is edited: as TOML, which goes into wrangler.toml, and as a form. The Worker's own reader says what is wrong, and what
// the policy means; nothing is decided here.
import { parse, stringify, TomlError } from "smol-toml";
import type { Limit } from "tollgate";
import type { PolicyLint } from "tollgate/lint";
import { rate } from "tollgate/rate";

/** A policy that can be played. */
export interface Policy {
  readonly name: string;
  /** The numbers of those limits that are enforced. */
  readonly limits: readonly Limit<string>[];
  /** How long after its start a reservation can be settled. */
  readonly reservationTtlMs: number;
  readonly refundsUnsettled: boolean;
  readonly lint: PolicyLint;
}

/** A mistake, and the line of the TOML that it is about, if that is known. Lines count from 1. */
export interface Mistake {
  readonly text: string;
  readonly line?: number;
}

export type Read =
  | { readonly policy: Policy; readonly mistakes?: undefined }
  | { readonly mistakes: readonly Mistake[] };

/** Fields of a policy or a limit, as the settings have them. */
export type Fields = Record<string, unknown>;

/** Reads the first policy of a TOML text. The reader of policies is loaded when it is first needed: it is half of the page. */
export async function read(toml: string): Promise<Read> {
  let policies: Fields;
  try {
    policies = policiesOf(toml);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const [text] = error.message.replace(/^Invalid TOML document: /, "").split("\n");
    return { mistakes: [{ text: text!, line: error.line }] };
  }
  const { lint } = await import("tollgate/lint");
  const { errors, policies: linted } = await lint(JSON.stringify(policies));
  if (errors.length > 0) return { mistakes: errors.map((text) => ({ text, ...lineOf(text, toml) })) };
  const said = linted[0]!;
  const fields = policies[said.policy];
  const playable = said.limits.filter(({ is_enforced }) => is_enforced);
  if (playable.length === 0)
    return { mistakes: [{ text: `${said.policy} enforces no limit: there is nothing to play` }] };
  const all = limitFields(fields);
  const limits = playable.map((facts): Limit<string> => {
    const { initial, offset } = Object(all.find(({ name }) => name === facts.name)) as Fields;
    return {
      kind: facts.kind,
      ...(facts.name !== undefined && { name: facts.name }),
      rate: facts.rate,
      periodMs: facts.period_ms,
      capacity: facts.capacity,
      maxDebt: facts.debt?.max_debt ?? 0,
      ...(typeof initial === "number" && { initial }),
      ...(typeof offset === "string" && { offsetMs: millis(offset) }),
    };
  });
  const { reservation_ttl, unsettled } = Object(fields) as Fields;
  const reservationTtlMs = millis(typeof reservation_ttl === "string" ? reservation_ttl : "10m");
  const policy = { name: said.policy, limits, reservationTtlMs, refundsUnsettled: unsettled === "refund", lint: said };
  return { policy };
}

/** The policies by name: those under `[vars.POLICIES]` of a wrangler.toml, or else all tables there are. */
function policiesOf(toml: string): Fields {
  const settings = parse(toml) as Fields;
  const { POLICIES } = Object(settings.vars) as Fields;
  return (POLICIES ?? settings) as Fields;
}

/** The limits that a policy is written with; a policy of one limit is its own. */
export function limitFields(policy: unknown): Fields[] {
  const { limits } = Object(policy) as Fields;
  return Array.isArray(limits) ? limits : [typeof policy === "string" ? { rate: policy } : (policy as Fields)];
}

/** A policy as the form shows it. */
export interface Form {
  readonly name: string;
  /** What is of the policy and not of its limits. */
  readonly rest: Fields;
  readonly limits: readonly Fields[];
}

/** The first policy of a TOML text for the form; nothing where there is none. */
export function formOf(toml: string): Form | undefined {
  try {
    const [name, policy] = Object.entries(policiesOf(toml))[0] ?? [];
    if (name === undefined || !Object(policy)) return undefined;
    if (typeof policy === "string" || !Array.isArray(Object(policy).limits))
      return { name, rest: {}, limits: limitFields(policy) };
    const { limits, ...rest } = policy as Fields;
    return { name, rest, limits: limits as Fields[] };
  } catch {
    return undefined; // the reader says why
  }
}

/** The TOML of what the form shows. */
export function tomlOf({ name, rest, limits }: Form): string {
  const [only] = limits;
  const policy = limits.length === 1 && only!.name === undefined ? { ...rest, ...only } : { ...rest, limits };
  return stringify({ vars: { POLICIES: { [name]: policy } } })
    .replace(/^\[vars\]\n|^\[vars\.POLICIES\]\n/gm, "")
    .trim();
}

/** A length of time as the settings write it, read by the package's reader of rates. */
function millis(text: string): number {
  return /^\s*0\s*\D*$/.test(text) ? 0 : rate(`1/${text}`).periodMs;
}

/** The line that an error of the reader is about: it begins with the path of the field, `POLICIES.llm.limits[1].rate: …`. */
function lineOf(error: string, toml: string): { line?: number } {
  const path = /^POLICIES\.([^:]*)/.exec(error)?.[1]?.split(".");
  if (!path) return {};
  const lines = toml.split("\n");
  const index = Number(/\[(\d+)\]/.exec(path.join("."))?.[1] ?? -1);
  const heads = lines.flatMap((line, i) => (/^\s*\[\[/.test(line) ? [i] : []));
  const start =
    index >= 0
      ? (heads[index] ?? 0)
      : Math.max(
          0,
          lines.findIndex((line) => line.includes(path[0]!)),
        );
  const field = path.at(-1)!.replace(/\[\d+\]$/, "");
  const end = index >= 0 ? (heads[index + 1] ?? lines.length) : lines.length;
  const at = lines.slice(start, end).findIndex((line) => line.trimStart().replace(/["']/g, "").startsWith(field));
  return { line: (at < 0 ? start : start + at) + 1 };
}
