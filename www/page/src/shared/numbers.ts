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
  const text = new Intl.NumberFormat(undefined, {
    style: "unit",
    unit,
    unitDisplay: unit === "day" ? "long" : "short",
    maximumSignificantDigits: 4,
  }).format(ms / size);
  // Within an English sentence, a unit in Arabic or Hebrew would reorder the numbers beside it.
  return /[\u0590-\u08ff]/.test(text) ? `\u2068${text}\u2069` : text;
}

/** A moment of the played time: 1 day 02:03:04.005, with milliseconds only if `span` is short. */
export function moment(ms: number, span = 0): string {
  const days = Math.floor(ms / DAY);
  const hours = twoDigits.format(Math.floor((ms % DAY) / 3_600_000));
  const minutes = twoDigits.format(Math.floor((ms % 3_600_000) / 60_000));
  const rest = Math.floor(ms % 60_000);
  const seconds = span < 600_000 ? fine.format(rest / 1000) : twoDigits.format(Math.floor(rest / 1000));
  return `${days ? `${length(days * DAY)} ` : ""}${hours}:${minutes}:${seconds}`;
}

/** A calendar moment in local time: 11/25/2026, 5:30:00 PM. */
export function dateTime(ms: number): string {
  return new Date(ms).toLocaleString();
}

const twoDigits = new Intl.NumberFormat(undefined, { minimumIntegerDigits: 2 });
const fine = new Intl.NumberFormat(undefined, { minimumIntegerDigits: 2, minimumFractionDigits: 3 });

const DAY = 86_400_000;
const UNITS: readonly [unit: string, size: number][] = [
  ["day", DAY],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1000],
  ["millisecond", 1],
];
