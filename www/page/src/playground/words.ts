// Decisions in words.
import { costText } from "../levels/amount.ts";
import { type Event, namesCost, waitOf } from "../levels/track.ts";
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

/** What a screen reader says of a decision about these limits. */
export function announced(event: Event, limits: Policy["limits"]): string {
  const { verb, cost, decision, states } = event;
  const wait = waitOf(event);
  const granted = `granted${wait > 0 ? `, usable in ${length(wait)}` : ""}`;
  const left = limits.map(({ name }, i) => {
    const tokens = number(Math.max(0, states[i]!.tokens));
    return name === undefined ? `${tokens} left` : `${tokens} left in ${name}`;
  });
  if (verb === "expired") return `${verb}: ${left.join(", ")}`;
  const refused = `refused, ${Number.isFinite(wait) ? `would pass in ${length(wait)}` : "can never pass"}`;
  return `${namesCost(verb) ? `${verb} ${costText(cost)}` : verb}: ${decision.allowed ? granted : refused}, ${left.join(", ")}`;
}
