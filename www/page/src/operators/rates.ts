// Rates between two readings of counters.
import type { Counts } from "./service.ts";

/** Counters as they were read. */
export interface Look {
  /** When, by the service's clock: a slow answer lowers no rate. */
  readonly now: number;
  readonly counts: Counts;
}

/** Decisions per second in an interval. */
export interface Step {
  readonly from: number;
  readonly to: number;
  readonly rates: readonly Rates[];
}

/** A policy's numbers per second. */
export interface Rates {
  readonly policy: string;
  readonly granted: number;
  readonly refused: number;
  /** Requests that limits in shadow would have refused. */
  readonly inShadow: number;
  /** Decided without an object call. */
  readonly saved: number;
  readonly undecided: number;
}

/** The rates between consecutive readings; if the counters restarted in between, since then. */
export function stepsOf(looks: readonly Look[]): Step[] {
  return looks.slice(1).map(({ now: to, counts }, i) => {
    const before = looks[i]!;
    const began = beganAt(counts);
    const isAnew = began > beganAt(before.counts);
    const from = Math.min(to, Math.max(before.now, began));
    return { from, to, rates: ratesOf(isAnew ? new Map() : before.counts, counts, Math.max(1, to - from)) };
  });
}

/** When they started, by the service's clock. */
export function beganAt(counts: Counts): number {
  return (counts.get("tollgate_metrics_start_time_seconds{}") ?? 0) * 1000;
}

/** The rates of each policy with requests. */
function ratesOf(before: Counts, after: Counts, ms: number): Rates[] {
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

/** Requests that could not be decided since the counters began, by outcome and cause. */
export function undecidedOf(counts: Counts): [cause: string, count: number][] {
  return Array.from(counts).flatMap(([key, count]): [string, number][] => {
    const [, answer, cause] = /^tollgate_undecided_requests_total\{answer="(.*?)",cause="(.*?)"\}$/.exec(key) ?? [];
    return answer && cause && count > 0 ? [[`${answer}, ${cause}`, count]] : [];
  });
}
