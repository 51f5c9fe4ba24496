// How long a server asks its clients to wait, in the headers of its response.

/** How long the response asks to wait, in milliseconds. Moments are by the server's clock if there is a `Date`, otherwise by ours. */
export function requestedPauseMs({ status, headers }: Response, now: number): number | undefined {
  if (!headers) return undefined; // made for a test
  // A cache says how old what it repeats is.
  const dated = Date.parse(headers.get("date")!) + 1000 * (Number(headers.get("age")) || 0);
  const lengthOf = (text: string | null | undefined, firstMs: number) => lengthIn(`${text}`, firstMs, { now, dated });
  if (status >= 400) {
    const ms = [lengthOf(headers.get("retry-after-ms"), 0), lengthOf(headers.get("retry-after"), FIRST_UNIX_S)];
    const first = ms.find((length) => length >= 0);
    if (first !== undefined) return first;
  }
  let longest = 0;
  const read = (remaining: string | null | undefined, reset: string | null | undefined, firstMs: number) => {
    const ms = lengthOf(reset, firstMs);
    if (parseFloat(remaining!) === 0 && ms > longest) longest = ms;
    return ms;
  };
  const field = `,${headers.get("ratelimit")}`.replace(/"(\\.|[^"\\])*"/g, "");
  const number = (text: string, name: string) => new RegExp(`[;,\\s]${name}=(\\d+(?:\\.\\d+)?)`).exec(text)?.[1];
  // A list of structured fields. Without their strings, commas separate the items. `r` tokens remain; `t` is a time in
  // seconds.
  for (const item of field.split(",")) read(number(item, "r"), number(item, "t"), FIRST_UNIX_S);
  // Earlier drafts, also in seconds.
  read(number(field, "remaining"), number(field, "reset"), FIRST_UNIX_S);
  // Of those that do not say what remains. One of them is the reason for a refusal if no other is.
  let shortest = Infinity;
  // One header for each number, in many families: `x-ratelimit-reset-tokens`, `anthropic-ratelimit-tokens-reset`.
  // A response made for a test may have no more than `get`.
  for (const [name, reset] of headers[Symbol.iterator] ? headers : []) {
    // `-reset-after` is a length, and so more exact than the same `-reset`.
    if (!/rate-?limit.*-reset/.test(name) || headers.has(`${name}-after`)) continue;
    // A length is in seconds, as is the header of earlier drafts, without `x-`. Others do not say their unit.
    const firstMs = /-ms$/.test(name) ? 0 : /^ratelimit-reset$|-after$/.test(name) ? FIRST_UNIX_S : FIRST_MS;
    const remaining = headers.get(name.replace(/-ms$/, "").replace(/reset(-after)?/, "remaining"));
    const ms = read(remaining, reset, firstMs);
    if (remaining === null && ms > 0) shortest = Math.min(shortest, ms);
  }
  if (!longest && (status === 429 || status === 503) && shortest < Infinity) return shortest;
  return longest || undefined;
}

/**
 * The length of time in a text, or until the moment in it, in whole milliseconds, rounded up; `NaN` if it has neither. A
 * number below `firstMs` is in seconds; from there on it is in milliseconds, until numbers are Unix time.
 */
function lengthIn(text: string, firstMs: number, { now, dated }: Dated): number {
  let ms = NaN;
  if (/^\d+(\.\d+)?$/.test(text)) {
    const number = Number(text);
    ms = number * (number < firstMs || (number >= FIRST_UNIX_S && number < FIRST_UNIX_MS) ? 1000 : 1);
    if (number >= FIRST_UNIX_S) ms = untilMoment(ms, { now, dated });
  } else if (/^(\d+(\.\d+)?(ms|[dhms]))+$/.test(text)) {
    ms = 0;
    for (const [, number, unit] of text.matchAll(/([\d.]+)([a-z]+)/g)) ms += Number(number) * UNITS[unit!]!;
  } else if (/^\w{3,9},? .*GMT/i.test(text))
    ms = Date.parse(text) - (dated || now); // both in whole seconds
  else if (/^\d{4}-.*T.*(Z|[+-]\d\d:\d\d)$/i.test(text)) ms = untilMoment(Date.parse(text), { now, dated });
  return Math.ceil(Number(ms.toFixed(3))); // a product may be a little more than exact
}

/** Our clock, and the server's in whole seconds, if it has told. */
interface Dated {
  readonly now: number;
  readonly dated: number;
}

/** The time until a moment. One within the second of the `Date` is not in the past. */
function untilMoment(moment: number, { now, dated }: Dated): number {
  if (!dated) return moment - now;
  // Our clock says which part of that second it was, if it agrees but for the response's time on its way.
  const sinceMs = now >= dated && now < dated + LONGEST_WAY_MS ? Math.min(now - dated, 999) : 0;
  return Math.max(moment - dated - sinceMs, Math.min(0, moment - dated));
}

/** Longer than most responses take, and shorter than most wrong clocks are wrong. */
const LONGEST_WAY_MS = 3000;
/** In milliseconds. */
const UNITS: Record<string, number> = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1000, ms: 1 };
/** More seconds than a day has. From here on, a reset whose unit is unknown is in milliseconds. */
const FIRST_MS = 86_401;
/** In 2001: from here on, a number is Unix time in seconds. */
const FIRST_UNIX_S = 1_000_000_000;
/** In 1973, or in seconds the year 5138: from here on, a number is Unix time in milliseconds. */
const FIRST_UNIX_MS = 100_000_000_000;
