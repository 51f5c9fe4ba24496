// Decisions as they are counted: in a second, by policy; and which keys are refused most.
import { useEffect, useState } from "preact/hooks";
import { Chart, stroke } from "../shared/chart.tsx";
import { Panel, Table } from "../shared/controls.tsx";
import { number } from "../shared/numbers.ts";
import { type Rates, ratesOf, undecidedOf } from "./rates.ts";
import type { Counts, Service, Top } from "./service.ts";

interface Look {
  readonly at: number;
  readonly counts: Counts;
}

export function Decided({ service, onProblem }: { service: Service; onProblem: (text: string) => void }) {
  const [looks, setLooks] = useState<readonly Look[]>([]);
  const [top, setTop] = useState<Top["policies"]>([]);
  useEffect(() => {
    let isOver = false;
    setLooks([]);
    const look = async () => {
      if (document.visibilityState !== "visible") return;
      try {
        const [counts, { policies }] = await Promise.all([service.metrics(), service.ask<Top>("/v1/metrics/top")]);
        if (isOver) return;
        setLooks((looks) => [...looks.slice(-SEEN), { at: performance.now(), counts }]);
        setTop(policies);
        onProblem("");
      } catch (error) {
        if (!isOver) onProblem(String((error as Error).message));
      }
    };
    void look();
    const timer = setInterval(look, LOOK_MS);
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [service]);
  const steps = looks.slice(1).map((after, i) => {
    const before = looks[i]!;
    return { at: after.at, rates: ratesOf(before.counts, after.counts, after.at - before.at) };
  });
  const rates = steps.at(-1)?.rates ?? [];
  const undecided = undecidedOf(looks.at(-1)?.counts ?? new Map());
  const points = steps.map(({ at, rates }) => ({
    at: at - looks[0]!.at,
    granted: sum(rates, ({ granted }) => granted),
    refused: sum(rates, ({ refused }) => refused),
  }));
  const highest = Math.max(1, ...points.map(({ granted, refused }) => Math.max(granted, refused)));
  const last = points.at(-1);
  return (
    <Panel title="Decisions in a second">
      <div class="stack">
        <Chart
          label={`Decisions in a second: ${number(last?.granted ?? 0)} granted, ${number(last?.refused ?? 0)} refused`}
          height={150}
          span={[0, Math.max(SEEN * LOOK_MS, last?.at ?? 0)]}
          range={[0, highest * 1.1]}
          draw={({ context, x, y, colour }) => {
            for (const kind of ["granted", "refused"] as const) {
              context.strokeStyle = colour(kind);
              context.lineWidth = 2;
              stroke(
                context,
                points.map((point) => [x(point.at), y(point[kind])]),
              );
            }
          }}
        />
        <ul class="legend">
          <li class="granted">granted</li>
          <li class="refused">refused</li>
        </ul>
        <Titled
          label="By policy, in a second"
          columns={[
            "Policy",
            "Granted",
            "Refused",
            "Refused share",
            "Would refuse in shadow",
            "Without an object",
            "Undecided",
          ]}
          rows={rates.map(({ policy, granted, refused, inShadow, saved, undecided }) => [
            policy,
            number(granted),
            number(refused),
            share(refused, granted + refused),
            number(inShadow),
            share(saved, granted + refused),
            number(undecided),
          ])}
          empty={steps.length > 0 ? "Nothing was asked yet." : "The second look at the counters comes in ten seconds."}
        />
        {undecided.length > 0 && (
          <Titled
            label="Requests that could not be decided"
            columns={["What became of them, and why", "Since the counters began"]}
            rows={undecided.map(([cause, count]) => [cause, number(count)])}
            empty=""
          />
        )}
        <Titled
          label="Keys refused most, in the last 10 to 20 minutes"
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
          empty="None was refused."
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

function sum(rates: readonly Rates[], of: (rates: Rates) => number): number {
  return rates.reduce((sum, rates) => sum + of(rates), 0);
}

function share(part: number, all: number): string {
  return all > 0 ? percent.format(part / all) : "–";
}

const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });

const LOOK_MS = 10_000;
/** Two each time: the counters, and the keys refused most. */
export const REQUESTS_A_MINUTE = (2 * 60_000) / LOOK_MS;
/** Five minutes. */
const SEEN = 30;
