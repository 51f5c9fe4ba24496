// A chart on a canvas: the frame, the axes and the sharp pixels are here, what is drawn is the caller's.
//
// Lines, areas and round values are d3's; the frame is ours. A library of whole charts would leave the page no room in its 100 KB, of which the reader of
// policies takes half, or could not bear 100,000 decisions: uPlot is 22 KB, and Chartist makes an element of each point.
import { range as multiples, ticks } from "d3-array";
import { type CurveFactory, curveLinear, line } from "d3-shape";
import { useEffect, useRef } from "preact/hooks";
import { length, number } from "./numbers.ts";

/** Where a drawing goes. Moments and values are turned into pixels by `x` and `y`. */
export interface Plot {
  readonly context: CanvasRenderingContext2D;
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
  x(moment: number): number;
  y(value: number): number;
  /** A colour of the theme by its custom property. */
  colour(name: string): string;
}

export interface ChartProps {
  /** The screen reader's text. */
  readonly label: string;
  readonly height: number;
  /** The moments shown, in milliseconds. */
  readonly span: readonly [from: number, to: number];
  readonly range: readonly [lowest: number, highest: number];
  readonly draw: (plot: Plot) => void;
  /** Called with the moment clicked. */
  readonly onPick?: (moment: number) => void;
}

export function Chart({ label, height, span, range, draw, onPick }: ChartProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  /** Where the plot begins: beside the longest value. */
  const left = useRef(0);
  const paint = () => {
    if (canvas.current) left.current = drawn(canvas.current, span, range, draw);
  };
  useEffect(() => {
    paint();
  });
  const latest = useRef(paint);
  latest.current = paint;
  useEffect(() => {
    const again = () => latest.current();
    const sizes = new ResizeObserver(again);
    sizes.observe(canvas.current!);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", again);
    return () => {
      sizes.disconnect();
      theme.removeEventListener("change", again);
    };
  }, []);
  const pick = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const share = (event.clientX - box.left - left.current) / (box.width - left.current - RIGHT);
    onPick?.(span[0] + share * (span[1] - span[0]));
  };
  return (
    <canvas ref={canvas} class={`chart h${height}`} role="img" aria-label={label} onClick={onPick ? pick : undefined} />
  );
}

function drawn(
  canvas: HTMLCanvasElement,
  [from, to]: readonly [number, number],
  [lowest, highest]: readonly [number, number],
  draw: (plot: Plot) => void,
): number {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d")!;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  context.font = `12px ${style.fontFamily}`;
  context.direction = "ltr"; // a minus is before its number in every script
  const values = ticks(lowest, highest, (height - TOP - BOTTOM) / 34).filter(Number.isInteger);
  const longest = Math.max(0, ...values.map((value) => context.measureText(short.format(value)).width));
  const [left, right, top, bottom] = [Math.max(LEFT, longest + 12), width - RIGHT, TOP, height - BOTTOM];
  const plot: Plot = {
    context,
    left,
    right,
    top,
    bottom,
    x: (moment) => left + ((moment - from) / (to - from || 1)) * (right - left),
    y: (value) => bottom - ((value - lowest) / (highest - lowest || 1)) * (bottom - top),
    colour: (name) => style.getPropertyValue(`--${name}`),
  };
  axes(plot, [from, to], values);
  context.save();
  context.beginPath();
  context.rect(left - 1, 0, right - left + 2, height);
  context.clip();
  draw(plot);
  context.restore();
  return left;
}

function axes(plot: Plot, [from, to]: readonly [number, number], values: readonly number[]) {
  const { context, left, right, bottom } = plot;
  context.lineWidth = 1;
  context.fillStyle = plot.colour("quiet");
  context.strokeStyle = plot.colour("grid");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of values) {
    const y = Math.round(plot.y(value)) + 0.5;
    stroke(context, [
      [left, y],
      [right, y],
    ]);
    context.fillText(short.format(value), left - 8, y);
  }
  context.textBaseline = "top";
  for (const moment of momentTicks(from, to, (right - left) / 90)) {
    const x = Math.round(plot.x(moment)) + 0.5;
    stroke(context, [
      [x, bottom],
      [x, bottom + 4],
    ]);
    context.textAlign = x > right - 24 ? "right" : x < left + 24 ? "left" : "center";
    context.fillText(moment === 0 ? number(0) : length(moment), x, bottom + 7);
  }
}

/** Draws a line through points, which are in pixels. */
export function stroke(
  context: CanvasRenderingContext2D,
  points: Iterable<readonly [x: number, y: number]>,
  curve: CurveFactory = curveLinear,
) {
  context.beginPath();
  line<readonly [number, number]>().curve(curve).context(context)(points);
  context.stroke();
}

/** About this many moments between two, at round clock intervals. */
function momentTicks(from: number, to: number, count: number): number[] {
  const rough = (to - from) / Math.max(1, count);
  const step = STEPS.find((step) => step >= rough) ?? Math.ceil(rough / 604_800_000) * 604_800_000;
  return multiples(Math.ceil(from / step) * step, to + 1, step);
}

const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

/** Around the plot, in pixels; on the left at least. */
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 8, 12, 24];
/** In milliseconds: those that clocks show. */
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
  ].map((seconds) => seconds * 1000),
];
