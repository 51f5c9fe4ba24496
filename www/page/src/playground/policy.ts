// A policy while it is edited: as TOML, which goes into wrangler.toml, and as a form. The Worker's own reader says what is wrong, and what
// the policy means; nothing is decided here.
import { TomlError } from "smol-toml";
import type { Limit } from "tollgate";
import type { PolicyLint } from "tollgate/lint";
import { rate } from "tollgate/rate";
import { START } from "../levels/track.ts";
import { type Fields, isOfLimit, policiesOf, tablesOf, withLimits } from "./source.ts";

/** A policy that can be played. */
export interface Policy {
  readonly name: string;
  /** The numbers of the enforced limits. */
  readonly limits: readonly Limit<string>[];
  /** How long after its start a reservation can be settled. */
  readonly reservationTtlMs: number;
  readonly refundsUnsettled: boolean;
  readonly lint: PolicyLint;
  /** The limits whose windows differ by key, and when the played ones first open. */
  readonly ownWindows: readonly { readonly limit: string; readonly opensAt: number }[];
}

/** An error, and its line of the TOML, if known. Lines count from 1. */
export interface Mistake {
  readonly text: string;
  readonly line?: number;
}

export type Read =
  | { readonly policy: Policy; readonly mistakes?: undefined }
  | { readonly mistakes: readonly Mistake[] };

/** The policies of a TOML text, by name; none while it cannot be read. */
export function namesOf(toml: string): string[] {
  try {
    return Object.keys(policiesOf(toml));
  } catch {
    return []; // the reader says why
  }
}

/** The policy to play: the chosen one, or the first if there is none of this name. */
export function chosenOf(names: readonly string[], chosen: string | undefined): string | undefined {
  return names.find((name) => name === chosen) ?? names[0];
}

/** Reads a policy of a TOML text. The reader of policies is loaded when it is first needed: it is half of the page. */
export async function read(toml: string, chosen?: string): Promise<Read> {
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
  const name = chosenOf(Object.keys(policies), chosen);
  const said = linted.find(({ policy }) => policy === name)!;
  const fields = policies[said.policy];
  const playable = said.limits.filter(({ is_enforced }) => is_enforced);
  if (playable.length === 0)
    return { mistakes: [{ text: `${said.policy} enforces no limit: there is nothing to play` }] };
  const all = limitFields(fields);
  const fieldsOf = (limit: string | undefined) => Object(all.find(({ name }) => name === limit)) as Fields;
  const limits: Limit<string>[] = [];
  for (const { kind, ...facts } of playable) {
    if (kind === "first_use_window")
      return { mistakes: [{ text: `${said.policy} has windows from first use, which this page cannot play` }] };
    if (facts.calendar !== undefined)
      return { mistakes: [{ text: `${said.policy} has windows of a calendar, which this page cannot play` }] };
    if (kind === "rolling_window")
      return { mistakes: [{ text: `${said.policy} has a rolling window, which this page cannot play` }] };
    if (kind === "slots")
      return {
        mistakes: [{ text: `${said.policy} has slots, which only reservations take: this page cannot play them` }],
      };
    const { initial, offset } = fieldsOf(facts.name);
    limits.push({
      kind,
      ...(facts.name !== undefined && { name: facts.name }),
      rate: facts.rate,
      periodMs: facts.period_ms,
      capacity: facts.capacity,
      maxDebt: facts.debt?.max_debt ?? 0,
      ...(typeof initial === "number" && { initial }),
      ...(kind === "fixed_window" && {
        offsetMs: (typeof offset === "string" ? millis(offset) : PHASE_MS) % facts.period_ms,
      }),
    });
  }
  const { reservation_ttl, unsettled } = Object(fields) as Fields;
  const reservationTtlMs = millis(typeof reservation_ttl === "string" ? reservation_ttl : "10m");
  const ownWindows = limits
    .filter(({ kind, name }) => kind === "fixed_window" && fieldsOf(name).offset === undefined)
    .map(({ name, periodMs, offsetMs = 0 }) => ({
      limit: name ?? said.policy,
      opensAt: periodMs - ((START - offsetMs) % periodMs),
    }));
  return {
    policy: {
      name: said.policy,
      limits,
      reservationTtlMs,
      refundsUnsettled: unsettled === "refund",
      lint: said,
      ownWindows,
    },
  };
}

/** The limits as written; a policy of one limit is its own. */
export function limitFields(policy: unknown): Fields[] {
  const { limits } = Object(policy) as Fields;
  if (Array.isArray(limits)) return limits;
  return [
    typeof policy === "string"
      ? { rate: policy }
      : Object.fromEntries(Object.entries(policy as Fields).filter(([field]) => isOfLimit(field))),
  ];
}

/** A policy in the form. */
export interface Form {
  readonly name: string;
  readonly limits: readonly Fields[];
}

/** A policy of a TOML text for the form, if there is one. */
export function formOf(toml: string, chosen?: string): Form | undefined {
  try {
    const policies = policiesOf(toml);
    const name = chosenOf(Object.keys(policies), chosen);
    if (name === undefined || !Object(policies[name])) return undefined;
    return { name, limits: limitFields(policies[name]) };
  } catch {
    return undefined; // the reader says why
  }
}

/** The TOML with the form's current values. */
export function tomlOf(toml: string, { name, limits }: Form): string {
  return withLimits(toml, name, formOf(toml, name)!.limits, limits);
}

/** Whether a limit of the policy is a fixed window. */
export function hasWindow(toml: string, chosen?: string): boolean {
  return formOf(toml, chosen)?.limits.some(({ kind }) => kind === "fixed_window") ?? false;
}

/** The text with the same numbers as fixed windows, which open with the trace; as token buckets if one is a window. */
export function otherKind(toml: string, chosen?: string): string {
  const form = formOf(toml, chosen);
  if (!form) return toml;
  const isWindow = hasWindow(toml, chosen);
  const limits = form.limits.map(({ kind: _, offset: __, ...limit }) => {
    const { max_debt: ___, ...window } = limit;
    return isWindow ? limit : { ...window, kind: "fixed_window", offset: "0s" };
  });
  return tomlOf(toml, { ...form, limits });
}

/** A length of time as the settings write it, read by the package's reader of rates. */
function millis(text: string): number {
  return /^\s*0\s*\D*$/.test(text) ? 0 : rate(`1/${text}`).periodMs;
}

/** The line of a reader's error, which begins with the path of the field, `POLICIES.llm.limits[1].rate: …`. */
function lineOf(error: string, toml: string): { line?: number } {
  // Names may have points and colons, too: the longest that fits is meant.
  const fitting = namesOf(toml).filter((name) => error.startsWith(`POLICIES.${name}`));
  const [policy] = fitting.toSorted((a, b) => b.length - a.length);
  if (policy === undefined) return {};
  const rest = error.slice(`POLICIES.${policy}`.length);
  const [, index, field] = /^(?:\.limits\[(\d+)\])?(?:\.([^:.]+))?:/.exec(rest) ?? [];
  const { own, limits } = tablesOf(toml, policy);
  const table = index === undefined ? own : limits[Number(index)];
  const { from } = table?.keys.find(({ path }) => path[0] === field) ?? table?.head ?? {};
  const line = from ?? toml.split("\n").findIndex((line) => line.includes(policy));
  return line < 0 ? {} : { line: line + 1 };
}

/**
 * Stands for the phase that the service derives from a key, which only it can know: windows of the usual periods open some time
 * after the trace begins, neither with it nor together.
 */
const PHASE_MS = 0.4 * 86_400_000 + 24_400;
