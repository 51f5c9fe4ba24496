// What one policy makes of what is asked: for each limit its level, and what it has admitted.
import { Chart } from "../shared/chart.tsx";
import { DataTable, Panel } from "../shared/controls.tsx";
import { length, moment, number } from "../shared/numbers.ts";
import { drawAdmitted, drawLevel } from "./drawings.ts";
import type { Simulation } from "./simulation.ts";
import { costText } from "./words.ts";

export function Side({
  simulation,
  now,
  durationMs,
  selected,
  onPick,
}: {
  simulation: Simulation;
  now: number;
  durationMs: number;
  selected: number;
  onPick: (index: number) => void;
}) {
  const { policy } = simulation;
  const count = simulation.count(now);
  const last = simulation.events[count - 1];
  const span = [0, durationMs] as const;
  const full = simulation.fullAfterMs(now);
  const pick = (at: number) => {
    const after = simulation.count(Math.min(at, now));
    const near = [after - 1, after].filter((i) => i >= 0 && i < count);
    const distance = (i: number) => Math.abs(simulation.events[i]!.at - at);
    if (near.length > 0) onPick(near.reduce((best, i) => (distance(i) < distance(best) ? i : best)));
  };
  return (
    <Panel
      title={policy.lint.summary}
      aside={
        <span class="counts">
          {number(last?.granted ?? 0)} granted, {number(last?.refused ?? 0)} refused
          {full > 0 && `, full in ${length(full)}`}
        </span>
      }
    >
      <div class="stack">
        {policy.limits.map(({ name, capacity = 0, maxDebt = 0 }, i) => {
          const level = simulation.level(i, now);
          const admitted = last?.admitted[i] ?? 0;
          const title = name ?? policy.name;
          return (
            <div key={title}>
              <h3>
                {title}: {number(Math.floor(level))} of {number(capacity)}
                {level < 0 && " (in debt)"}
              </h3>
              <Chart
                label={`Level of ${title} over time: now ${number(Math.floor(level))} of ${number(capacity)}`}
                height={190}
                span={span}
                range={[-maxDebt, capacity * 1.22]}
                draw={drawLevel(simulation, i, now, 0, selected)}
                onPick={pick}
              />
              <h3>
                Admitted in total: {number(admitted)} of at most {number(Math.floor(simulation.bound(i, now)))}
              </h3>
              <Chart
                label={`Admitted by ${title} in total: ${number(admitted)}, never above ${number(Math.floor(simulation.bound(i, now)))}`}
                height={150}
                span={span}
                range={[0, simulation.bound(i, durationMs) * 1.05]}
                draw={drawAdmitted(simulation, i, now, 0, durationMs)}
              />
            </div>
          );
        })}
        <ul class="legend">
          <li>level</li>
          <li class="granted">granted, admitted</li>
          <li class="refused">refused, and its wait</li>
          <li class="bound">capacity, bound</li>
          {simulation.reservations.length > 0 && <li class="held">reservations</li>}
        </ul>
        <DataTable
          caption={`The last ${number(ROWS)} decisions as a table`}
          columns={[
            "Moment",
            "Asked",
            "Cost",
            "Answer",
            "Wait",
            ...policy.limits.map(({ name }) => `Left in ${name ?? policy.name}`),
          ]}
          rows={() =>
            simulation.events
              .slice(Math.max(0, count - ROWS), count)
              .reverse()
              .map(({ at, verb, cost, decision, states }) => [
                moment(at, durationMs),
                verb,
                costText(cost),
                decision.allowed ? "granted" : "refused",
                decision.allowed ? "–" : length(decision.retryAfterMs),
                ...states.map(({ tokens }) => number(tokens)),
              ])
          }
        />
      </div>
    </Panel>
  );
}

const ROWS = 50;
