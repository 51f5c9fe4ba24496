// Rates in text, read as the service reads them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Bucket, Budget, Limiter, TollgateError } from "../../build/package/index.js";
import { lint } from "../../build/package/lint.js";
import { rate } from "../../build/package/rate.js";
import { count, law } from "../random.mjs";

const { cases } = JSON.parse(readFileSync(new URL("../rates.json", import.meta.url), "utf8"));

test("answers the vectors that the service also reads", () => {
  assert.ok(cases.length > 50);
  for (const { text, kind = "token_bucket", error, ...numbers } of cases) {
    if (error === undefined) {
      const { period_ms: periodMs, ...others } = numbers;
      assert.deepEqual(rate(text, kind), { kind, periodMs, ...others }, text);
    } else {
      assert.throws(
        () => rate(text, kind),
        (thrown) =>
          thrown instanceof TollgateError && thrown.code === "rate_malformed" && thrown.message.includes(error),
        text,
      );
    }
  }
});

test("an invalid period or kind has the error of a limit", () => {
  const refused = (text) =>
    assert.throws(() => rate(text), { code: text === "1/0s" ? "periodMs_too_small" : "rate_malformed" }, text);
  for (const text of ["1/0s", "1/26062498d", "1/1us", "1/999ns", "1/0.0005s"]) refused(text);
  assert.throws(() => rate("0.00001/26000000d"), { code: "periodMs_too_large", max: 2 ** 51 });
  assert.throws(() => rate("1/s", "leaky"), { code: "kind_unknown" });
  for (const wrong of [undefined, null, 5, {}]) assert.throws(() => rate(wrong), { code: "rate_malformed" });
});

test("is accepted wherever a limit is", () => {
  assert.equal(new Bucket(0, rate("20/s burst 40")).remaining(0), 40);
  const bucket = new Bucket(0, rate("2.5/s"));
  assert.ok(bucket.tryConsume(0, 3));
  assert.equal(bucket.peek(0).retryAt, 400);
  const budget = new Budget(0, [
    { ...rate("60/m"), name: "requests", maxDebt: 1 },
    { ...rate("9/day", "fixed_window"), name: "tokens" },
  ]);
  assert.equal(budget.tryConsume(0, { requests: 1, tokens: 9 }), true);
  assert.deepEqual(new Limiter(rate("0.1/s")).limits, [
    { kind: "token_bucket", rate: 1, periodMs: 10_000, capacity: 1 },
  ]);
});

law(
  "reads any text as the service does",
  { seed: 7, cases: 3_000 },
  async (random, seen) => {
    const text = randomText(random);
    const { errors, policies } = await lint({ p: text });
    let numbers;
    try {
      numbers = rate(text);
      new Bucket(0, numbers);
    } catch (error) {
      assert.ok(error instanceof TollgateError, `${text}: ${error.stack}`);
      assert.ok(errors.length > 0, `${text}: ${error.message}, but the service reads ${policies[0]?.summary}`);
      count(seen, "refused");
      return;
    }
    assert.deepEqual(errors, [], text);
    const [{ kind, rate: tokens, period_ms, capacity }] = policies[0].limits;
    assert.deepEqual(numbers, { kind, rate: tokens, periodMs: period_ms, capacity }, text);
    count(seen, "read");
  },
  ({ read, refused }) => assert.ok(read > 300 && refused > 300, `${read} read, ${refused} refused`),
);

/** A rate, often with something odd about it. */
function randomText({ below, pick }) {
  const number = () => pick(NUMBERS);
  const blank = () => pick(["", "", " ", "  "]);
  const span = () => `${pick(["1", "2", "30", "1.5", "0.25", "0.001", "1 0", ".5", ""])}${blank()}${pick(UNITS)}`;
  const spans = Array.from({ length: 1 + below(2) }, span).join(pick([" ", "", " "]));
  const burst = pick(["", "", `burst${blank()}${number()}`, `${blank()}burst ${number()}`, `burst ${span()}`]);
  return `${blank()}${number()}${blank()}${pick(["/", "/", "/", "/", ""])}${blank()}${spans}${burst}${blank()}`;
}

const NUMBERS = "0 1 2.5 0.1 1e3 100 1.50 1e-2 12345 -1 01 1. 9007199254740992 0.333".split(" ");
const UNITS =
  "ns us µs ms millis s sec secs second m min mins minutes h hr hrs hour hours d day days w wk M month y year x Sec hs".split(
    " ",
  );
