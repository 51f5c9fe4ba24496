// Processor time and quartiles.
import { readFileSync } from "node:fs";

/** The processor time that processes and those that they have started have taken so far, in microseconds. */
export function cpuMicros(pids) {
  try {
    return pids.map((pid) => ownMicros(pid) + cpuMicros(childrenOf(pid))).reduce((sum, micros) => sum + micros, 0);
  } catch {
    return NaN; // not Linux
  }
}

/** The values below which a quarter, a half and three quarters of all lie. */
export function quartiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return [1, 2, 3].map((quarter) => sorted[Math.floor(((sorted.length - 1) * quarter) / 4)]);
}

/** With that of children that have ended. */
function ownMicros(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) * TICK_MICROS;
}

/** The processes that one has started. */
export function childrenOf(pid) {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean);
}

/** What Linux counts in, everywhere: a hundredth of a second. */
const TICK_MICROS = 10_000;
