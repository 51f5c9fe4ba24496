// Numbers, lengths of time and moments, as the visitor's locale writes them.

const whole = new Intl.NumberFormat();
const decimal = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

/** 12,345 */
export function number(value: number): string {
  return Number.isFinite(value) ? (Number.isInteger(value) ? whole : decimal).format(value) : "∞";
}

/** 1.5 s, 2 min, 3 days: in the largest unit that has at least one. */
export function length(ms: number | null): string {
  if (ms === null || !Number.isFinite(ms)) return "never";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(ms) >= size) ?? UNITS.at(-1)!;
  return new Intl.NumberFormat(undefined, {
    style: "unit",
    unit,
    unitDisplay: unit === "day" ? "long" : "short",
    maximumSignificantDigits: 4,
  }).format(ms / size);
}

/** A moment of the played time: 1 d 02:03:04.005, without the parts that are zero for the whole of `span`. */
export function moment(ms: number, span = 0): string {
  const days = Math.floor(ms / DAY);
  const two = (value: number) => String(Math.floor(value)).padStart(2, "0");
  const clock = `${two((ms % DAY) / 3_600_000)}:${two((ms % 3_600_000) / 60_000)}:${two((ms % 60_000) / 1000)}`;
  const fine = span < 600_000 ? `.${String(Math.floor(ms % 1000)).padStart(3, "0")}` : "";
  return `${days ? `${days} d ` : ""}${clock}${fine}`;
}

const DAY = 86_400_000;
const UNITS: readonly [unit: string, size: number][] = [
  ["day", DAY],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1000],
  ["millisecond", 1],
];
