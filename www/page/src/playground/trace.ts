// Traces: requests and their times. A trace is made for a policy, so that it shows what this policy does; it is the same at each
// play, and the same for two policies that are compared.
import type { Limit, Verb } from "tollgate";
import { type Amount, amountOf } from "../levels/amount.ts";

/** A request. Moments are milliseconds since the trace began. */
export interface Ask {
  readonly at: number;
  readonly verb: Exclude<Verb, "consumeUpTo"> | "settle" | "cancel";
  readonly cost: Amount;
}

export type TraceKind = "none" | "steady" | "burst" | "reserved" | "retry" | "attack" | "office" | "csv";

export const TRACES: readonly (readonly [id: TraceKind, title: string])[] = [
  ["none", "Only by hand"],
  ["steady", "Steady"],
  ["burst", "Burst at an edge"],
  ["reserved", "Bursts, reserved"],
  ["retry", "Retry storm"],
  ["attack", "Attack"],
  ["office", "A day of office hours"],
  ["csv", "Your own CSV"],
];

export interface Trace {
  readonly asks: readonly Ask[];
  readonly durationMs: number;
}

/** The trace of a kind for a policy, in which every request has this cost. */
export function trace(kind: TraceKind, limits: readonly Limit<string>[], cost: Amount, csv = ""): Trace {
  const { budget, perMs, periodMs, reservable } = scale(limits, cost);
  const random = sequence();
  const at = (moments: readonly number[], durationMs: number, verb: Ask["verb"] = "consume"): Trace => ({
    asks: moments.toSorted((a, b) => a - b).map((at) => ({ at: Math.round(at), verb, cost })),
    durationMs,
  });
  const spread = (from: number, to: number, count: number) =>
    Array.from({ length: Math.min(MOST, Math.max(0, Math.round(count))) }, () => from + random() * (to - from));
  switch (kind) {
    case "none":
      return { asks: [], durationMs: Math.max(60_000, periodMs) };
    case "steady": {
      const durationMs = 5 * periodMs;
      const count = Math.min(MOST, Math.max(10, Math.ceil(perMs * durationMs * 1.25)));
      return at(
        Array.from({ length: count }, (_, i) => (i * durationMs) / count),
        durationMs,
      );
    }
    case "burst": {
      // All tokens just before a window closes, and again just after.
      const edge = periodMs;
      const count = Math.max(2, budget);
      return at(
        [
          ...spread(edge * 0.96, edge - 1, count),
          ...spread(edge, edge * 1.04, count),
          ...spread(2.5 * edge, 2.55 * edge, count),
        ],
        4 * periodMs,
      );
    }
    case "reserved": {
      // Each burst exceeds the capacity; the second exceeds the largest debt.
      const refillMs = Math.min(YEAR, Math.max(1000, reservable / perMs || 0));
      const burst = (start: number, share: number) =>
        spread(start * refillMs, (start + 0.2) * refillMs, Math.max(2, share * reservable));
      return at([...burst(0.2, 0.7), ...burst(1.2, 1.6), ...burst(2.8, 0.7)], 4 * refillMs, "reserve");
    }
    case "retry": {
      // Each client retries every tenth of a period, whatever the answer.
      const clients = Math.min(400, Math.max(10, budget));
      const tries = Array.from({ length: clients }, () => periodMs * (0.5 + random() * 0.1));
      return at(
        tries.flatMap((first) => Array.from({ length: 20 }, (_, i) => first + i * 0.1 * periodMs)),
        4 * periodMs,
      );
    }
    case "attack": {
      const durationMs = 6 * periodMs;
      const usual = perMs * durationMs * 0.5;
      const flood = Math.min(MOST - 2000, Math.max(100, perMs * periodMs * 2 * 10));
      return at(
        [...spread(0, durationMs, Math.min(2000, usual)), ...spread(periodMs, 3 * periodMs, flood)],
        durationMs,
      );
    }
    case "office": {
      // From eight to six, with lunch at half past twelve; at night a little.
      const load = (hour: number) => 0.04 + bell(hour, 10.5, 1.8) + bell(hour, 15, 2);
      const mean = 0.04 + (2.507 * (1.8 + 2)) / 24;
      const busiest = Math.min(MOST, Math.max(200, 1.1 * perMs * DAY * mean));
      const moments: number[] = [];
      while (moments.length < busiest) {
        const hour = random() * 24;
        if (random() * 1.1 < load(hour)) moments.push(hour * 3_600_000);
      }
      return at(moments, DAY);
    }
    case "csv": {
      const asks = fromCsv(csv, cost);
      return { asks, durationMs: Math.max(1000, (asks.at(-1)?.at ?? 0) * 1.1) };
    }
  }
}

/** Reads lines of `seconds,cost,verb`; the last two may be missing, and other lines are skipped. */
export function fromCsv(text: string, cost: Amount): Ask[] {
  return text
    .split("\n")
    .map(cellsOf)
    .filter(isAsk)
    .slice(0, MOST)
    .map(([seconds, amount, verb]) => ({
      at: Math.round(Number(seconds) * 1000),
      verb: VERBS.find((known) => known === verb) ?? "consume",
      cost: amount ? Number(amount) : cost,
    }))
    .toSorted((a, b) => a.at - b.at);
}

/** The numbers of the skipped lines of a CSV, except for a heading and empty ones. */
export function passedOver(text: string): number[] {
  return text.split("\n").flatMap((line, i) => (i > 0 && line.trim() && !isAsk(cellsOf(line)) ? [i + 1] : []));
}

const cellsOf = (line: string) => line.split(/[,;\t]/).map((cell) => cell.trim());

function isAsk([seconds, amount, verb]: readonly string[]): boolean {
  const isCost = !amount || (Number.isSafeInteger(Number(amount)) && Number(amount) >= 0);
  const isVerb = !verb || VERBS.some((known) => known === verb);
  return Boolean(seconds) && Number(seconds) >= 0 && Number(seconds) < 1e9 && isCost && isVerb;
}

/** How many requests of this cost the tightest limit admits at once and in a millisecond, and the period to which that belongs. */
function scale(limits: readonly Limit<string>[], cost: Amount) {
  // A limit that never refills has a meaningless period.
  const refilled = limits.filter(({ rate }) => rate > 0);
  const usedMs = refilled.length > 0 ? Math.min(...refilled.map(({ periodMs }) => periodMs)) : USED_MS;
  const each = limits.map(({ name, rate, periodMs: ownMs, capacity = rate, maxDebt = 0 }) => {
    const periodMs = rate > 0 ? ownMs : usedMs;
    const asked = Math.max(1, amountOf(cost, name));
    return {
      budget: (capacity || maxDebt) / asked,
      reservable: (capacity + maxDebt) / asked,
      perMs: (rate || capacity / 4) / asked / periodMs,
      periodMs,
    };
  });
  const tightest = each.toSorted((a, b) => a.perMs - b.perMs)[0]!;
  const quickest = each.toSorted((a, b) => a.periodMs - b.periodMs)[0]!;
  const least = (of: "budget" | "reservable") => Math.min(2000, Math.ceil(Math.min(...each.map((limit) => limit[of]))));
  return {
    budget: least("budget"),
    reservable: least("reservable"),
    perMs: Math.max(tightest.perMs, 0.1 * quickest.perMs),
    periodMs: Math.min(YEAR, Math.max(1000, quickest.periodMs)),
  };
}

function bell(hour: number, middle: number, width: number): number {
  return Math.exp(-(((hour - middle) / width) ** 2) / 2);
}

/** Numbers from 0 to 1 that look random and are the same in every browser: a link shows what its sender saw. */
function sequence() {
  let state = 20_261_123;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** The most requests of a trace. */
export const MOST = 100_000;
const DAY = 86_400_000;
/** In four of these a trace uses up a limit that never refills. */
const USED_MS = 12_000;
/** No trace plays longer periods. */
const YEAR = 366 * DAY;
const VERBS: readonly Ask["verb"][] = ["consume", "reserve", "borrow", "charge", "settle", "cancel", "refund", "reset"];
