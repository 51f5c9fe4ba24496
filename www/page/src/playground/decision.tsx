// The marked decision: the client's answer, and the code for the request.
import { useState } from "preact/hooks";
import type { Event } from "../levels/track.ts";
import { announced } from "../levels/words.ts";
import { Choice, Copy, Panel } from "../shared/controls.tsx";
import { moment } from "../shared/numbers.ts";
import { answerOf } from "./answer.ts";
import { codeFor, LANGUAGES, type Language } from "./code.ts";
import type { Simulation } from "./simulation.ts";
import type { Ask } from "./trace.ts";
import { summary } from "./words.ts";

export function Decision({
  simulation,
  event,
  first,
  durationMs,
  of,
  onOf,
}: {
  simulation: Simulation;
  /** Absent before the first decision; its place is reserved. */
  event: Event | undefined;
  /** The first request. */
  first: Ask;
  durationMs: number;
  /** Its policy, if two are compared. */
  of: 0 | 1 | undefined;
  onOf: (of: number) => void;
}) {
  const [language, setLanguage] = useState<Language>("curl");
  const { verb, cost } = event ?? first;
  const asked = { verb: verb === "expired" ? "reserve" : verb, cost } as const;
  const code = codeFor(language, simulation.policy, asked, location.origin);
  const answer = event ? answerText(simulation, event) : "";
  return (
    <Panel
      title={event ? `The decision at ${moment(event.at, durationMs)}` : "The decision"}
      aside={
        of !== undefined && (
          <>
            <span class="quiet">{summary(simulation.policy)}</span>
            <Choice label="Decision of" value={WHOSE[of][0]} options={WHOSE} onChange={(id) => onOf(Number(id))} />
          </>
        )
      }
    >
      <div class="stack">
        <p class={simulation.limits.length > 1 ? "said long" : "said"}>
          {event ? announced(event, simulation.limits) : "Nothing is decided yet."}
        </p>
        <div class="sides">
          <div class="stack">
            <div class="row">
              <h3 class="grow">What the client is told</h3>
              <Copy text={answer} label="Copy answer" />
            </div>
            {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard */}
            <section class="told" tabIndex={0} aria-label="Answer">
              <pre>{answer}</pre>
            </section>
          </div>
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

const WHOSE = [
  ["0", "Policy"],
  ["1", "Compared with"],
] as const;

function answerText(simulation: Simulation, event: Event): string {
  if (event.verb === "expired") return "Nothing: the reservation has expired.";
  const { status, headers, body } = answerOf(simulation, event);
  const fields = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return [`HTTP/1.1 ${status}`, ...fields, "", JSON.stringify(body)].join("\n");
}
