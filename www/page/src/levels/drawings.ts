// The drawings of a budget's charts: the level of a limit, and what was admitted beside the bound.
import { range } from "d3-array";
import { area, curveLinear, curveStepAfter } from "d3-shape";
import { type Plot, stroke } from "../shared/chart.tsx";
import { amountOf } from "./amount.ts";
import { type Track, waitOf } from "./track.ts";

/** The level of a limit up to `now`, with decisions as marks above it, reservations as spans, and a line at the moment `selected`. */
export function drawLevel(track: Track, limit: number, now: number, from: number, selected: number | undefined) {
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
    // Column by column. A decision is a step down; of many in one column the lowest level is drawn.
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
    if (selected !== undefined) {
      context.fillStyle = plot.colour("ink");
      context.fillRect(Math.round(plot.x(selected)) - 1, plot.top, 2, plot.bottom - plot.top);
    }
    marks(plot, track, now, from, name);
  };
}

/** Each decision is a mark at the top: granted green, refused red and lower, with its wait as a line to the moment it would pass. */
function marks(plot: Plot, track: Track, now: number, from: number, name: string | undefined) {
  const { context, top } = plot;
  const [first, last] = [track.count(from - 1), track.count(now)];
  // Of many in one column only the first of each kind is drawn.
  const drawn = [-1, -1];
  for (let i = first; i < last; i++) {
    const event = track.events[i]!;
    const { at, decision, cost } = event;
    const x = Math.round(plot.x(at));
    const kind = decision.allowed ? 0 : 1;
    if (drawn[kind] === x || amountOf(cost, name) === 0) continue;
    drawn[kind] = x;
    context.fillStyle = plot.colour(decision.allowed ? "granted" : "refused");
    context.fillRect(x - 1, decision.allowed ? top : top + 8, 2, 7);
    const wait = waitOf(event);
    if (wait > 0 && Number.isFinite(wait) && last - first < WAITS_SEEN)
      context.fillRect(x, decision.allowed ? top + 3 : top + 11, Math.max(1, plot.x(at + wait) - x), 1);
  }
}

/** Each reservation is a bar from its start to its end, paler until it may be used. */
function spans(plot: Plot, track: Track, now: number, from: number) {
  const { context, top, bottom } = plot;
  const seen = track.reservations.filter(({ at, end }) => at <= now && (end?.at ?? now) >= from);
  // The oldest nearly always ends first, so this many lanes, used in turn, are enough.
  let [lanes, open] = [1, 0];
  for (const [i, { at }] of seen.entries()) {
    while (open < i && (seen[open]!.end?.at ?? Infinity) <= at) open += 1;
    lanes = Math.max(lanes, i - open + 1);
  }
  // Half of the height, unless that is too little, so that the level above stays visible.
  const high = bottom - top;
  const lane = Math.min(LANE, Math.max(high / 2 / lanes, Math.min(THIN_LANE, high / lanes)));
  const thickness = Math.max(1, lane - 2);
  context.fillStyle = plot.colour("held");
  for (const [i, { at, readyAt, end }] of seen.entries()) {
    const y = bottom - 1 - (i % lanes) * lane - thickness;
    const until = Math.min(now, end?.at ?? now);
    const bar = (from: number) =>
      context.fillRect(plot.x(from), y, Math.max(2, plot.x(until) - plot.x(from)), thickness);
    context.globalAlpha = 0.4;
    bar(at);
    context.globalAlpha = 1;
    if (until > readyAt) bar(readyAt);
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

/** With more, their lines would merge. */
const WAITS_SEEN = 400;
/** Pixels. With more reservations at once than fit, lanes are thinner. */
const [LANE, THIN_LANE] = [6, 3];
