// The page in Chromium, served by the built Worker.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { linkTo, open, overflow, press, served, shift, TOKEN, violations } from "./page.mjs";

const status = (page) => page.getByRole("status").textContent();

test("the whole page is at most 118 KB, compressed", () => {
  const files = readdirSync("build/page", { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const sizes = files.map(
    ({ parentPath, name }) => gzipSync(readFileSync(join(parentPath, name)), { level: 9 }).length,
  );
  const all = sizes.reduce((sum, size) => sum + size);
  assert.ok(all <= 118_000, `${all} bytes`);
});

test("is served with its content policy, and other paths are the API's to answer", async () => {
  const { url } = await served();
  const response = await fetch(url);
  assert.equal(response.status, 200);
  assert.equal(
    response.headers.get("content-security-policy"),
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  );
  for (const [path, status, type] of [
    ["/healthz", 200, "application/json"],
    ["/v1/openapi.json", 200, "application/json"],
    ["/v1/nothing", 404, "application/problem+json"],
    ["/nothing", 404, "application/problem+json"],
  ]) {
    const answer = await fetch(url + path, { headers: { authorization: `Bearer ${TOKEN}` } });
    assert.deepEqual([answer.status, answer.headers.get("content-type")], [status, type], path);
  }
});

const PHONE = { width: 390, height: 844 };
const DESK = { width: 1440, height: 900 };

for (const [colorScheme, viewport] of [
  ["light", DESK],
  ["dark", DESK],
  ["light", PHONE],
  ["dark", PHONE],
]) {
  test(`${colorScheme}, ${viewport.width} px: axe finds nothing, and the console is empty`, async () => {
    const { page, said, close } = await open("", { colorScheme, viewport });
    await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
    await press(page, "Compare with a fixed window");
    await page.getByRole("button", { name: "Stop comparing" }).waitFor();
    for (const way of ["Form", "TOML"]) {
      await page.getByRole("button", { name: way, exact: true }).first().click();
      assert.deepEqual(await violations(page), []);
    }
    await page
      .getByLabel(/ as TOML$/)
      .first()
      .fill('[POLICIES.api]\nrate = "ten"\nburst = 3');
    const mistakes = page.getByRole("alert").getByRole("listitem");
    await mistakes.nth(1).waitFor();
    assert.deepEqual(await violations(page), [], "with mistakes");
    assert.deepEqual(said, []);
    await close();
  });
}

for (const colorScheme of ["light", "dark"])
  test(`${colorScheme}: fields stand out with a contrast of three to one`, async () => {
    const { page, close } = await open("", { colorScheme });
    await press(page, "TOML");
    await page.getByLabel("Trace").selectOption("csv");
    await page.getByLabel("Lines of seconds").waitFor();
    const fields = await page.evaluate(() => {
      const luminance = (colour) => {
        const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        const [red, green, blue] = colour.match(/\d+/g).map((value) => linear(value / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      };
      const contrast = (...colours) => {
        const [darker, lighter] = colours.map(luminance).sort((a, b) => a - b);
        return (lighter + 0.05) / (darker + 0.05);
      };
      return [...document.querySelectorAll("select, textarea, input:not([type=range])")].map((field) => {
        const { borderColor, backgroundColor } = getComputedStyle(field);
        const around = getComputedStyle(field.closest(".panel")).backgroundColor;
        return [
          field.outerHTML.slice(0, 60),
          ...[backgroundColor, around].map((ground) => contrast(borderColor, ground)),
        ];
      });
    });
    assert.ok(fields.length > 3, `${fields.length} fields`);
    for (const [field, ...contrasts] of fields) assert.ok(Math.min(...contrasts) >= 3, `${field}: ${contrasts}`);
    await close();
  });

test("asks by hand, announces the answer and shows it with the code", async () => {
  const { page, said, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  for (let i = 0; i < 20; i++) await press(page, "Consume");
  assert.match(await status(page), /^consume 1: granted, 0 left$/);
  await press(page, "Consume");
  assert.match(await status(page), /^consume 1: refused, would pass in 500 ms, 0 left$/);
  const told = await page.locator("pre").first().textContent();
  assert.match(
    told,
    /^HTTP\/1\.1 429\nRateLimit-Policy: "api";q=20;w=10;tollgate-capacity=20\nRateLimit: "api";r=0;t=1\nRetry-After: 1\n/,
  );
  for (const [language, code] of [
    ["curl", /curl -i .*\/v1\/consume/],
    ["fetch", /await fetch\(/],
    ["Package", /new Client\(/],
    ["In your Worker", /tollgate\(env\)\.consume/],
  ]) {
    await press(page, language);
    assert.match(await page.locator("pre").last().textContent(), code);
  }
  assert.deepEqual(said, []);
  await close();
});

test("reserves, settles, cancels and refunds", async () => {
  const { page, said, close } = await open();
  await press(page, "LLM requests and tokens");
  await press(page, "Pause");
  await page.getByLabel("Trace").selectOption("none");
  await page.getByRole("heading", { name: /^requests: 10 of 10/ }).waitFor();
  for (const [verb, left] of [
    ["Reserve", 9],
    ["Settle", 9],
    ["Reserve", 8],
    ["Cancel", 9],
    ["Refund", 10],
  ]) {
    await press(page, verb);
    await page.getByRole("heading", { name: `requests: ${left} of 10` }).waitFor();
  }
  assert.deepEqual(said, []);
  await close();
});

test("an answer that is the same as before is announced again", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  for (let i = 0; i < 21; i++) await press(page, "Consume");
  assert.match(await status(page), /^consume 1: refused/);
  // Screen readers announce nodes that are added to the element.
  const added = page.evaluate(
    () =>
      new Promise((done) => {
        const observer = new MutationObserver((changes) =>
          done(changes.flatMap(({ addedNodes }) => [...addedNodes]).map(({ textContent }) => textContent)),
        );
        observer.observe(document.querySelector('[role="status"]'), { childList: true, subtree: true });
      }),
  );
  await press(page, "Consume");
  assert.deepEqual(await added, ["consume 1: refused, would pass in 500 ms, 0 left"]);
  await close();
});

test("holding a button repeats the request", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "1×");
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down();
  await page.getByText(/[3-9] granted/).waitFor();
  await page.mouse.up();
  await close();
});

test("a held button stops when it is disabled, and only a mouse's first button sends requests", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "Reserve");
  await page.getByRole("button", { name: "Settle", exact: true }).hover();
  await page.mouse.down();
  await page.getByRole("button", { name: "Settle", exact: true, disabled: true }).waitFor();
  await page.waitForTimeout(700); // longer than two more requests take
  await page.mouse.up();
  await page.getByText("1 granted, 0 refused").waitFor();
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down({ button: "right" });
  await page.waitForTimeout(700);
  await page.mouse.up({ button: "right" });
  await page.getByText("1 granted, 0 refused").waitFor();
  await close();
});

test("a key press works on a button that was held and left", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "1×");
  await page.getByRole("button", { name: "Consume", exact: true }).hover();
  await page.mouse.down();
  await page.getByText(/^[1-9] granted/).waitFor();
  await page.mouse.move(0, 0);
  await page.mouse.up();
  const counted = page.getByText(/^\d+ granted, 0 refused/);
  const before = Number.parseInt(await counted.textContent(), 10);
  await page.keyboard.press("Enter");
  await page.getByText(`${before + 1} granted, 0 refused`).waitFor();
  await close();
});

test("following the playground's link from the playground keeps the address of what is shown", async () => {
  const { page, close } = await open();
  await page.waitForURL(/#playground\?/);
  const shown = page.url();
  await page.getByRole("link", { name: "Playground" }).click();
  await page.waitForFunction((shown) => location.href === shown, shown);
  await close();
});

test("a number is what was typed, also while it is typed", async () => {
  const { page, close } = await open();
  const rate = page.getByLabel("Tokens added");
  for (const [typed, heading] of [
    ["2.05", /^api: token bucket, 41 per 3.333 min/],
    ["20.000", /^api: token bucket, 20 per 10 sec/],
  ]) {
    await rate.clear();
    await rate.pressSequentially(typed);
    assert.equal(await rate.inputValue(), typed);
    await page.getByRole("heading", { name: heading }).waitFor();
  }
  await press(page, "TOML");
  assert.match(await page.getByLabel("Policy as TOML").inputValue(), /^rate = 20$/m);
  await close();
});

test("a view keeps its contents while others are shown", async () => {
  const { page, said, close } = await open();
  await page.getByLabel("Tokens added").fill("77");
  await page.getByRole("heading", { name: /^api: token bucket, 77 / }).waitFor();
  await page.getByRole("link", { name: "Live" }).click();
  await page.getByLabel("Token or grant").fill("kept");
  assert.equal(await page.title(), "Live · Tollgate");
  await page.getByRole("link", { name: "Operators" }).click();
  await page.getByRole("link", { name: "Live" }).click();
  assert.equal(await page.getByLabel("Token or grant").inputValue(), "kept");
  await page.getByRole("link", { name: "Playground" }).click();
  await page.getByRole("heading", { name: /^api: token bucket, 77 / }).waitFor();
  assert.equal(await page.getByLabel("Tokens added").inputValue(), "77");
  assert.deepEqual(said, []);
  await close();
});

test("form and TOML follow each other, and errors have the reader's message and position", async () => {
  const { page, said, close } = await open();
  await page.getByLabel("Tokens added").fill("50");
  await press(page, "TOML");
  const toml = page.getByLabel("Policy as TOML");
  assert.match(await toml.inputValue(), /^rate = 50$/m);
  await toml.fill('[vars.POLICIES.api]\nrate = 7\nperiod = "1 fortnight"');
  const alert = page.getByRole("alert");
  await alert.getByText(/^POLICIES\.api\.period: /).waitFor();
  await alert.getByRole("button", { name: "Line 3" }).click();
  await page.waitForFunction(() => getSelection().toString() === 'period = "1 fortnight"');
  await toml.fill('[vars.POLICIES.api]\nrate = 7\nperiod = "1h"');
  await press(page, "Form");
  assert.equal(await page.getByLabel("Tokens added").inputValue(), "7");
  await page.getByRole("heading", { name: /^api: token bucket, 7 per 1 hr/ }).waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("the form keeps comments, even if a field is emptied first, and the policy to play is chosen and linked", async () => {
  const { page, said, url, close } = await open();
  const toml =
    '# ours\n[a]\nrate = 5 # five\nperiod = "1s"\n\n[b]\nkind = "fixed_window"\nrate = 6 # six\nperiod = "1m"\n';
  await press(page, "TOML");
  const text = page.getByLabel("Policy as TOML");
  await text.fill(toml);
  await page.getByRole("heading", { name: /^a: token bucket, 5 per 1 sec/ }).waitFor();
  await page.getByLabel("Policy to play").selectOption("b");
  await page.getByRole("heading", { name: /^b: fixed window, 6 per 1 min/ }).waitFor();
  await page.getByText("each key’s windows of b open at times of their own").waitFor();
  await page.getByText("Here they first open 24.4 sec after the start.").waitFor();
  await page.getByRole("button", { name: "Compare with a token bucket" }).waitFor();
  assert.deepEqual(await violations(page), []);
  await press(page, "Form");
  const rate = page.getByLabel("Tokens added");
  await rate.clear();
  await page.getByRole("alert").waitFor();
  assert.deepEqual(await violations(page), [], "with a mistake in the form");
  await rate.pressSequentially("12");
  await page.getByRole("heading", { name: /^b: fixed window, 12 per 1 min/ }).waitFor();
  await page.getByLabel("Opens at (offset)").fill("5s");
  await page.getByText("each key’s windows of b open at times of their own").waitFor({ state: "detached" });
  await press(page, "TOML");
  const expected = `${toml.replace("6 # six", "12 # six")}offset = "5s"\n`;
  assert.equal(await text.inputValue(), expected);
  const link = await linkTo(page, ({ toml, policy }) => toml === expected && policy === "b");
  await close();
  const other = await open(link.slice(url.length + 1));
  await other.page.getByRole("heading", { name: /^b: fixed window, 12 per 1 min/ }).waitFor();
  assert.deepEqual(said, []);
  await other.close();
});

test("limits are added one by one, and removed", async () => {
  const { page, said, close } = await open();
  for (const count of [2, 3]) {
    await press(page, "Add a limit");
    await page.getByRole("group", { name: `limit${count}` }).waitFor();
  }
  await page.getByRole("heading", { name: /^limit3: \d+ of 1,000/ }).waitFor();
  await page.getByRole("button", { name: "Remove this limit" }).last().click();
  await page.getByRole("group", { name: "limit3" }).waitFor({ state: "detached" });
  assert.deepEqual(said, []);
  await close();
});

test("plays, pauses, steps and scrubs back; two policies on one trace differ", async () => {
  const { page, said, close } = await open();
  await press(page, "Compare with a fixed window");
  const counts = page.getByText(/granted, \d+ refused/);
  await page
    .getByText(/granted, [1-9]\d* refused/)
    .first()
    .waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".counts").length === 2);
  const [evenly, atOnce] = (await counts.allTextContents()).map((text) => Number.parseInt(text, 10));
  assert.ok(atOnce > evenly, `${atOnce} and ${evenly}`);
  const moment = page.getByLabel("Moment");
  await moment.fill("0");
  await page.getByText("0 granted, 0 refused").first().waitFor();
  await press(page, "Step");
  await page.getByText("1 granted, 0 refused").first().waitFor();
  assert.match(await status(page), /^consume 1: granted/);
  await press(page, "1×");
  const shown = () => moment.getAttribute("aria-valuetext");
  const before = await shown();
  await press(page, "Play");
  await page.waitForFunction((before) => document.querySelector("[type=range]").ariaValueText !== before, before);
  await press(page, "Pause");
  await page.getByRole("button", { name: "Play", exact: true }).waitFor();
  const paused = await shown();
  assert.ok(paused > before, `${paused} and ${before}`);
  await page.waitForTimeout(100);
  assert.equal(await shown(), paused);
  assert.deepEqual(said, []);
  await close();
});

test("a link reproduces everything", async () => {
  const { page, url, close } = await open();
  await press(page, "Login attempts");
  await press(page, "Pause");
  await page.getByLabel("Trace").selectOption("none");
  for (let i = 0; i < 3; i++) await press(page, "Consume");
  await press(page, "100×");
  await page.getByRole("img", { name: /^Level of minute/ }).click({ position: { x: 60, y: 60 } }); // an earlier decision
  const link = await linkTo(page, ({ acts, speed, picked }) => acts.length === 3 && speed === 100 && picked);
  const shown = await page.locator(".playground").textContent();
  await close();
  const other = await open(link.slice(url.length + 1));
  await other.page.getByRole("heading", { name: /^minute: 2 of 5/ }).waitFor();
  assert.equal(await other.page.locator(".playground").textContent(), shown);
  await other.close();
});

test("an unreadable link is reported until something else is shown", async () => {
  const { page, said, close } = await open("#playground?eyJ0b21sIjoi");
  const message = page.getByText("This link cannot be read.");
  await message.waitFor();
  await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
  await linkTo(page, ({ toml }) => toml); // the address follows
  assert.equal(await message.count(), 1);
  await press(page, "Login attempts");
  await message.waitFor({ state: "detached" });
  await page.evaluate(() => {
    location.hash = "#playground?*";
  });
  await message.waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("nothing shifts while it loads, and nothing is wider than a phone", async () => {
  const { page, close } = await open("", { viewport: PHONE });
  await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
  const moved = await shift(page);
  assert.ok(moved < 0.01, `${moved}`);
  assert.ok((await overflow(page)) <= 0);
  await close();
});

test("on a phone tables scroll, and nothing else does", async () => {
  const { page, close } = await open("", { viewport: PHONE });
  await press(page, "LLM requests and tokens");
  await press(page, "Pause");
  for (const closed of await page.getByText("The last 50 decisions as a table").all()) await closed.click();
  await page.getByRole("region", { name: "The last 50 decisions as a table" }).waitFor();
  assert.ok((await overflow(page)) <= 0);
  await close();
});

test("a CSV that is too long for a link is left out of it, and the page says so", async () => {
  const { page, close } = await open();
  await page.getByLabel("Trace").selectOption("csv");
  const lines = Array.from({ length: 200_000 }, (_, i) => (i * 0.04).toFixed(2)).join("\n");
  await page
    .getByLabel("A file of such lines")
    .setInputFiles({ name: "a.csv", mimeType: "text/csv", buffer: Buffer.from(lines) });
  await page.getByText("100,000 requests", { exact: true }).waitFor();
  await page.getByText("Too much for a link: it leaves out the CSV").waitFor();
  await page.getByLabel("Moment").fill("250");
  const link = await linkTo(page, ({ trace, at, csv }) => trace === "csv" && at > 0 && csv === undefined);
  assert.ok(link.length < 2000);
  // A CSV that is not played does not prevent a link.
  await page.getByLabel("Trace").selectOption("none");
  await page.getByText("Too much for a link").waitFor({ state: "detached" });
  await close();
});

test("everything can be done by keyboard, with visible focus", async () => {
  const { page, said, close } = await open();
  await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
  const focused = () =>
    page.evaluate(() => {
      const { activeElement: at } = document;
      const { outlineStyle } = getComputedStyle(at);
      return { name: at.getAttribute("aria-label") ?? at.textContent, isSeen: outlineStyle !== "none" };
    });
  const reach = async (name) => {
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press("Tab");
      const at = await focused();
      assert.ok(at.isSeen, `${at.name} is focused, and nothing shows it`);
      if (at.name === name) return;
    }
    assert.fail(`no key leads to ${name}`);
  };
  await reach("Login attempts");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /^minute: \d of 5/ }).waitFor();
  await reach("Pause");
  await page.keyboard.press("Space");
  await page.getByRole("button", { name: "Play", exact: true }).waitFor();
  await reach("Moment");
  await page.keyboard.press("End");
  const end = await page.getByLabel("Moment").inputValue();
  assert.equal(end, "500");
  await page.keyboard.press("ArrowLeft");
  await page.getByText("00:05:59.280").waitFor(); // a key moves by a five-hundredth of what is played
  await page.keyboard.press("End");
  await reach("Consume");
  await page.keyboard.press("Enter");
  assert.match(await status(page), /^consume .*: (granted|refused)/);
  assert.deepEqual(said, []);
  await close();
});

test("reduced motion is respected", async () => {
  const { page, close } = await open("", { reducedMotion: "reduce" });
  await press(page, "Login attempts");
  await page.getByRole("heading", { name: /^minute: \d of 5/ }).waitFor();
  await page.getByRole("button", { name: "Play", exact: true }).waitFor();
  const moment = page.getByLabel("Moment");
  assert.equal(await moment.inputValue(), await moment.getAttribute("max"));
  const moving = await page.evaluate(() => document.getAnimations().length);
  assert.equal(moving, 0);
  await close();
});

test("from right to left it is mirrored, and nothing is cut off", async () => {
  for (const viewport of [DESK, PHONE]) {
    const { page, close } = await open("", { viewport });
    await page.getByRole("heading", { name: /^The decision at/ }).waitFor();
    const place = async () => {
      const [settings, all] = await Promise.all(
        [".settings", ".playground"].map((of) => page.locator(of).boundingBox()),
      );
      return { start: settings.x - all.x, end: all.x + all.width - settings.x - settings.width };
    };
    const { start, end } = await place();
    await page.evaluate(() => {
      document.documentElement.dir = "rtl";
    });
    assert.deepEqual(await place(), { start: end, end: start });
    assert.ok((await overflow(page)) <= 0);
    await close();
  }
});

test("code and policies read from left to right in every script", async () => {
  const { page, close } = await open();
  await page.evaluate(() => {
    document.documentElement.dir = "rtl";
  });
  await press(page, "TOML");
  for (const of of [page.getByLabel("Policy as TOML"), page.locator("pre").first()])
    assert.deepEqual(await of.evaluate((at) => [getComputedStyle(at).direction, getComputedStyle(at).textAlign]), [
      "ltr",
      "left",
    ]);
  await close();
});

test("numbers follow the visitor's locale, in headings too", async () => {
  const { page, close } = await open("", { locale: "de-DE" });
  await press(page, "LLM requests and tokens");
  await page
    .getByRole("heading", {
      name: /^llm: requests token bucket, 60 per 1 Min\., at most 10, debt up to 5; tokens token bucket, 90\.000 per /,
    })
    .waitFor();
  await page.getByRole("heading", { name: /^tokens: \d\d\.\d{3} of 30\.000/ }).waitFor();
  await close();
});

test("of two policies, the clicked decision is marked on its own, and the link says which", async () => {
  const { page, url, close } = await open();
  // One policy's reservations expire with a refund, the other's do not: equal numbers are not the same decision.
  const toml = '[a]\nrate = 10\nperiod = "1s"\nmax_debt = 10\nreservation_ttl = "1500ms"\nunsettled = "refund"';
  await press(page, "TOML");
  await page.getByLabel("Policy as TOML").fill(toml);
  await page.getByLabel("Trace").selectOption("csv");
  const lines = Array.from({ length: 9 }, (_, i) => `${i},2,${i % 2 ? "consume" : "reserve"}`);
  await page.getByLabel("Lines of seconds").fill(lines.join("\n"));
  await press(page, "Compare with a fixed window");
  const second = page.getByLabel("Compared with as TOML");
  await page.getByRole("button", { name: "TOML", exact: true }).last().click();
  await second.fill('[b]\nrate = 10\nperiod = "1s"\nmax_debt = 10');
  await page.getByRole("heading", { name: /^b: token bucket/ }).waitFor();
  await page.getByLabel("Moment").press("End");
  const charts = page.getByRole("img", { name: /^Level of/ });
  const width = (await charts.last().boundingBox()).width;
  // Eight of the 8.8 seconds.
  const click = { position: { x: 52 + ((width - 60) * 7) / 8.8, y: 100 } };
  const heading = page.getByRole("heading", { name: "The decision at 00:00:07.000" });
  for (const [chart, whose] of [
    [charts.last(), /^b: token bucket/],
    [charts.first(), /^a: token bucket/],
  ]) {
    await chart.click(click);
    await heading.waitFor();
    const panel = page.getByRole("region", { name: "The decision at 00:00:07.000" });
    assert.match(await panel.locator(".head .quiet").textContent(), whose);
    assert.match(await panel.textContent(), /consume 2: granted/);
    assert.match(await panel.locator("pre").first().textContent(), whose.source.startsWith("^b") ? /"b"/ : /"a"/);
  }
  await charts.last().click(click);
  const link = await linkTo(
    page,
    ({ other, at, picked }) => other?.startsWith("[b]") && at > 8000 && picked?.[1] === 1,
  );
  await close();
  const other = await open(link.slice(url.length + 1));
  await other.page.getByRole("heading", { name: "The decision at 00:00:07.000" }).waitFor();
  await other.page
    .getByRole("region", { name: "The decision at" })
    .getByText(/^b: token bucket/)
    .waitFor();
  await other.close();
});
