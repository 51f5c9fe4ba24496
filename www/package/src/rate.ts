// A rate as text: "100/1m", "2.5/s", "20/s burst 40", "100/s burst 60s". The service reads the same texts, with src/policy/rate.rs. A separate entry,
// so that only programs that need it load it.
import type { Limit } from "./bucket.js";
import { checkIndex, checkWhole, TollgateError } from "./errors.js";

/** The numbers of a limit that is written as a rate. */
export interface Rate extends Readonly<Required<Pick<Limit, "rate" | "periodMs" | "capacity">>> {
  readonly kind: "token_bucket" | "fixed_window";
}

/**
 * Reads a rate in text, exactly: `"100/1m"`, `"2.5/s"`, `"20/s burst 40"`. What it returns is a limit; add to it what a limit
 * has besides. The capacity is the burst, or else the rate, rounded up. A burst may be a length of time, `"100/s burst 60s"`: what is added
 * in it, which must be whole tokens. A fraction of a token becomes a whole number of
 * tokens in a longer period. Throws a {@link TollgateError} for other texts.
 *
 * ```js
 * import { rate } from "tollgate/rate";
 *
 * new Limiter(rate("20/s burst 40"));
 * new Limiter([{ ...rate("60/m"), name: "requests", maxDebt: 10 }, { ...rate("100000/day"), name: "tokens" }]);
 * rate("2.5/s"); // { kind: "token_bucket", rate: 5, periodMs: 2000, capacity: 3 }
 * rate("1000/day", "fixed_window");
 * ```
 */
export function rate(text: string, kind: Rate["kind"] = "token_bucket"): Rate {
  checkIndex("kind", kind, ["token_bucket", "fixed_window"]);
  const [, before = "", after = "", burst] = /^([^/]*)\/(.*?)(?:burst(.*))?$/s.exec(text) ?? [];
  const period = after.trim();
  const tokens = fraction(before);
  const time = /^\s*(\d.*\p{Alphabetic})\s*$/su.exec(burst ?? "")?.[1];
  const most = burst === undefined || time !== undefined ? tokens : fraction(burst);
  if (!tokens || !most || (burst !== undefined && time === undefined && most[1] > 1) || !period)
    throw malformed(`be text such as "100/1m", "2.5/s" or "20/s burst 40", not ${JSON.stringify(text)}`);
  const [perPeriod, parts] = tokens;
  if (kind !== "token_bucket" && parts > 1) throw malformed("be whole: a window that opens adds whole tokens");
  // "20/s" is "20/1s".
  const periodMs = Number(millis(/^\d/.test(period) ? period : `1${period}`) * parts);
  checkWhole("periodMs", periodMs, 1, LONGEST_MS);
  const capacity = time === undefined ? (most[0] + most[1] - 1n) / most[1] : inTime(time, perPeriod, BigInt(periodMs));
  return { kind, rate: Number(perPeriod), periodMs, capacity: Number(capacity) };
}

/** The tokens added in a length of time. */
function inTime(time: string, perPeriod: bigint, periodMs: bigint): bigint {
  const tokens = millis(time) * perPeriod;
  const whole = tokens / periodMs;
  const shown = JSON.stringify(time);
  if (!perPeriod)
    throw malformed(
      `not be 0, which adds nothing in a burst of ${shown}: give the burst in tokens, such as "burst 50"`,
    );
  if (whole * periodMs !== tokens && whole < Number.MAX_SAFE_INTEGER)
    throw malformed(
      `have a burst of whole tokens: a burst of ${shown} is not a whole number of tokens: write "burst ${whole}" or "burst ${whole + 1n}"`,
    );
  if (whole > Number.MAX_SAFE_INTEGER)
    throw malformed(`have a smaller burst: a burst of ${shown} is too many tokens: at most ${Number.MAX_SAFE_INTEGER}`);
  return whole;
}

/** A JSON number that is not negative, as a fraction in lowest terms. */
function fraction(text: string): [numerator: bigint, denominator: bigint] | undefined {
  const [, sign, integer, decimals = "", exponent = 0] = NUMBER.exec(text) ?? [];
  if (integer === undefined) return undefined;
  const digits = integer + decimals;
  const significant = digits.replace(/0+$/, "");
  const shift = +exponent + digits.length - significant.length - decimals.length;
  if (!significant) return [0n, 1n];
  if (sign || Math.abs(shift) > 19 || BigInt(significant) >> 64n) return undefined;
  const power = 10n ** BigInt(Math.abs(shift));
  const [numerator, denominator] = shift > 0 ? [BigInt(significant) * power, 1n] : [BigInt(significant), power];
  let [common, rest] = [numerator, denominator];
  while (rest) [common, rest] = [rest, common % rest];
  return (numerator / common) >> 53n ? undefined : [numerator / common, denominator / common];
}

/** A length of time such as "90s" or "1h 30m", in milliseconds: src/length.rs reads the same. */
function millis(text: string): bigint {
  const shown = JSON.stringify(text);
  const wrong = () => malformed(`be a length of time such as "90s" or "1h 30m", not ${shown}`);
  if (!LENGTH.test(text)) throw wrong();
  let nanos = 0n;
  for (const [, integer, decimals = "", unit] of text.replace(/(?<=[\d.])\s+/g, "").matchAll(SPAN)) {
    if (/^(M|months?)$/.test(unit!))
      throw malformed(
        `not count in months, which differ in length, as ${shown} does: write days, such as "30days" (a minute is "m")`,
      );
    if (/^y((r|ear)s?)?$/.test(unit!))
      throw malformed(`not count in years, which differ in length, as ${shown} does: write days, such as "365days"`);
    const [, unitNanos] = UNITS.find(([names]) => names.test(unit!)) ?? [];
    const scale = 10n ** BigInt(decimals.length);
    if (!unitNanos || scale >> 64n) throw wrong();
    const part = BigInt(decimals || 0) * BigInt(unitNanos);
    if (part % scale) throw malformed(`have a period of whole milliseconds, not ${shown}`);
    nanos += BigInt(integer!) * BigInt(unitNanos) + part / scale;
  }
  if (nanos > BigInt(LONGEST_MS) * 1_000_000n)
    throw malformed(`have a shorter period: ${shown} is too long, at most ${LONGEST_MS} ms`);
  if (nanos % 1_000_000n) throw malformed(`be of whole milliseconds, not ${shown}`);
  return nanos / 1_000_000n;
}

const malformed = (problem: string) => new TollgateError("rate_malformed", `rate must ${problem}`);

const NUMBER = /^\s*(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?\s*$/;
const SPAN = /(\d+)(?:\.(\d+))?([a-zA-Zµ]+)/g;
/** Digits may have blanks between them. */
const LENGTH = /^(\s*\d[\d\s]*(\.\s*\d[\d\s]*)?[a-zA-Zµ]+)+\s*$/;
const UNITS: [names: RegExp, nanos: number][] = [
  [/^(ns|nsec|nanos)$/, 1],
  [/^(us|usec|µs)$/, 1e3],
  [/^(ms|msec|millis)$/, 1e6],
  [/^s(ec(ond)?s?)?$/, 1e9],
  [/^m(in(ute)?s?)?$/, 6e10],
  [/^h((r|our)s?)?$/, 3.6e12],
  [/^d(ays?)?$/, 8.64e13],
  [/^w((k|eek)s?)?$/, 6.048e14],
];

/** The core's longest period: 2⁵¹ ms, some 71 000 years. */
const LONGEST_MS = 2 ** 51;
