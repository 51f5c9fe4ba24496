// The tables.
import { quartiles } from "./measure.mjs";

/** The results of each lane in a scenario, and how Tollgate's compare with the others. */
export function report({ title }, lanes) {
  console.log(`\n${title}`);
  console.log(line("", ["requests/s", "p50 ms", "p99 ms", "CPU µs", "rows/1000", "granted %"]));
  for (const lane of lanes) {
    const { name, perSecond, p50, p99, cpu, rows, granted, answers } = lane;
    const cells = [
      median(perSecond).toFixed(0),
      median(p50).toFixed(2),
      median(p99).toFixed(2),
      orNothing(median(cpu).toFixed(0)),
      orNothing(((1_000 * rows) / answers).toFixed(0)),
      ((100 * granted) / answers).toFixed(1),
    ];
    console.log(line(name, cells));
  }
  for (const ours of lanes.filter(({ isCompared }) => isCompared)) {
    console.log(`\n${ours.name}, to the others: the median and the quartiles of the ratios within a round`);
    console.log(line("", ["requests/s", "p99", "CPU"], RATIO_LEN));
    for (const theirs of lanes.filter((lane) => lane !== ours)) {
      const ratios = ["perSecond", "p99", "cpu"].map((figure) => ratio(ours[figure], theirs[figure]));
      console.log(line(theirs.name, ratios, RATIO_LEN));
    }
  }
}

/** The median and the quartiles of the ratios within each round. */
function ratio(ours, theirs) {
  const [low, middle, high] = quartiles(ours.map((our, i) => our / theirs[i])).map((value) => value.toFixed(2));
  return orNothing(`${middle} (${low} to ${high})`);
}

function line(name, cells, width = 12) {
  return `${name.padEnd(NAME_LEN)}${cells.map((text) => text.padStart(width)).join("")}`;
}

function orNothing(text) {
  return text.includes("NaN") ? "–" : text;
}

function median(values) {
  return quartiles(values)[1];
}

const NAME_LEN = 28;
const RATIO_LEN = 24;
