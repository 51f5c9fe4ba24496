// What counters say of the time between two looks at them.
import type { Counts } from "./service.ts";

/** A policy, each number in a second. */
export interface Rates {
  readonly policy: string;
  readonly granted: number;
  readonly refused: number;
  /** What limits in shadow would have refused. */
  readonly inShadow: number;
  /** Decided without a call of an object. */
  readonly saved: number;
  readonly undecided: number;
}

/** The rates of each policy that was asked; nothing where the counters have begun anew. */
export function ratesOf(before: Counts, after: Counts, ms: number): Rates[] {
  const more = (name: string, labels: string) => {
    const key = `tollgate_${name}{${labels}}`;
    return (Math.max(0, (after.get(key) ?? 0) - (before.get(key) ?? 0)) * 1000) / ms;
  };
  const policies = new Set(
    Array.from(after.keys(), (key) => /^tollgate_decisions_total\{policy="(.*?)",/.exec(key)?.[1]),
  );
  return [...policies].flatMap((policy) => {
    if (policy === undefined) return [];
    const of = (...outcomes: string[]) =>
      outcomes.reduce((sum, outcome) => sum + more("decisions_total", `policy="${policy}",outcome="${outcome}"`), 0);
    return {
      policy,
      granted: of("allowed", "unlimited", "replayed"),
      refused: of("refused", "never", "banned", "dropped"),
      inShadow: more("shadow_refusals_total", `policy="${policy}"`),
      saved: more("cached_refusals_total", `policy="${policy}"`) + more("leased_decisions_total", `policy="${policy}"`),
      undecided: of("degraded", "unavailable"),
    };
  });
}

/** Requests that could not be decided since the counters began, by what became of them and why. */
export function undecidedOf(counts: Counts): [cause: string, count: number][] {
  return Array.from(counts).flatMap(([key, count]): [string, number][] => {
    const [, answer, cause] = /^tollgate_undecided_requests_total\{answer="(.*?)",cause="(.*?)"\}$/.exec(key) ?? [];
    return answer && cause && count > 0 ? [[`${answer}, ${cause}`, count]] : [];
  });
}
