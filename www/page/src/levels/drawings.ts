// What the charts of a budget show: the level of a limit, and what was admitted beside the bound.
import { range } from "d3-array";
import { area, curveLinear, curveStepAfter } from "d3-shape";
import { type Plot, stroke } from "../shared/chart.tsx";
import { amountOf } from "./amount.ts";
import { START, type Track } from "./track.ts";

/** The level of a limit up to `now`: a line, with what was granted and refused below it, and reservations as spans. */
export function drawLevel(track: Track, limit: number, now: number, from: number, selected?: number) {
  return (plot: Plot) => {
    const { context, left, right } = plot;
    const { name, kind, capacity = 0 } = track.limits[limit]!;
    const end = Math.min(right, plot.x(now));
    context.lineWidth = 1;
    context.strokeStyle = plot.colour("bound");
    context.setLineDash([5, 4]);
    across(plot, plot.y(capacity));
    context.setLineDash([]);
    context.strokeStyle = plot.colour("quiet");
    across(plot, plot.y(0));
    spans(plot, track, now, from);

    const last = track.count(now);
    const momentAt = (x: number) => from + (x - left) / (plot.x(from + 1) - plot.x(from));
    const tokensAfter = (i: number) => track.events[i]!.states[limit]!.tokens;
    let [count, x] = [track.count(from), left];
    const points: [number, number][] = [];
    const add = (decided: number, at: number) => points.push([x, plot.y(track.levelAfter(limit, decided, at))]);
    add(count, from);
    // Column by column: what a decision takes is a step down, and of many in a column the lowest is seen.
    while (x < end) {
      x = Math.min(end, x + 1);
      const until = Math.min(now, momentAt(x));
      let lowest = count;
      const first = count;
      while (count < last && track.events[count]!.at <= until) {
        if (tokensAfter(count) < tokensAfter(lowest)) lowest = count;
        count += 1;
      }
      if (count > first) add(first, track.events[first]!.at);
      if (count > first + 1) add(lowest + 1, track.events[lowest]!.at);
      add(count, until);
    }
    const curve = kind === "fixed_window" ? curveStepAfter : curveLinear;
    context.fillStyle = plot.colour("wash");
    context.beginPath();
    area().curve(curve).y0(plot.y(0)).context(context)(points);
    context.fill();
    context.strokeStyle = plot.colour("accent");
    context.lineWidth = 2;
    context.lineJoin = "round";
    stroke(context, points, curve);
    marks(plot, track, now, from, selected, name);
  };
}

/** Each decision is a mark at the top: granted green and short, refused red and long, with its wait as a line until it would pass. */
function marks(
  plot: Plot,
  track: Track,
  now: number,
  from: number,
  selected: number | undefined,
  name: string | undefined,
) {
  const { context, top } = plot;
  const [first, last] = [track.count(from - 1), track.count(now)];
  // Of many in one column only the first of each kind is drawn.
  const drawn = [-1, -1];
  for (let i = first; i < last; i++) {
    const { at, decision, cost } = track.events[i]!;
    const x = Math.round(plot.x(at));
    const kind = decision.allowed ? 0 : 1;
    if (i === selected) {
      context.fillStyle = plot.colour("ink");
      context.fillRect(x - 1, top, 2, plot.bottom - top);
    }
    if (drawn[kind] === x || amountOf(cost, name) === 0) continue;
    drawn[kind] = x;
    context.fillStyle = plot.colour(decision.allowed ? "granted" : "refused");
    context.fillRect(x - 1, decision.allowed ? top : top + 8, 2, 7);
    const wait = decision.allowed ? decision.readyAt - START - at : decision.retryAfterMs;
    if (wait > 0 && Number.isFinite(wait) && last - first < WAITS_SEEN)
      context.fillRect(x, decision.allowed ? top + 3 : top + 11, Math.max(1, plot.x(at + wait) - x), 1);
  }
}

/** Reservations from when they were made until they ended; until they may be used, paler. */
function spans(plot: Plot, track: Track, now: number, from: number) {
  const { context, bottom } = plot;
  const seen = track.reservations.filter(({ at, end }) => at <= now && (end?.at ?? now) >= from).slice(-LANES);
  for (const [lane, { at, readyAt, end }] of seen.entries()) {
    const y = bottom - 7 - lane * 6;
    const until = Math.min(now, end?.at ?? now);
    context.fillStyle = plot.colour("held");
    context.globalAlpha = 0.4;
    context.fillRect(plot.x(at), y, Math.max(2, plot.x(until) - plot.x(at)), 4);
    context.globalAlpha = 1;
    if (until > readyAt) context.fillRect(plot.x(readyAt), y, Math.max(2, plot.x(until) - plot.x(readyAt)), 4);
  }
}

/** What a limit has admitted since the trace began, below the line that it never crosses. */
export function drawAdmitted(track: Track, limit: number, now: number, from: number, to: number) {
  return (plot: Plot) => {
    const { context, left, right } = plot;
    const through = (end: number, value: (moment: number) => number) => {
      const momentAt = (x: number) => from + ((x - left) / (right - left)) * (to - from);
      stroke(
        context,
        [...range(left, end), end].map((x) => [x, plot.y(value(momentAt(x)))]),
      );
    };
    context.lineWidth = 1.5;
    context.strokeStyle = plot.colour("bound");
    context.setLineDash([5, 4]);
    through(right, (moment) => track.bound(limit, moment));
    context.setLineDash([]);
    context.lineWidth = 2;
    context.strokeStyle = plot.colour("granted");
    through(Math.min(right, plot.x(now)), (moment) => {
      return track.events[track.count(Math.min(now, moment)) - 1]?.admitted[limit] ?? 0;
    });
  };
}

function across({ context, left, right }: Plot, y: number) {
  const middle = Math.round(y) + 0.5;
  stroke(context, [
    [left, middle],
    [right, middle],
  ]);
}

/** With more, their lines would be one. */
const WAITS_SEEN = 400;
const LANES = 12;
