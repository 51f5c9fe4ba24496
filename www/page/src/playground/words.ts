// Policies in words.
import { length, number } from "../shared/numbers.ts";
import type { Policy } from "./policy.ts";

/** A policy in a line: its limits, by the numbers of the visitor's locale. */
export function summary({ name, limits }: Policy): string {
  const each = limits.map(({ name, kind, rate, periodMs, capacity = rate, maxDebt = 0 }) => {
    const refill = rate > 0 ? `${number(rate)} per ${length(periodMs)}` : "never refilled";
    const what = `${kind === "fixed_window" ? "fixed window" : "token bucket"}, ${refill}`;
    return `${name === undefined ? "" : `${name} `}${what}, at most ${number(capacity)}${maxDebt > 0 ? `, debt up to ${number(maxDebt)}` : ""}`;
  });
  return `${name}: ${each.join("; ")}`;
}
