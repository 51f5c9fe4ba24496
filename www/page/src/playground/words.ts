// Decisions in words.
import { length, number } from "../shared/numbers.ts";
import { type Event, START } from "./simulation.ts";
import type { Amount } from "./trace.ts";

/** What a screen reader says of a decision. */
export function announced({ verb, cost, decision, at }: Event): string {
  const asked = `${verb} ${costText(cost)}`;
  const left = `${number(decision.remaining)} left`;
  if (decision.allowed) {
    const wait = decision.readyAt - START - at;
    return `${asked}: granted${wait > 0 ? `, to be used in ${length(wait)}` : ""}, ${left}`;
  }
  const when = Number.isFinite(decision.retryAt) ? `would pass in ${length(decision.retryAfterMs)}` : "can never pass";
  return `${asked}: refused, ${when}, ${left}`;
}

export function costText(cost: Amount): string {
  return typeof cost === "number"
    ? number(cost)
    : Object.entries(cost)
        .map(([name, tokens]) => `${number(tokens)} ${name}`)
        .join(", ");
}
