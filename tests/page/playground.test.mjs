// The playground in Chromium: requests by hand, and the display while it plays.
import "./modules.mjs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { counted, linkTo, open, press, shifts, violations } from "./page.mjs";

const { decode } = await import("../../www/page/src/playground/link.ts");
const { PRESETS } = await import("../../www/page/src/playground/presets.ts");

const status = (page) => page.getByRole("status").textContent();

test("an address that names no view is an unreadable link, and then follows what is shown", async () => {
  const { page, said, close } = await open("#rubbish");
  const message = page.getByText("This link cannot be read.");
  await message.waitFor();
  await page.waitForURL(/#playground\?/);
  await press(page, "Login attempts");
  await message.waitFor({ state: "detached" });
  await press(page, "Pause");
  await linkTo(page, ({ toml }) => toml.includes("POLICIES.login"));
  await page.evaluate(() => {
    location.hash = "#nothing?of=this";
  });
  await message.waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("if the policy parser does not load, the page says so", async () => {
  const { page, close } = await open("#live");
  await page.route("**/lint-*.js", (route) => route.abort());
  await page.getByRole("link", { name: "Playground" }).click();
  await page.getByRole("alert").getByText("The policy cannot be read; load the page again.").waitFor();
  assert.equal(await page.getByText("Loading …").count(), 0);
  await close();
});

test("an invalid cost is reported beside its field, stays as typed, and sends nothing", async () => {
  const { page, said, close } = await open("", { reducedMotion: "reduce" });
  await press(page, "LLM requests and tokens");
  await page.getByLabel("Trace").selectOption("none");
  const field = page.getByLabel("Cost in tokens");
  for (const typed of ["-1", "1.5", "", "9007199254740992", "1e99"]) {
    await field.fill("20");
    await field.fill(typed);
    const text = "Cost in tokens: write a whole number from 0 to 9,007,199,254,740,991";
    await page.getByRole("alert").getByText(text).waitFor();
    const described = await field.evaluate((at) => [
      at.getAttribute("aria-invalid"),
      document.getElementById(at.getAttribute("aria-describedby")).textContent,
    ]);
    assert.deepEqual(described, ["true", text]);
    await press(page, "Consume");
    assert.equal(await page.evaluate(() => document.activeElement.labels[0].textContent), "Cost in tokens");
    await page.keyboard.press("Tab");
    assert.equal(await field.inputValue(), typed);
    assert.deepEqual(await counted(page), { granted: 0, refused: 0 });
  }
  assert.deepEqual(await violations(page), []);
  await field.fill("9007199254740991");
  assert.equal(await page.getByRole("alert").count(), 0);
  assert.equal(await field.getAttribute("aria-invalid"), "false");
  await press(page, "Consume");
  assert.match(
    await status(page),
    /^consume 1 requests, 9,007,199,254,740,991 tokens: refused, can never pass, 10 left in requests, 30,000 left in tokens$/,
  );
  // A mark at one field does not carry over to another policy.
  await field.fill("-1");
  await press(page, "API per user");
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "Consume");
  assert.match(await status(page), /^consume 1: granted, 19 left$/);
  assert.deepEqual(said, []);
  await close();
});

for (const [how, hold] of [
  ["the pointer", (page) => page.mouse.down()],
  ["the space bar", (page) => page.keyboard.down("Space")],
  ["Enter", (page) => page.keyboard.down("Enter")],
]) {
  const release = async (page) => {
    await page.mouse.up();
    for (const key of ["Space", "Enter"]) await page.keyboard.up(key);
  };
  test(`a burst held at 10× by ${how} sends requests as time is played, and stops when released`, async () => {
    const { page, said, close } = await open();
    await page.getByLabel("Trace").selectOption("none");
    await press(page, "Play");
    const consume = page.getByRole("button", { name: "Consume", exact: true });
    await consume.hover();
    await consume.focus();
    await hold(page);
    await page.getByText(/[1-9]\d* refused/).waitFor(); // it refills two a second
    await release(page);
    await press(page, "Pause");
    const { granted, refused } = await counted(page);
    const played = await page.getByLabel("Moment").getAttribute("aria-valuetext");
    const seconds = played.split(":").reduce((sum, part) => sum * 60 + Number(part), 0);
    assert.ok(granted + refused <= 4 * seconds + 2, `${granted + refused} in ${seconds} s`);
    await page.waitForTimeout(300);
    assert.deepEqual(await counted(page), { granted, refused });
    assert.match(await status(page), /^consume 1: /);
    assert.deepEqual(said, []);
    await close();
  });
}

test("requests by hand that are too many for a link are left out of it, and the page says so", async () => {
  const { page, close } = await open();
  await press(page, "TOML");
  // Each request has a cost of every limit, by its name: so not many are too long.
  const limit = (i) => `[[p.limits]]\nname = "${`limit_${i}_`.padEnd(60, "x")}"\nrate = 5\nperiod = "1h"\n`;
  await page.getByLabel("Policy as TOML").fill(Array.from({ length: 8 }, (_, i) => limit(i)).join("\n"));
  await page.getByLabel("Cost in limit_7").waitFor();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "1,000×");
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down();
  await page.getByText(/ [3-9],\d{3} refused/).waitFor();
  await page.mouse.up();
  const message = page.getByText("Too much for a link: it leaves out the CSV and the requests by hand");
  await message.waitFor();
  await page.getByLabel("Moment").fill("250");
  const link = await linkTo(page, ({ speed, at, acts }) => speed === 1000 && at > 0 && acts.length === 0);
  assert.ok(link.length < 5000, `${link.length} characters`);
  await page.getByLabel("Trace").selectOption("steady");
  await message.waitFor({ state: "detached" });
  await close();
});

test("a link has a CSV only if it is played", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("csv");
  await page.getByLabel("Lines of seconds").fill("1,2");
  await linkTo(page, ({ csv }) => csv === "1,2");
  await page.getByLabel("Trace").selectOption("steady");
  await linkTo(page, ({ trace, csv }) => trace === "steady" && csv === undefined);
  await page.getByLabel("Trace").selectOption("csv");
  await linkTo(page, ({ csv }) => csv === "1,2"); // it is kept for when its trace is chosen again
  await close();
});

test("a button first held at a late moment sends nothing for the time before", async () => {
  const { page, said, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "1,000×");
  await page.getByLabel("Moment").fill("250");
  const half = 5_000_000; // of the ten seconds that 1,000× plays
  await linkTo(page, ({ at }) => at === half);
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down();
  await page.getByText(/[1-9]\d\d refused/).waitFor();
  await page.mouse.up();
  const { granted, refused } = await counted(page);
  const link = await linkTo(page, ({ acts }) => acts.length === granted + refused);
  const { acts } = decode(new URL(link).hash.slice("#playground?".length));
  assert.deepEqual([...new Set(acts.map(({ at }) => at))], [half]);
  assert.deepEqual(said, []);
  await close();
});

test("while a button is held hardly anything is announced, then the last decision", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "Consume");
  await page.evaluate(() => {
    globalThis.announced = [];
    new MutationObserver(() => {
      globalThis.announced.push(document.querySelector('[role="status"]').textContent);
    }).observe(document.querySelector('[role="status"]'), { childList: true, subtree: true });
  });
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down();
  await page.getByText(/[1-9]\d* refused/).waitFor();
  await page.mouse.up();
  await page.getByRole("status").getByText("refused").waitFor();
  const announced = await page.evaluate(() => globalThis.announced);
  // One, unless the browser stalled meanwhile.
  assert.ok(announced.length < 4, announced.join("\n"));
  assert.equal(announced.at(-1), "consume 1: refused, would pass in 500 ms, 0 left");
  await close();
});

test("a limit that never refills is described as such, and debt is drawn below zero", async () => {
  const { page, close } = await open();
  await press(page, "Free trial");
  await page.getByText(/granted, [1-9]\d* refused, never full again$/).waitFor();
  await press(page, "Webhooks, evenly spaced");
  await page.getByRole("heading", { name: "webhooks: token bucket, 5 per 1 sec, at most 1, debt up to 20" }).waitFor();
  await page.getByRole("heading", { name: /^webhooks: -\d+ of 1 \(in debt\)$/ }).waitFor();
  await page
    .getByText(/^reserve 1: granted, usable in [\d.]+ sec, 0 left$/)
    .first()
    .waitFor();
  const fact = (name) => page.locator("dt", { hasText: name }).locator("+ dd").textContent();
  assert.equal(await fact("At once, at most"), "1");
  assert.equal(await fact("In debt, at most"), "20");
  await close();
});

test("of two policies, the one whose decision is shown can be chosen by keyboard, and stays chosen", async () => {
  const { page, said, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "Compare with a fixed window");
  const whose = page.getByRole("group", { name: "Decision of" });
  await whose.getByRole("button", { name: "Compared with" }).press("Enter");
  const panel = page.getByRole("region", { name: /^The decision/ });
  await panel.getByText(/^api: fixed window/).waitFor();
  await page.getByLabel("Moment").fill("250");
  for (let i = 0; i < 2; i++) await page.getByRole("button", { name: "Consume", exact: true }).press("Enter");
  await panel.getByText("consume 1: granted, 18 left").waitFor();
  await panel.getByText(/^api: fixed window/).waitFor();
  await linkTo(page, ({ picked }) => picked?.[0] === 1 && picked[1] === 1);
  await whose.getByRole("button", { name: "Policy", exact: true }).press("Space");
  await panel.getByText(/^api: token bucket/).waitFor();
  await linkTo(page, ({ picked }) => picked?.[0] === 1 && picked[1] === 0);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(said, []);
  await close();
});

test("a button that disappears when pressed passes the focus to its replacement", async () => {
  const { page, close } = await open();
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  await page.getByRole("button", { name: "Compare with a fixed window" }).press("Enter");
  await page.getByLabel("Tokens added").nth(1).waitFor();
  assert.equal(await focused(), "Stop comparing");
  await page.keyboard.press("Enter");
  await page.getByLabel("Tokens added").nth(1).waitFor({ state: "detached" });
  assert.equal(await focused(), "Compare with a fixed window");
  await press(page, "Add a limit");
  const remove = page.getByRole("button", { name: "Remove this limit" });
  await remove.last().press("Enter");
  await remove.first().waitFor({ state: "detached" });
  assert.equal(await focused(), "Add a limit");
  await close();
});

test("the table of decisions says when a reservation is ready, and when and how it ended", async () => {
  const { page, said, close } = await open();
  await press(page, "TOML");
  const toml = '[p]\nrate = 1\nperiod = "1s"\ncapacity = 1\nmax_debt = 9\nreservation_ttl = "5s"\nunsettled = "refund"';
  await page.getByLabel("Policy as TOML").fill(toml);
  await page.getByLabel("Trace").selectOption("csv");
  // Two at once; the second waits, is cancelled and made again, and then expires.
  await page
    .getByLabel("Lines of seconds")
    .fill("0,0\n1,1,reserve\n1,2,reserve\n2,1,settle\n2,,cancel\n4,3,reserve\n15,0");
  await page.getByLabel("Moment").press("End");
  await page.getByText("The last 50 decisions as a table").click();
  const rows = page.getByRole("region", { name: "The last 50 decisions as a table" }).getByRole("row");
  const cells = () =>
    rows.evaluateAll((all) => all.slice(1).map(({ cells }) => [...cells].map((cell) => cell.textContent)));
  const seen = (await cells()).map(([, verb, , answer, , , , ready, ended]) => [verb, answer, ready, ended]);
  assert.deepEqual(seen, [
    ["consume", "granted", "–", "–"],
    ["expired", "–", "–", "–"],
    ["reserve", "granted", "00:00:06.000", "00:00:11.000 expired"],
    ["cancel", "granted", "–", "–"],
    ["settle", "granted", "–", "–"],
    ["reserve", "granted", "00:00:03.000", "00:00:02.000 cancelled"],
    ["reserve", "granted", "00:00:01.000", "00:00:02.000 settled"],
    ["consume", "granted", "–", "–"],
  ]);
  // At an earlier moment nothing has ended that ends later.
  await page.getByLabel("Moment").fill("70"); // of 16.5 seconds in 500 steps: 2.31
  const [, , , later] = await cells();
  assert.equal(later.at(-1), "00:00:02.000 settled");
  await page.getByLabel("Moment").fill("40");
  assert.deepEqual(
    (await cells()).map((row) => row.at(-1)),
    ["–", "–", "–"],
  );
  assert.deepEqual(said, []);
  await close();
});

for (const width of [1440, 390]) {
  test(`nothing shifts while a preset plays, at ${width} px`, async () => {
    for (const { title } of PRESETS) {
      const { page, close } = await open("", { viewport: { width, height: 6000 } });
      await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
      await press(page, title);
      const seen = await shifts(page, 6000);
      // Less is a word within its line.
      assert.deepEqual(
        seen.filter(({ value }) => value > 0.001),
        [],
        title,
      );
      await close();
    }
  });
}
