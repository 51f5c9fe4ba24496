// Calls the module of the lint, the service's own Rust in src/lint/mod.rs: nothing is decided here.
import { exportsOf } from "./core.js";
import { type Exchange, exchanged } from "./exchange.js";
import type { PolicySettings } from "./worker.js";
import { zoneImports } from "./zones.js";

/** The result for policies. One of the two lists is empty. */
export interface LintResult {
  /** Every error in the policies, as the service would log it. */
  readonly errors: readonly string[];
  /** For each policy, by name. */
  readonly policies: readonly PolicyLint[];
}

/** The result for one policy. Numbers are exact up to 2⁵³ − 1. */
export interface PolicyLint {
  readonly policy: string;
  /** The whole description, as the service logs it when it starts: several lines. */
  readonly text: string;
  /** What the policy allows, in one line. */
  readonly summary: string;
  /** For each active limit: the enforced ones in the order written, then those in shadow. */
  readonly limits: readonly LimitFacts[];
  /** The most that all enforced limits together admit of requests that cost the same in each, for the period of each limit. */
  readonly together: readonly Admitted[];
  /** What its bans mean, if it bans keys that are refused often. */
  readonly bans?: BanFacts;
  /** Probable mistakes, and surprises. */
  readonly findings: readonly Finding[];
}

/** The numbers of one limit, and their consequences. */
export interface LimitFacts {
  /** In a policy of several limits. */
  readonly name?: string;
  /** Whether it can refuse; if not, it is soft or in shadow. */
  readonly is_enforced: boolean;
  /** It never refuses, and counts on below zero: what it admits beyond the other numbers has no bound. */
  readonly is_soft?: true;
  readonly kind: "token_bucket" | "fixed_window" | "first_use_window" | "rolling_window" | "slots";
  readonly rate: number;
  /** Of a calendar, that of its longest window. */
  readonly period_ms: number;
  /** Of windows of a calendar: their length, on which day they open and the time zone, such as `month 15 America/Sao_Paulo`. */
  readonly calendar?: string;
  /** The most tokens at once, and so the largest cost that can pass. */
  readonly capacity: number;
  /** What `consume` gets in the long run. Less than the rate if the capacity is too small for it. Slots have none. */
  readonly long_run?: { readonly tokens: number; readonly period_ms: number };
  /** What `consume` gets at once, at most. */
  readonly burst: number;
  /** What `consume` gets at most within the period of each limit of the policy, the shortest first. */
  readonly within: readonly Admitted[];
  /** How long an empty bucket takes to be full, at most. `null` if it never is. */
  readonly full_after_ms: number | null;
  /** What debt adds, if the limit has any. */
  readonly debt?: {
    readonly max_debt: number;
    /** What all verbs together get at once, at most. */
    readonly burst: number;
    readonly within: readonly Admitted[];
    /** How long the deepest debt takes to be paid, at most. `null` if it never is. */
    readonly paid_after_ms: number | null;
  };
  /** What a crash may cost a key, and how long that takes to come back, at most: `null` if it never does. */
  readonly crash: { readonly tokens: number; readonly back_after_ms: number | null };
  /** How many tokens a bucket starts with after the limit is renamed. */
  readonly change_grants: number;
}

/** What bans for being refused often mean for a key. */
export interface BanFacts {
  /** The most refusals within any `within_ms` for which no key is banned. */
  readonly tolerated: number;
  readonly within_ms: number;
  /** How long the first ban lasts. */
  readonly first_ms: number;
  /** How many times as long as the one before each further ban lasts. */
  readonly grow: number;
  /** How long a ban lasts at most. */
  readonly longest_ms: number;
  /** How many times a key that never stops is let in again in its first day. */
  readonly let_in_within_day: number;
}

/** The most tokens within a length of time, both ends included; of a rolling window without its end. */
export interface Admitted {
  readonly period_ms: number;
  readonly tokens: number;
}

/** Something that is probably unintended (`warning`), or may be intended but is surprising (`note`). */
export interface Finding {
  readonly level: "warning" | "note";
  /** Codes do not change. */
  readonly code: FindingCode;
  /** The name of the limit in question, if it is one of several. */
  readonly limit?: string;
  readonly text: string;
}

/** Which finding it is. */
export type FindingCode =
  | "refuses_all"
  | "only_debt"
  | "never_refills"
  | "rate_not_reached"
  | "window_edge"
  | "kept_forever"
  | "debt_never_paid"
  | "long_debt"
  | "costly_crash"
  | "never_decides"
  | "windows_not_aligned"
  | "not_enforced"
  | "fails_open"
  | "flood_opens"
  | "divided_capacity"
  | "many_idempotency_keys"
  | "many_slots"
  | "refused_by_each_shard";

/**
 * Reports what policies admit at worst, what a crash and a change may cost, and probable mistakes in them: the
 * `POLICIES` of the service, or their JSON.
 *
 * ```js
 * import { lint } from "tollgate/lint";
 *
 * const { errors, policies } = await lint({ api: "100/1m burst 200" });
 * policies[0].limits[0].within; // [{ period_ms: 60000, tokens: 300 }]
 * ```
 */
export type Lint = (policies: string | Readonly<Record<string, PolicySettings>>) => Promise<LintResult>;

/** The exports of src/lint/mod.rs, which documents them. */
interface Exports extends Exchange {
  lint(): number;
}

/**
 * The lint by this module. Each call has its own instance, and frees its memory.
 *
 * @internal
 */
export function linter(compile: () => Promise<WebAssembly.Module>): Lint {
  let compiled: Promise<WebAssembly.Module> | undefined;
  return async (policies) => {
    // `undefined` and functions have no JSON.
    const json = typeof policies === "string" ? policies : (JSON.stringify(policies) ?? "null");
    compiled ??= (async () => compile())();
    const module = await compiled.catch(failed);
    const zones = zoneImports();
    const instance = await WebAssembly.instantiate(module, zones.imports);
    zones.of(instance);
    const ours = instance.exports as unknown as Exports;
    return JSON.parse(exchanged(ours, json, ours.lint));
  };
}

/** Throws what the other modules throw if they cannot be compiled. */
function failed(cause: unknown): never {
  throw exportsOf(() => {
    throw cause;
  });
}
