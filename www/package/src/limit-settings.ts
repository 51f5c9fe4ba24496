// Limits as people write them: in the settings of policies, and in requests that bring their own.

/** One limit. The documentation of policies explains the members. */
export type LimitSettings = InlineLimit | RollingWindowSettings;

/** Several limits, all of which must pass. */
export type NamedLimitSettings = LimitSettings & { readonly name: string };

/** One limit of a request, which cannot bring a rolling window. */
export type InlineLimit = (LimitTerms & (RatePerPeriod | RatePerCalendarWindow | RateInText)) | SlotsSettings;

/** The limits of a request: one, several, or only the rate of one, such as `"20/s burst 40"`. */
export type InlineLimits = string | InlineLimit | readonly (InlineLimit & { readonly name: string })[];

/** Tokens added, such as `100` or `2.5`, in each period: a length of time such as `"250ms"`, `"1m"` or `"1day"`. */
export interface RatePerPeriod {
  readonly rate: number;
  readonly period: string;
}

/** Tokens added in each window of a calendar. */
export interface RatePerCalendarWindow {
  readonly kind: "fixed_window";
  readonly rate: number;
  readonly calendar: "day" | "week" | "month" | "quarter" | "year";
  /**
   * When windows open: a weekday such as `"monday"`, a day of the month (the last one if the month is shorter), or the month and day of
   * quarters and years, such as `"04-06"`. Default: Monday, the first, 1 January.
   */
  readonly starts?: string | number;
  /** A time zone by its name in the IANA's database, such as `"America/Sao_Paulo"`. Default: UTC. */
  readonly zone?: string;
}

/** The same as {@link RatePerPeriod} in one text, optionally with the capacity in tokens or in time: `"100/1m"`, `"20/s burst 40"`, `"100/s burst 60s"`. */
export interface RateInText {
  readonly rate: string;
}

/** Never more than `rate`, a whole number, in any interval of a period. A rate in text has no capacity. */
export type RollingWindowSettings = (RatePerPeriod | RateInText) & {
  readonly kind: "rolling_window";
  /** How finely moments are kept: to a `grains`-th of the period if the rate is above `grains`. 1 to 240. Default: 60. */
  readonly grains?: number;
  readonly write_ahead?: number;
};

/** How many at once. Only reservations take slots, and give them back when they end. */
export interface SlotsSettings {
  readonly kind: "slots";
  readonly capacity: number;
  readonly rate?: never;
}

/** The members of a limit beside its rate. */
export interface LimitTerms {
  readonly kind?: "token_bucket" | "fixed_window";
  /** The most tokens at once. Default: `rate`, rounded up. */
  readonly capacity?: number;
  /** How far below zero reservations and charges may take it, in tokens; `"unlimited"` is the most that stays exact. Default: 0. */
  readonly max_debt?: number | "unlimited";
  /** Tokens of a key never seen before. Default: `capacity`. */
  readonly initial?: number;
  /**
   * Where fixed windows begin, after midnight UTC of 1 January 1970, modulo the period; `"first_use"` where something is taken from a full
   * bucket. Default: by key.
   */
  readonly offset?: string;
  /** Tokens that may be spent without a write, and so the most a crash can cost. */
  readonly write_ahead?: number;
}
