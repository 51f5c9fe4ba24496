// A budget over time: for each limit its level, and what it has admitted.
import { Chart } from "../shared/chart.tsx";
import { DataTable, Panel } from "../shared/controls.tsx";
import { length, moment, number } from "../shared/numbers.ts";
import { costText } from "./amount.ts";
import { drawAdmitted, drawLevel } from "./drawings.ts";
import { type Track, waitOf } from "./track.ts";

export function Levels({
  track,
  title,
  now,
  from = 0,
  to,
  selected,
  onPick,
}: {
  track: Track;
  title: string;
  now: number;
  /** The shown moments. */
  from?: number;
  to: number;
  /** The moment that is marked. */
  selected?: number | undefined;
  onPick?: (index: number) => void;
}) {
  const count = track.count(now);
  const last = track.events[count - 1];
  const span = [from, to] as const;
  const hasSpans = track.reservations.length > 0;
  const full = track.fullAfterMs(now);
  const pick = (at: number) => {
    const index = track.nearest(at, now);
    if (index >= 0) onPick?.(index);
  };
  return (
    <Panel
      title={title}
      aside={
        <span class="counts">
          {number(last?.granted ?? 0)} granted, {number(last?.refused ?? 0)} refused
          {full > 0 && (full < Infinity ? `, full in ${length(full)}` : ", never full again")}
        </span>
      }
    >
      <div class="stack">
        {track.limits.map(({ name, capacity = 0, maxDebt = 0 }, i) => {
          const level = track.level(i, now);
          const admitted = last?.admitted[i] ?? 0;
          const limit = name ?? track.name;
          const bound = number(Math.floor(track.bound(i, now)));
          // Each heading is one text: with several, a longer number would move the later ones.
          return (
            <div key={limit}>
              <h3>{`${limit}: ${number(Math.floor(level))} of ${number(capacity)}${level < 0 ? " (in debt)" : ""}`}</h3>
              <Chart
                label={`Level of ${limit} over time: now ${number(Math.floor(level))} of ${number(capacity)}`}
                height={190}
                span={span}
                range={[-maxDebt, capacity + 0.22 * (capacity + maxDebt)]}
                draw={drawLevel(track, i, now, from, selected)}
                {...(onPick && { onPick: pick })}
              />
              <h3>
                Admitted in total: <span>{`${number(admitted)} of at most ${bound}`}</span>
              </h3>
              <Chart
                label={`Admitted by ${limit} in total: ${number(admitted)}, never above ${bound}`}
                height={150}
                span={span}
                range={[0, track.bound(i, to) * 1.05]}
                draw={drawAdmitted(track, i, now, from, to)}
              />
            </div>
          );
        })}
        <ul class="legend">
          <li>level</li>
          <li class="granted">granted, admitted</li>
          <li class="refused">refused, and its wait</li>
          <li class="bound">capacity, bound</li>
          <li class="held">reservations</li>
        </ul>
        <DataTable
          caption={`The last ${number(ROWS)} decisions as a table`}
          columns={[
            "Moment",
            "Asked",
            "Cost",
            "Answer",
            "Wait",
            ...track.limits.flatMap(({ name = track.name }) => [`Left in ${name}`, `Admitted by ${name}`]),
            ...(hasSpans ? ["Ready", "Ended"] : []),
          ]}
          rows={() => {
            let made = track.reservations.findLastIndex(({ at }) => at <= now);
            return track.events
              .slice(Math.max(0, count - ROWS), count)
              .reverse()
              .map((event) => {
                const { at, verb, cost, decision, states, admitted } = event;
                // Both are in chronological order.
                const isMade = verb === "reserve" && decision.allowed && track.reservations[made]?.at === at;
                const { readyAt, end } = (isMade && track.reservations[made--]) || {};
                return [
                  moment(at, to),
                  verb,
                  costText(cost),
                  verb === "expired" ? "–" : decision.allowed ? "granted" : "refused",
                  waitOf(event) > 0 ? length(waitOf(event)) : "–",
                  ...states.flatMap(({ tokens }, i) => [number(tokens), number(admitted[i]!)]),
                  ...(hasSpans
                    ? [
                        readyAt === undefined ? "–" : moment(readyAt, to),
                        end && end.at <= now ? `${moment(end.at, to)} ${end.how}` : "–",
                      ]
                    : []),
                ];
              });
          }}
        />
      </div>
    </Panel>
  );
}

const ROWS = 50;
