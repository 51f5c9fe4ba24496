// Processor time and quartiles.
import { readFileSync } from "node:fs";

/** The processor time that a process has taken so far, in microseconds. */
export function cpuMicros(pid) {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
    return (Number(fields[11]) + Number(fields[12])) * TICK_MICROS;
  } catch {
    return NaN; // not Linux
  }
}

/** The values below which a quarter, a half and three quarters of all lie. */
export function quartiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return [1, 2, 3].map((quarter) => sorted[Math.floor(((sorted.length - 1) * quarter) / 4)]);
}

/** What Linux counts in, everywhere: a hundredth of a second. */
const TICK_MICROS = 10_000;
