// Windows of calendars, beside Temporal: the same database of time zones, and other arithmetic with days.
import assert from "node:assert/strict";
import { Temporal } from "temporal-polyfill";
import { Bucket } from "../../build/package/index.js";
import { calendarWindow } from "../../build/package/kinds.js";
import { count, law } from "../random.mjs";

const { ZonedDateTime, PlainDate } = Temporal;

const WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const ZONES = Intl.supportedValuesOf("timeZone");
/** Zones whose days are odd: summer time at midnight, half an hour of it, quarters of hours, changes for Ramadan. */
const ODD = [
  "Africa/Cairo",
  "America/Havana",
  "Asia/Beirut",
  "Australia/Lord_Howe",
  "Asia/Kathmandu",
  "Africa/Casablanca",
];
/** Clock changes are known from 2020 to 2039; this stays two years within. */
const [FROM, UNTIL] = [Date.UTC(2022, 0, 2), Date.UTC(2037, 11)];
const SECOND_MS = 1000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** The first moment of a date. */
const momentOf = (date, timeZone) => date.toZonedDateTime({ timeZone }).epochMilliseconds;

/** A date, or the last day of its month if that is shorter. */
const clamped = (year, month, day) => PlainDate.from({ year, month, day }, { overflow: "constrain" });

/** The dates on which windows open, from well before `date` on. */
function* openings({ calendar, day, month }, date) {
  const { year } = date;
  switch (calendar) {
    case "day":
      for (let days = -1; ; days++) yield date.add({ days });
    case "week":
      for (let days = day - date.dayOfWeek - 7; ; days += 7) yield date.add({ days });
    case "year":
      for (let years = -1; ; years++) yield clamped(year + years, month, day);
  }
  const [step, first] = calendar === "month" ? [1, date.month] : [3, month];
  for (let months = year * 12 + first - 1 - 15; ; months += step) {
    yield clamped(Math.floor(months / 12), (months % 12) + 1, day);
  }
}

const two = (number) => String(number).padStart(2, "0");

/** A calendar as `openings` has it, and as a policy has it. */
function chosen({ below, pick }) {
  const zone = pick(pick([ZONES, ODD]));
  const calendar = pick(["day", "week", "month", "quarter", "year"]);
  const month = 1 + below(12);
  const day = calendar === "week" ? 1 + below(7) : 1 + below(calendar === "month" ? 31 : clamped(2028, month, 31).day);
  const starts = {
    day: undefined,
    week: WEEKDAYS[day - 1],
    month: day,
    quarter: `${two(month)}-${two(day)}`,
    year: `${two(month)}-${two(day)}`,
  }[calendar];
  return [
    { calendar, month, day },
    { calendar, zone, starts },
  ];
}

law(
  "a window ends when Temporal begins the next one",
  { seed: 7, cases: 100_000 },
  (random, seen) => {
    const [unit, window] = chosen(random);
    const { zone } = window;
    const inZone = (at) => new ZonedDateTime(BigInt(at) * 1_000_000n, zone);
    const edges = (at) => {
      const date = inZone(at).toPlainDate();
      let last;
      for (const opening of openings(unit, date)) {
        const isOver = PlainDate.compare(opening, date) < 0 || momentOf(opening, zone) <= at;
        if (!isOver) return [momentOf(last, zone), momentOf(opening, zone)];
        last = opening;
      }
    };
    let now = FROM + random.below((UNTIL - FROM) / SECOND_MS) * SECOND_MS + random.below(SECOND_MS);
    // Many are close to a change of the clock, and half are close to an edge.
    const change = random.chance(0.3) && inZone(now).getTimeZoneTransition("next");
    if (change) now = change.epochMilliseconds + random.below(2 * DAY_MS) - DAY_MS;
    if (random.chance(0.5)) now = random.pick(edges(now)) + random.pick([-1, 0, 1, -HOUR_MS, HOUR_MS]);
    const [opened, ends] = edges(now);
    const bucket = new Bucket(now, calendarWindow({ rate: 3, ...window }));
    const what = `${JSON.stringify(window)} at ${new Date(now).toISOString()}`;
    assert.equal(bucket.save(now).at, opened, what);
    assert.ok(bucket.tryConsume(now, 3), what);
    assert.equal(bucket.peek(now).retryAt, ends, what);
    assert.ok(!bucket.tryConsume(ends - 1), what);
    assert.ok(bucket.tryConsume(ends, 3), what);
    count(seen, unit.calendar);
    if (unit.calendar === "day") count(seen, `a day of ${(ends - opened) / HOUR_MS} hours`);
  },
  (seen) => {
    for (const hours of [23, 24, 25, 23.5, 24.5]) assert.ok(seen[`a day of ${hours} hours`] > 10, `${hours} hours`);
  },
);
