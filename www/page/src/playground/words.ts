// Decisions in words.
import { costText } from "../levels/amount.ts";
import { type Event, START } from "../levels/track.ts";
import { length, number } from "../shared/numbers.ts";

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
