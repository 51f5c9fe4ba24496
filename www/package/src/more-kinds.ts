// What needs the larger module: windows from first use, of a calendar and rolling ones, and a pace after a warm-up.
import { KINDS, type Limit, type OtherKind } from "./bucket.js";
import { core, load } from "./core.js";
import { checkWhole, TollgateError } from "./errors.js";
import { type Exchange, exchanged } from "./exchange.js";
import { FIRST_OTHER, FIRST_USE } from "./kinds-module.js";

export type { OtherKind } from "./bucket.js";
export * from "./warm-up.js";

/** A limit without the fields that say how tokens come back. */
type Rest<Name extends string> = Omit<Limit<Name>, "kind" | "initial" | "offsetMs" | "periodMs">;

/** A window that opens when something is taken from a full bucket, and lasts `periodMs`. It starts full. */
export interface FirstUseWindow<Name extends string = string> extends Rest<Name> {
  readonly periodMs: number;
}

/** Windows that open at midnight on certain days in a time zone. */
export interface CalendarWindow<Name extends string = string> extends Rest<Name> {
  readonly calendar: "day" | "week" | "month" | "quarter" | "year";
  /**
   * The first day: of a month 1 to 31, or the month's last day if it is shorter; of a week a day such as `"monday"`; of quarters and years
   * month and day, such as `"04-06"`. Default: the first; of a week, Monday.
   */
  readonly starts?: number | string;
  /** A time zone of the IANA's database, such as `"America/Sao_Paulo"`. Default: `"UTC"`. */
  readonly zone?: string;
  /** How many tokens it starts with. Default: `capacity`. */
  readonly initial?: number;
}

/**
 * A limit whose window opens with the first use, as in "20 messages in the five hours from your first".
 *
 * ```js
 * import { Limiter } from "tollgate";
 * import { firstUseWindow } from "tollgate/kinds";
 *
 * const limiter = new Limiter(firstUseWindow({ rate: 20, periodMs: 5 * 3_600_000 }));
 * ```
 */
export function firstUseWindow<Name extends string = never>(window: FirstUseWindow<Name>): Limit<Name> {
  forbid(window, ["kind", "initial", "offsetMs"]);
  return { ...window, kind: FIRST_USE };
}

/**
 * A limit whose windows follow a calendar, as in "1000 in each month from the 15th, in São Paulo". Throws a {@link TollgateError} that names
 * the wrong field.
 *
 * ```js
 * import { Limiter } from "tollgate";
 * import { calendarWindow } from "tollgate/kinds";
 *
 * const limiter = new Limiter(calendarWindow({ rate: 1000, calendar: "month", starts: 15, zone: "America/Sao_Paulo" }));
 * ```
 */
export function calendarWindow<Name extends string = never>({
  calendar,
  starts,
  zone,
  ...window
}: CalendarWindow<Name>): Limit<Name> {
  forbid(window, ["kind", "periodMs", "offsetMs"]);
  load();
  const ours = core as unknown as Exchange & { calendar(): number };
  const answer = JSON.parse(exchanged(ours, JSON.stringify({ calendar, starts, zone }), ours.calendar)) as Answer;
  if ("field" in answer) {
    const { field } = answer;
    throw new TollgateError(
      `${field}_unknown`,
      `${field} must be ${RULES[field]}, not ${{ calendar, starts, zone }[field]}`,
    );
  }
  const { kind, number, period_ms: periodMs } = answer;
  KINDS[FIRST_OTHER + number] = kind;
  return { ...window, kind: kind as OtherKind, periodMs };
}

/** Never more than `rate` tokens in any interval of `periodMs`, wherever it begins. Its end is not part of it. */
export interface RollingWindow<Name extends string = string> {
  readonly name?: Name;
  /** How many tokens any interval of a period may have. */
  readonly rate: number;
  /** The period in milliseconds. */
  readonly periodMs: number;
  /** How finely moments are kept: to a `grains`-th of the period if the rate is above `grains`. 1 to 240. Default: 60. */
  readonly grains?: number;
}

/**
 * A limit of so many in any interval, as in "never more than 500 in any minute". Each token comes back `periodMs` after it was taken: to the
 * millisecond if the rate is at most `grains`, and otherwise at most a grain late. There is no debt: `charge` takes what is left, and `reserve`
 * and `borrow` get what is there. A snapshot has `returns`.
 *
 * ```js
 * import { Limiter } from "tollgate";
 * import { rollingWindow } from "tollgate/kinds";
 *
 * const limiter = new Limiter(rollingWindow({ rate: 500, periodMs: 60_000 }));
 * ```
 */
export function rollingWindow<Name extends string = never>({
  grains = 60,
  ...window
}: RollingWindow<Name>): Limit<Name> {
  forbid(window, ["kind", "initial", "offsetMs", "capacity", "maxDebt"]);
  load();
  const ours = core as unknown as { rolling_window(grains: number): number };
  const number = ours.rolling_window(checkWhole("grains", grains, 1));
  if (number < 0) checkWhole("grains", grains, 1, -number);
  const kind = `rolling_window ${grains}` as OtherKind;
  KINDS[FIRST_OTHER + number] = kind;
  return { ...window, kind };
}

/** See src/js/kinds.rs. */
type Answer =
  | { readonly kind: string; readonly number: number; readonly period_ms: number }
  | { readonly field: keyof typeof RULES };

const RULES = {
  calendar: "day, week, month, quarter or year",
  starts:
    "a day of the month, 1 to 31, for months; a weekday such as monday for weeks; month and day such as 04-06 for quarters and years; nothing for days",
  zone: "the name of a time zone that this platform knows, such as America/Sao_Paulo",
};

function forbid(window: object, fields: readonly string[]): void {
  for (const field of fields) {
    if (field in window) throw new TollgateError(`${field}_unknown`, `${field} is not for this kind of limit`);
  }
}
