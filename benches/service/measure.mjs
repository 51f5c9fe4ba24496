// Processor time and quartiles.
import { readFileSync } from "node:fs";

/** The processor time of processes and their descendants so far, in microseconds. */
export function cpuMicros(pids) {
  try {
    return pids.map((pid) => ownMicros(pid) + cpuMicros(childrenOf(pid))).reduce((sum, micros) => sum + micros, 0);
  } catch {
    return NaN; // not Linux
  }
}

/** The quartiles. */
export function quartiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return [1, 2, 3].map((quarter) => sorted[Math.floor(((sorted.length - 1) * quarter) / 4)]);
}

/** Including that of children that have ended. */
function ownMicros(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) * TICK_MICROS;
}

/** The children of a process. */
export function childrenOf(pid) {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean);
}

/** Linux's tick on every machine: a hundredth of a second. */
const TICK_MICROS = 10_000;
