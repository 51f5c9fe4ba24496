// Decisions in words.
import { length, number } from "../shared/numbers.ts";
import { costText } from "./amount.ts";
import { type Event, namesCost, type Track, waitOf } from "./track.ts";

/** What a screen reader says of a decision about these limits. */
export function announced(event: Event, limits: Track["limits"]): string {
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
