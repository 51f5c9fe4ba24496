// Decisions as they are counted: in a second, by policy; and which keys are refused most.
import { sum } from "d3-array";
import { useEffect, useState } from "preact/hooks";
import { Chart, stroke } from "../shared/chart.tsx";
import { DataTable, Panel, Table } from "../shared/controls.tsx";
import { moment, number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import { ratesOf, undecidedOf } from "./rates.ts";
import type { Counts, Service, Top } from "./service.ts";

interface Look {
  readonly at: number;
  readonly counts: Counts;
}

export function Decided({
  service,
  isShown,
  onProblem,
}: {
  service: Service;
  /** Else nothing is asked. */
  isShown: boolean;
  onProblem: (text: string) => void;
}) {
  const [looks, setLooks] = useState<readonly Look[]>([]);
  const [top, setTop] = useState<Top["policies"]>([]);
  const [shown, show] = useState("");
  useEffect(() => {
    if (!isShown) return undefined;
    let isOver = false;
    const look = async () => {
      if (document.visibilityState !== "visible") return;
      try {
        const [counts, { policies }] = await Promise.all([service.metrics(), service.ask<Top>("/v1/metrics/top")]);
        if (isOver) return;
        setLooks((looks) => [...looks.slice(-SEEN), { at: performance.now(), counts }]);
        setTop(policies);
        onProblem("");
      } catch (error) {
        if (!isOver) onProblem(reasonOf(error));
      }
    };
    void look();
    const timer = setInterval(look, LOOK_MS);
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [service, isShown]);
  const steps = looks.slice(1).map((after, i) => {
    const before = looks[i]!;
    return { at: after.at, rates: ratesOf(before.counts, after.counts, after.at - before.at) };
  });
  const rates = steps.at(-1)?.rates ?? [];
  const undecided = undecidedOf(looks.at(-1)?.counts ?? new Map());
  const points = steps.map(({ at, rates }) => {
    const of = rates.filter(({ policy }) => shown === "" || policy === shown);
    const all = (kind: Kind) => sum(of, (one) => one[kind]);
    return { at: at - looks[0]!.at, granted: all("granted"), refused: all("refused"), inShadow: all("inShadow") };
  });
  const highest = Math.max(1, ...points.flatMap((point) => KINDS.map(([kind]) => point[kind])));
  const last = points.at(-1);
  return (
    <Panel title="Decisions per second">
      <div class="stack">
        <select aria-label="Decisions of" value={shown} onChange={({ currentTarget }) => show(currentTarget.value)}>
          <option value="">All policies</option>
          {rates.map(({ policy }) => (
            <option key={policy}>{policy}</option>
          ))}
        </select>
        <Chart
          label={`Decisions per second: ${KINDS.map(([kind, title]) => `${number(last?.[kind] ?? 0)} ${title}`).join(", ")}`}
          height={150}
          span={[0, Math.max(SEEN * LOOK_MS, last?.at ?? 0)]}
          range={[0, highest * 1.1]}
          draw={({ context, x, y, colour }) => {
            for (const [kind, , name] of KINDS.toReversed()) {
              context.strokeStyle = colour(name);
              context.lineWidth = 2;
              stroke(
                context,
                points.map((point) => [x(point.at), y(point[kind])]),
              );
            }
          }}
        />
        <ul class="legend">
          {KINDS.map(([kind, title, name]) => (
            <li key={kind} class={name}>
              {title}
            </li>
          ))}
        </ul>
        <DataTable
          caption="Decisions per second as a table"
          columns={["Moment", ...KINDS.map(([, title]) => title)]}
          rows={() =>
            points.toReversed().map((point) => [moment(point.at), ...KINDS.map(([kind]) => number(point[kind]))])
          }
        />
        <Titled
          label="Per second, by policy"
          columns={[
            "Policy",
            "Granted",
            "Refused",
            "Refused share",
            "Shadow would refuse",
            "Shadow share",
            "Object calls saved",
            "Undecided",
          ]}
          rows={rates.map(({ policy, granted, refused, inShadow, saved, undecided }) => [
            policy,
            number(granted),
            number(refused),
            share(refused, granted + refused),
            number(inShadow),
            share(inShadow, granted + refused),
            share(saved, granted + refused),
            number(undecided),
          ])}
          empty={steps.length > 0 ? "No requests yet." : "Rates appear after the second reading, in ten seconds."}
        />
        {undecided.length > 0 && (
          <Titled
            label="Requests that could not be decided"
            columns={["Answer, cause", "Since the counters began"]}
            rows={undecided.map(([cause, count]) => [cause, number(count)])}
            empty=""
          />
        )}
        <Titled
          label="Keys refused most in the last 10 to 20 minutes"
          columns={["Policy", "Key", "Refused"]}
          rows={top.flatMap(({ policy, keys }) =>
            keys
              .slice(0, 5)
              .map(({ object, prefix, at_least, at_most }) => [
                policy,
                prefix === undefined ? object : `${prefix}… (${object})`,
                at_least === at_most ? number(at_least) : `${number(at_least)} to ${number(at_most)}`,
              ]),
          )}
          empty="No key was refused."
        />
      </div>
    </Panel>
  );
}

/** A table under its name, or a word where there is nothing in it. */
function Titled({
  label,
  empty,
  ...table
}: {
  label: string;
  columns: readonly string[];
  rows: readonly (readonly string[])[];
  empty: string;
}) {
  return (
    <div>
      <h3>{label}</h3>
      {table.rows.length === 0 ? <p class="quiet">{empty}</p> : <Table label={label} {...table} />}
    </div>
  );
}

function share(part: number, all: number): string {
  return all > 0 ? percent.format(part / all) : "–";
}

/** What the chart shows, in words, and the colour of each. */
const KINDS = [
  ["granted", "granted", "granted"],
  ["refused", "refused", "refused"],
  ["inShadow", "would be refused in shadow", "bound"],
] as const;
type Kind = (typeof KINDS)[number][0];

const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });

const LOOK_MS = 10_000;
/** Two each time: the counters, and the keys refused most. */
export const REQUESTS_A_MINUTE = (2 * 60_000) / LOOK_MS;
/** Five minutes. */
const SEEN = 30;
