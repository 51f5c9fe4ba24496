// `tollgate/kinds`: windows from first use and of a calendar, in each class of the package.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { carry } from "../../build/package/carry.js";
import { Bucket, Budget, Limiter } from "../../build/package/index.js";
import { KeyedLimiter } from "../../build/package/keyed.js";
import { calendarWindow, firstUseWindow } from "../../build/package/kinds.js";
import { rateLimit } from "../../build/package/node.js";
import { FakeClock } from "./clock.mjs";
import { root, run } from "./stranger.mjs";

const moment = (text) => Date.parse(`${text}Z`);

const vectors = JSON.parse(readFileSync(new URL("../vectors/calendar/windows.json", import.meta.url), "utf8"));

for (const { name, window, opens } of vectors.cases) {
  test(`windows of a calendar: ${name}`, () => {
    const [first, ...later] = opens.map((text) => Date.parse(text));
    let now = first;
    const bucket = new Bucket(now, calendarWindow({ rate: 3, ...window }));
    assert.equal(bucket.save(now).at, first);
    for (const opens_at of later) {
      assert.ok(bucket.tryConsume(now, 3), `${now}`);
      assert.equal(bucket.peek(now).retryAt, opens_at);
      assert.ok(!bucket.tryConsume(opens_at - 1));
      now = opens_at;
    }
  });
}

test("a calendar that is not there says which field is wrong and what would be right", () => {
  for (const [window, code, message] of [
    [{}, "calendar_unknown", /^calendar must be day, week, month, quarter or year, not undefined$/],
    [{ calendar: "fortnight" }, "calendar_unknown", /not fortnight$/],
    [{ calendar: "month", starts: 0 }, "starts_unknown", /1 to 31.*not 0$/],
    [{ calendar: "month", starts: "15" }, "starts_unknown", /not 15$/],
    [{ calendar: "week", starts: "Monday" }, "starts_unknown", /not Monday$/],
    [{ calendar: "day", starts: 1 }, "starts_unknown", /nothing for days, not 1$/],
    [{ calendar: "day", zone: "Mars/Olympus" }, "zone_unknown", /not Mars\/Olympus$/],
    [{ calendar: "day", zone: "europe/berlin" }, "zone_unknown", /not europe\/berlin$/],
    [{ calendar: "day", periodMs: 7 }, "periodMs_unknown", /is not for this kind of limit$/],
    [{ calendar: "day", offsetMs: 7 }, "offsetMs_unknown", /is not for this kind of limit$/],
    [{ calendar: "day", kind: "token_bucket" }, "kind_unknown", /is not for this kind of limit$/],
  ]) {
    assert.throws(() => calendarWindow({ rate: 1, ...window }), { code, message }, JSON.stringify(window));
  }
  for (const field of ["kind", "initial", "offsetMs"]) {
    assert.throws(() => firstUseWindow({ rate: 1, periodMs: 1, [field]: 1 }), { code: `${field}_unknown` });
  }
  const tooLarge = { code: "maxDebt_too_large" };
  assert.throws(() => new Bucket(0, calendarWindow({ rate: 1, calendar: "day", maxDebt: 2 ** 53 - 1 })), tooLarge);
  assert.throws(() => new Bucket(0, { kind: "month 28 UTC", rate: 1, periodMs: 1 }), { code: "kind_unknown" });
});

test("each class has them", async () => {
  const clock = new FakeClock(moment("2027-01-20T00:00"));
  const month = calendarWindow({ name: "month", rate: 5, calendar: "month" });
  const first = firstUseWindow({ name: "first", rate: 2, periodMs: 60_000 });
  const limiter = new Limiter([month, first], { clock });
  assert.ok(limiter.tryConsume({ month: 1, first: 2 }));
  assert.equal(limiter.decide({ cost: { month: 1, first: 1 } }).retryAfterMs, 60_000);
  const waiting = limiter.acquire({ cost: { month: 4, first: 1 } });
  await clock.advance(60_000);
  await waiting;
  assert.equal(limiter.decide({ cost: { month: 1, first: 1 } }).retryAt, moment("2027-02-01T00:00"));

  const budget = new Budget(clock.now(), [month, first]);
  budget.decide(clock.now(), { cost: { month: 5, first: 0 } });
  const again = new Budget(clock.now(), [month, first]);
  again.restore(JSON.parse(JSON.stringify(budget.save(clock.now()))));
  assert.equal(again.peek(clock.now(), { cost: { month: 1, first: 0 } }).retryAt, moment("2027-02-01T00:00"));

  const { name: _, ...unnamed } = first;
  const keyed = new KeyedLimiter(unnamed, { clock });
  for (const [ms, key, allowed] of [
    [0, "a", true],
    [59_999, "a", true],
    [0, "a", false],
    [0, "b", true],
    [1, "a", true],
  ]) {
    await clock.advance(ms);
    assert.equal(keyed.tryConsume(key), allowed, `${ms} ${key}`);
  }
  assert.equal(typeof rateLimit({ limiter: keyed }), "function", "its fields of headers have this kind");
  const { name: __, ...monthly } = month;
  const code = "policy_unknown";
  assert.throws(() => rateLimit({ limiter: new KeyedLimiter(monthly, { clock }) }), { code }, "they lack calendars");
});

test("a bucket of other numbers takes over what another one has", () => {
  const now = moment("2027-01-20T00:00");
  const [before, after] = [5, 8].map((rate) => new Bucket(now, calendarWindow({ rate, calendar: "month" })));
  before.tryConsume(now, 4);
  carry(Bucket.addressOf(after), Bucket.addressOf(before), now);
  assert.equal(after.remaining(now), 1);
  assert.equal(after.peek(now, { cost: 2 }).retryAt, moment("2027-02-01T00:00"));
});

test("it must be there before the first limiter, and without it its kinds are unknown", async () => {
  const late = `import { Bucket } from "./build/package/index.js";
    const refused = () => {
      for (const kind of ["first_use_window", "month 1 UTC"])
        try { new Bucket(0, { kind, rate: 1, periodMs: 1 }); } catch ({ code }) { console.log(code); }
    };
    refused();
    await import("./build/package/kinds.js").catch(({ code, message }) => console.log(code, message));
    refused();`;
  const { stdout } = await run(process.execPath, ["--input-type=module", "--eval", late], root);
  const said = "kinds_too_late import tollgate/kinds before the first limiter is made";
  assert.deepEqual(stdout.trim().split("\n"), ["kind_unknown", "kind_unknown", said, "kind_unknown", "kind_unknown"]);
});
