// Windows of a calendar, whose time zones come from the runtime's Intl.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { newToken } from "./credentials.mjs";
import { start } from "./workerd.mjs";

const vectors = JSON.parse(readFileSync(new URL("../vectors/calendar/windows.json", import.meta.url), "utf8"));
const WINDOW = { kind: "fixed_window", rate: 10, write_ahead: 0 };
const POLICIES = {
  month: { ...WINDOW, calendar: "month", starts: 15, zone: "America/Sao_Paulo" },
  both: {
    limits: [
      { name: "day", ...WINDOW, rate: 5, calendar: "day", zone: "Asia/Kathmandu" },
      { name: "year", ...WINDOW, calendar: "year", starts: "04-06", zone: "Europe/London" },
    ],
  },
  ...Object.fromEntries(vectors.cases.map(({ window }, index) => [`vector-${index}`, { ...WINDOW, ...window }])),
};
const operator = newToken("consume", "adjust", "admin");
const tollgate = await start({
  policies: POLICIES,
  tokens: { ops: { ...operator.entry, inline: true } },
  token: operator.text,
});

const at = (text) => Date.parse(text);
const consume = (policy, key, now, cost = 10) => tollgate.consume({ policy, key, cost }, { now: at(now) });

test("a month lasts from its day to the same day of the next, in its time zone", async () => {
  assert.equal((await consume("month", "a", "2026-11-20T12:00:00Z")).status, 200);
  const refused = await consume("month", "a", "2026-11-20T12:00:01Z");
  assert.equal(refused.status, 429, refused.text);
  assert.equal(refused.body.retry_at, at("2026-12-15T03:00:00Z"));
  assert.equal(
    refused.headers["ratelimit-policy"],
    '"month";q=10;w=2678400;tollgate-capacity=10',
    "of the longest month",
  );
  assert.equal((await consume("month", "a", "2026-12-15T02:59:59.999Z")).status, 429);
  assert.equal((await consume("month", "a", "2026-12-15T03:00:00Z")).status, 200);
});

for (const [index, { name, opens }] of vectors.cases.entries()) {
  test(`windows of a calendar: ${name}`, async () => {
    const [first, ...later] = opens.map(at);
    const ask = (now, cost) => tollgate.consume({ policy: `vector-${index}`, key: "k", cost }, { now });
    assert.equal((await ask(first, WINDOW.rate)).status, 200);
    for (const opens_at of later) {
      const refused = await ask(opens_at - 1, 1);
      assert.deepEqual([refused.status, refused.body.retry_at], [429, opens_at], refused.text);
      assert.equal((await ask(opens_at, WINDOW.rate)).status, 200);
    }
  });
}

test("several limits open each in its own time zone, and say so", async () => {
  const granted = await consume("both", "k", "2026-11-29T18:14:59Z", 5);
  assert.equal(granted.status, 200, granted.text);
  const refused = await consume("both", "k", "2026-11-29T18:14:59.500Z", 5);
  assert.equal(refused.body.retry_at, at("2026-11-29T18:15:00Z"), "midnight in Kathmandu");
  assert.equal((await consume("both", "k", "2026-11-29T18:15:00Z", 5)).status, 200);
  const spent = await consume("both", "k", "2026-11-30T18:15:00Z", 5);
  assert.equal(spent.body.retry_at, at("2027-04-05T23:00:00Z"), "the sixth of April in London");
  const { body } = await tollgate.post("inspect", { policy: "both", key: "k" }, { now: at("2026-11-30T18:15:00Z") });
  assert.deepEqual(
    body.limits.map(({ kind, calendar, period_ms }) => [kind, calendar, period_ms / 86_400_000]),
    [
      ["fixed_window", "day Asia/Kathmandu", 1],
      ["fixed_window", "year 04-06 Europe/London", 366],
    ],
  );
});

test("a snapshot has the length of the window that is open", async () => {
  const { body } = await tollgate.consume(
    { policy: "month", key: "s", cost: 3, snapshot: true },
    { now: at("2027-02-20T12:00:00Z") },
  );
  const [{ tokens, at: opened, period_ms, calendar }] = body.snapshot;
  assert.deepEqual([tokens, opened, calendar], [7, at("2027-02-15T03:00:00Z"), "month 15 America/Sao_Paulo"]);
  assert.equal(opened + period_ms, at("2027-03-15T03:00:00Z"));
});

test("requests can bring a calendar", async () => {
  const limits = { ...WINDOW, calendar: "week", starts: "monday", zone: "America/New_York" };
  const ask = (now) => tollgate.consume({ policy: "own", key: "k", cost: 10, limits }, { now: at(now) });
  assert.equal((await ask("2026-11-25T00:00:00Z")).status, 200);
  assert.equal((await ask("2026-11-25T00:00:00Z")).body.retry_at, at("2026-11-30T05:00:00Z"));
  const unknown = { ...limits, zone: "America/New_Yorke" };
  const refused = await tollgate.consume({ policy: "own", key: "k", limits: unknown }, {});
  assert.equal(refused.status, 400);
  assert.match(refused.body.detail, /zone: must be the name of a time zone in the IANA's database/);
});

test("a zone has one spelling, also by an older or newer name", async () => {
  const limits = { ...WINDOW, calendar: "day" };
  const status = async (zone) =>
    (await tollgate.consume({ policy: "spelled", key: zone, limits: { ...limits, zone } })).status;
  for (const zone of ["Asia/Kolkata", "Asia/Calcutta", "US/Eastern", "Europe/Kyiv"]) {
    assert.equal(await status(zone), 200, zone);
    for (const other of [zone.toLowerCase(), zone.toUpperCase()]) assert.equal(await status(other), 400, other);
  }
});

// Intl's offsets, found by asking for one moment after the other, beside what Intl says of the very moment.
test("midnights of all time zones are Intl's", async () => {
  const zones = Intl.supportedValuesOf("timeZone");
  let seed = 4_711;
  const random = (below) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  for (let round = 0; round < 60; round += 1) {
    const zone = zones[random(zones.length)];
    const now = at("2020-02-01T00:00:00Z") + random(19 * 365 * 24) * 3_600_000 + random(3_600_000);
    const limits = { ...WINDOW, calendar: "day", zone };
    const ask = () => tollgate.consume({ policy: "day-of", key: `${zone} ${now}`, cost: 10, limits }, { now });
    const [granted, refused] = [await ask(), await ask()];
    assert.deepEqual([granted.status, refused.status], [200, 429], `${granted.text} ${refused.text}`);
    const format = new Intl.DateTimeFormat("en-CA", { timeZone: zone, dateStyle: "short" });
    const { retry_at } = refused.body;
    const [today, before, after] = [now, retry_at - 1, retry_at].map((ms) => format.format(ms));
    assert.ok(today === before && after > before, `${zone} at ${now}: ${today}, ${before}, ${after}`);
  }
});
