// The marked decision: what a client is told, and the code that would have asked.
import { useState } from "preact/hooks";
import type { Event } from "../levels/track.ts";
import { Choice, Copy, Panel } from "../shared/controls.tsx";
import { moment } from "../shared/numbers.ts";
import { answerOf } from "./answer.ts";
import { codeFor, LANGUAGES, type Language } from "./code.ts";
import type { Simulation } from "./simulation.ts";
import { announced } from "./words.ts";

export function Decision({
  simulation,
  event,
  durationMs,
  of,
}: {
  simulation: Simulation;
  event: Event;
  durationMs: number;
  /** Whose it is, where policies are compared. */
  of: string | undefined;
}) {
  const [language, setLanguage] = useState<Language>("curl");
  const code = codeFor(language, simulation.policy, event, location.origin);
  const { status, headers, body } = answerOf(simulation, event);
  const answer = [
    `HTTP/1.1 ${status}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    "",
    JSON.stringify(body),
  ].join("\n");
  return (
    <Panel
      title={`The decision at ${moment(event.at, durationMs)}`}
      aside={of !== undefined && <span class="quiet">{of}</span>}
    >
      <div class="stack">
        <p class={simulation.limits.length > 1 ? "said long" : "said"}>
          {event ? announced(event, simulation.limits) : "Nothing is decided yet."}
        </p>
        <div class="sides">
          {(TAKING.includes(event.verb) || event.tokens) && (
            <div class="stack">
              <div class="row">
                <h3 class="grow">What the client is told</h3>
                <Copy text={answer} label="Copy answer" />
              </div>
              <pre>{answer}</pre>
            </div>
          )}
          <div class="stack">
            <div class="row">
              <h3 class="grow">The code that asks</h3>
              <Copy text={code} label="Copy code" />
            </div>
            <Choice label="Language" value={language} options={LANGUAGES} onChange={setLanguage} />
            <pre>{code}</pre>
          </div>
        </div>
      </div>
    </Panel>
  );
}

/** Any other decision is a caller's only if it says how many tokens it has moved. */
const TAKING: readonly Event["verb"][] = ["consume", "reserve", "borrow"];
