// Decisions in words.
import { length, number } from "../shared/numbers.ts";
import { costText } from "./amount.ts";
import { type Event, namesCost, type Track, waitOf } from "./track.ts";

/** The outcome of a request, and how long after it the tokens may be used, or it would pass. */
export function outcome(allowed: boolean, waitMs: number): string {
  if (allowed) return waitMs > 0 ? `granted, usable in ${length(waitMs)}` : "granted";
  return `refused, ${Number.isFinite(waitMs) ? `would pass in ${length(waitMs)}` : "can never pass"}`;
}

/** A screen reader's text for a decision about these limits. */
export function announced(
  event: Event,
  limits: Track["limits"],
  told = outcome(event.decision.allowed, waitOf(event)),
): string {
  const { verb, cost, states } = event;
  const left = limits.map(({ name }, i) => {
    const tokens = number(Math.max(0, states[i]!.tokens));
    return name === undefined ? `${tokens} left` : `${tokens} left in ${name}`;
  });
  if (verb === "expired") return `${verb}: ${left.join(", ")}`;
  return `${namesCost(verb) ? `${verb} ${costText(cost)}` : verb}: ${told}, ${left.join(", ")}`;
}
