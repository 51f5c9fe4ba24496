// Decisions per second, by policy, and the keys refused most.
import { sum } from "d3-array";
import { useEffect, useState } from "preact/hooks";
import { Chart, stroke } from "../shared/chart.tsx";
import { type Cell, DataTable, Panel, Table } from "../shared/controls.tsx";
import { dateTime, length, moment, number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { Chosen } from "./one-key.tsx";
import { beganAt, type Look, stepsOf, undecidedOf } from "./rates.ts";
import { NOT_READ } from "./records.tsx";
import type { Service, Top } from "./service.ts";

export function Decided({
  service,
  policies,
  isShown,
  onProblem,
  onChoose,
}: {
  service: Service;
  /** The policies in force: each has a row, even without requests. */
  policies: readonly string[];
  /** Otherwise nothing is requested. */
  isShown: boolean;
  onProblem: (text: string) => void;
  onChoose: (chosen: Chosen) => void;
}) {
  const [looks, setLooks] = useState<readonly Look[]>([]);
  const [top, setTop] = useState<Top>();
  const [shown, show] = useState("");
  useEffect(() => {
    if (!isShown) return undefined;
    let isOver = false;
    const look = async () => {
      if (document.visibilityState !== "visible") return;
      try {
        const [counts, top] = await Promise.all([service.metrics(), service.ask<Top>("/v1/metrics/top")]);
        if (isOver) return;
        setLooks((looks) => [...looks.slice(-SEEN), { now: top.now, counts }]);
        setTop(top);
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
  const counts = looks.at(-1)?.counts ?? new Map();
  const steps = stepsOf(looks);
  const step = steps.at(-1);
  const rates = new Map(step?.rates.map((one) => [one.policy, one]));
  const names = [...new Set([...policies, ...rates.keys()])];
  const undecided = undecidedOf(counts);
  const points = steps.map(({ from, to, rates }) => {
    const of = rates.filter(({ policy }) => shown === "" || policy === shown);
    const all = (kind: Kind) => sum(of, (one) => one[kind]);
    const start = looks[0]!.now;
    return {
      from: from - start,
      at: to - start,
      granted: all("granted"),
      refused: all("refused"),
      inShadow: all("inShadow"),
    };
  });
  const highest = Math.max(1, ...points.flatMap((point) => KINDS.map(([kind]) => point[kind])));
  const last = points.at(-1);
  return (
    <Panel title="Decisions per second">
      <div class="stack">
        <select aria-label="Decisions of" value={shown} onChange={({ currentTarget }) => show(currentTarget.value)}>
          <option value="">All policies</option>
          {names.map((policy) => (
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
                // A rate is drawn over the interval that it was measured in.
                points.flatMap((point) => [point.from, point.at].map((at) => [x(at), y(point[kind])] as const)),
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
          rows={names.map((policy) => {
            if (!step) return [policy, ...Array(7).fill("–")];
            const { granted = 0, refused = 0, inShadow = 0, saved = 0, undecided = 0 } = rates.get(policy) ?? {};
            return [
              policy,
              number(granted),
              number(refused),
              share(refused, granted + refused),
              number(inShadow),
              share(inShadow, granted + refused),
              share(saved, granted + refused),
              number(undecided),
            ];
          })}
          note={
            step
              ? `Over the ${length(Math.round((step.to - step.from) / 1000) * 1000)} before the last reading.`
              : "Rates appear with the second reading."
          }
        />
        <div class="sides">
          <Titled
            label="Requests that could not be decided"
            columns={["Answer, cause", "Requests"]}
            rows={undecided.map(([cause, count]) => [cause, number(count)])}
            note={
              looks.length > 0
                ? since(beganAt(counts), undecided.length > 0, "Every request has been decided")
                : NOT_READ
            }
            isKept
          />
          <Titled
            label="Keys refused most"
            columns={["Policy", "Key", "Refused"]}
            rows={(top?.policies ?? []).flatMap(({ policy, keys }) =>
              keys.slice(0, 5).map(({ object, prefix, at_least, at_most }) => [
                policy,
                <button type="button" class="small" onClick={() => onChoose({ policy, key: { hash: object } })}>
                  {prefix === undefined ? object : `${prefix}… (${object})`}
                </button>,
                at_least === at_most ? number(at_least) : `${number(at_least)} to ${number(at_most)}`,
              ]),
            )}
            note={top ? since(top.since, top.policies.length > 0, "No key has been refused") : NOT_READ}
            isKept
          />
        </div>
      </div>
    </Panel>
  );
}

/** A table with a title and a note. */
function Titled({
  label,
  note,
  isKept = false,
  ...table
}: {
  label: string;
  columns: readonly string[];
  rows: readonly (readonly Cell[])[];
  note: string;
  /** Reserves space: its rows come and go, and must not move what is below. */
  isKept?: boolean;
}) {
  return (
    <div class={isKept ? "kept" : undefined}>
      <h3>{label}</h3>
      <p class="quiet">{note}</p>
      {table.rows.length > 0 && <Table label={label} {...table} />}
    </div>
  );
}

/** Counters restart with the service, so a count needs its start. */
function since(began: number, isAny: boolean, none: string): string {
  return `${isAny ? "Since" : `${none} since`} ${dateTime(began)}.`;
}

function share(part: number, all: number): string {
  return all > 0 ? percent.format(part / all) : "–";
}

/** The labels of the chart, and their colours. */
const KINDS = [
  ["granted", "granted", "granted"],
  ["refused", "refused", "refused"],
  ["inShadow", "would be refused in shadow", "bound"],
] as const;
type Kind = (typeof KINDS)[number][0];

const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });

const LOOK_MS = 10_000;
/** Two requests each time: the counters, and the keys refused most. */
export const REQUESTS_A_MINUTE = (2 * 60_000) / LOOK_MS;
/** Five minutes. */
const SEEN = 30;
