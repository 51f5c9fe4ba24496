// The operators' view: the built Worker with its registry.
import assert from "node:assert/strict";
import { test } from "node:test";
import { checkUsable, headers, open, press, restart, served, shift, slow, TOKEN, violations } from "./page.mjs";

async function ask(path, body, method = "POST") {
  const { url } = await served();
  const response = await fetch(`${url}/v1/${path}`, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  return { status: response.status, ...(await response.json()) };
}

async function show({ hasClock = false, slownessMs = 0, ...settings } = {}) {
  const opened = await open("#operators", settings);
  if (slownessMs > 0) await slow(opened.page, slownessMs);
  if (hasClock) await opened.page.clock.install();
  await opened.page.getByLabel("Token with the scope admin").fill(TOKEN);
  await opened.page.getByRole("button", { name: "Show" }).click();
  await opened.page.getByRole("heading", { name: "llm", exact: true }).waitFor();
  await opened.page.getByRole("region", { name: "Acts, latest first" }).waitFor();
  return opened;
}

/** Holds back the service's answers. The result waits for the next answer, and gives a function that passes it to the page. */
async function hold(page, path) {
  let arrived;
  await page.route(path, async (route) => {
    const response = await route.fetch();
    arrived(async () => {
      await route.fulfill({ response });
      await (await route.request().response()).finished();
      await page.evaluate(() => new Promise(requestAnimationFrame));
    });
  });
  return () => new Promise((resolve) => (arrived = resolve));
}

/** Ten seconds pass, and all requests in them are answered before their time limit, which is by this clock, too. */
async function tenSeconds(page) {
  const asked = [];
  const note = (request) => asked.push(request);
  page.on("request", note);
  const read = page.waitForResponse(/\/v1\/metrics\/top/);
  await page.clock.runFor(10_000);
  await (await read).finished();
  for (const request of asked) await (await request.response())?.finished();
  page.off("request", note);
}

/** The fraction of a chart's width that has the colour of grants. */
const drawnColumns = (chart) =>
  chart.evaluate((canvas) => {
    const { width, height } = canvas;
    const copy = Object.assign(document.createElement("canvas"), { width, height });
    const pixels = copy.getContext("2d", { willReadFrequently: true }); // else Chromium advises it
    pixels.drawImage(canvas, 0, 0);
    const { data } = pixels.getImageData(0, 0, width, height);
    pixels.fillStyle = getComputedStyle(canvas).getPropertyValue("--granted");
    const wanted = [1, 3, 5].map((at) => Number.parseInt(pixels.fillStyle.slice(at, at + 2), 16));
    const columns = new Set();
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 200 && wanted.every((value, j) => Math.abs(value - data[i + j]) < 20))
        columns.add((i / 4) % width);
    return columns.size / (width - 60); // the margin beside the plot
  });

test("decisions are counted by policy, with their share of refusals and the keys refused most", async () => {
  const { page, said, close } = await show();
  const list = page.getByRole("region", { name: "Per second, by policy" });
  const counted = list.getByRole("row", { name: /^demo / }).getByRole("cell");
  // Each policy has its row from the beginning, so that none moves the others.
  await page.getByText("Rates appear with the second reading.").waitFor();
  assert.deepEqual(await counted.allTextContents(), ["demo", ...Array(7).fill("–")]);
  const chart = page.getByRole("img", { name: /^Decisions per second/ });
  assert.equal(await drawnColumns(chart), 0);
  await page.waitForTimeout(600);
  // Isolates report their counts every few seconds.
  let [, granted] = await counted.allTextContents();
  for (let i = 0; i < 60 && ["–", "0"].includes(granted); i++) {
    // More than refills meanwhile, so that some are refused, however slow this is.
    await ask("consume", { policy: "demo", key: "busy", cost: 5 });
    await page.waitForTimeout(400);
    const [, now] = await counted.allTextContents();
    // A rate is a line over the time that it is of: after the second reading 10 s of the 300 s that the chart has.
    if (granted === "–" && now !== "–") assert.ok((await drawnColumns(chart)) > 0.02);
    granted = now;
  }
  assert.ok(Number(granted) > 0, granted);
  await page.getByText(/^Over the \d+ sec before the last reading\.$/).waitFor();
  await page
    .getByLabel("Keys refused most")
    .getByRole("row", { name: /^demo [0-9a-f]{32} \d/ })
    .waitFor();
  const moved = await shift(page);
  assert.ok(moved < 0.002, `${moved}`);
  assert.deepEqual(said, []);
  await close();
});

test("the three keys refused most are in sight, and each opens its key by its hash", async () => {
  for (const key of ["first", "second", "third"])
    for (let i = 0; i < 4; i++) await ask("consume", { policy: "demo", key, cost: 10 });
  const { page, said, close } = await show();
  const table = page.getByLabel("Keys refused most");
  const third = table.getByRole("button").nth(2);
  await third.waitFor({ timeout: 60_000 }); // isolates report every few seconds
  const [inside, row] = await Promise.all([table.boundingBox(), third.boundingBox()]);
  assert.ok(row.y + row.height <= inside.y + inside.height, JSON.stringify({ row, inside }));
  const hash = await third.textContent();
  await page.getByLabel("Key (text or JSON)").fill("[");
  await third.click();
  const field = page.getByLabel("Key (text or JSON)");
  assert.equal(await field.inputValue(), JSON.stringify({ hash }));
  assert.ok(await field.evaluate((field) => field.checkValidity() && document.activeElement === field));
  assert.equal(await page.getByRole("region", { name: "One key" }).locator("select").inputValue(), "demo");
  assert.deepEqual(said, []);
  await close();
});

test("a policy in shadow is beside the real ones: what it would have refused, as a line, in a table, and as a share", async () => {
  const { url } = await served();
  const created = await fetch(`${url}/v1/policies/tried`, {
    method: "PUT",
    headers: { ...headers, "if-none-match": "*" },
    body: JSON.stringify({ rate: 1, period: "1h", mode: "shadow" }),
  });
  assert.equal(created.status, 201, await created.text());
  const { page, said, close } = await show({ hasClock: true });
  const row = page.getByLabel("Per second, by policy").getByRole("row", { name: /^tried / });
  let cells = [];
  // Isolates report their counts every few seconds. Only the first request is within the limit.
  for (let i = 0; i < 60 && !(Number(cells[4]) > 0); i++) {
    await ask("consume", { policy: "tried", key: "the only one" });
    await page.clock.runFor(10_000);
    await new Promise((done) => setTimeout(done, 400));
    cells = await row.getByRole("cell").allTextContents();
  }
  const [, granted, refused, , inShadow, share] = cells;
  assert.equal(refused, "0", cells.join());
  assert.ok(Number(inShadow) > 0 && Number(inShadow) <= Number(granted), cells.join());
  assert.match(share, /^\d+(\.\d)?%$/, cells.join());
  await page.getByLabel("Decisions of").selectOption("tried");
  const chart = page.getByRole("img", {
    name: /^Decisions per second: .* granted, 0 refused, .* would be refused in shadow$/,
  });
  await chart.waitFor();
  await page.getByText("Decisions per second as a table").click();
  const table = page.getByRole("region", { name: "Decisions per second as a table" });
  // A heading and a row for each reading since the policy was created.
  await page.clock.runFor(10_000);
  await table.getByRole("row").nth(2).waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("an error in one panel stays while the others are reloaded", async () => {
  const { page, close } = await show({ hasClock: true });
  await press(page, "Edit demo");
  await page.getByLabel("demo, as JSON").fill("{");
  await press(page, "What would change?");
  const alert = page.getByRole("alert").getByText(/^400: /);
  await alert.waitFor();
  await tenSeconds(page);
  await page.getByRole("button", { name: "Read again: Audit log" }).click();
  await page.getByText("Rates appear with").waitFor({ state: "detached" });
  assert.equal(await alert.count(), 1);
  await page.getByLabel("demo, as JSON").fill('{"rate":9,"period":"10s"}');
  await press(page, "What would change?");
  await alert.waitFor({ state: "detached" });
  // Others' changes appear within a minute, and edits in progress stay.
  const { url } = await served();
  const changed = await fetch(`${url}/v1/policies/daily`, {
    method: "PUT",
    headers: { ...headers, "if-match": "*" },
    body: JSON.stringify({ kind: "fixed_window", rate: 1000, period: "1day", offset: "1h" }),
  });
  assert.equal(changed.status, 200);
  for (let second = 0; second < 60; second += 10) await tenSeconds(page);
  await page.getByLabel("Policy daily").getByText("from an operator").waitFor();
  assert.equal(await page.getByLabel("demo, as JSON").inputValue(), '{"rate":9,"period":"10s"}');
  await close();
});

test("text typed during a dry run stays, and an editor that was closed stays closed", async () => {
  const { page, close } = await show();
  const next = await hold(page, "**/v1/policies/demo?dry_run=true");
  const editor = page.getByLabel("demo, as JSON");
  const check = async () => {
    const answered = next();
    await press(page, "What would change?");
    return answered;
  };
  await press(page, "Edit demo");
  await editor.waitFor();
  assert.equal(await editor.evaluate((field) => field === document.activeElement), true);
  await editor.fill('{"rate":7,"period":"10s"}');
  const showFirst = await check();
  await editor.fill('{"rate":8,"period":"10s"}');
  await showFirst();
  assert.equal(await editor.inputValue(), '{"rate":8,"period":"10s"}');
  assert.equal(await page.getByRole("button", { name: "Apply" }).count(), 0);
  const showSecond = await check();
  await press(page, "Cancel");
  await showSecond();
  assert.equal(await editor.count(), 0);
  const edit = page.getByRole("button", { name: "Edit demo" });
  assert.equal(await edit.evaluate((button) => button === document.activeElement), true);
  await close();
});

test("a late answer does not replace another policy's text or the result of a newer act", async () => {
  const { page, close } = await show();
  const editor = page.getByLabel("demo, as JSON");
  const api = (await hold(page, "**/v1/policies/api"))();
  await press(page, "Edit api");
  await press(page, "Edit demo");
  await editor.fill('{"rate":7,"period":"10s"}');
  const showApi = await api;
  await showApi();
  assert.equal(await editor.inputValue(), '{"rate":7,"period":"10s"}');

  const says = page.getByLabel("Result");
  const audit = (await hold(page, "**/v1/audit?limit=100"))();
  await page.getByLabel("Key (text or JSON)").fill("twice");
  await press(page, "Credit");
  const showAudit = await audit;
  await press(page, "Inspect");
  await says.getByText("Open reservations: 0").waitFor();
  const lines = await says.getByRole("listitem").allTextContents();
  assert.match(lines[0], /^Its hash is [0-9a-f]{32}$/);
  await showAudit();
  assert.deepEqual(await says.getByRole("listitem").allTextContents(), lines);
  await close();
});

test("an error in a policy is shown where it was typed", async () => {
  const { page, close } = await show();
  await press(page, "Edit demo");
  await page.getByLabel("demo, as JSON").fill("{");
  await press(page, "What would change?");
  await page
    .getByLabel("Policy demo")
    .getByRole("alert")
    .getByText(/^400: /)
    .waitFor();
  assert.equal(await page.getByLabel("demo, as JSON").getAttribute("aria-invalid"), "true");
  await close();
});

test("an act is confirmed even if the audit log cannot be read; a new token sees nothing of the old one's", async () => {
  const { page, close } = await show();
  await page.route("**/v1/audit?limit=100", (route) => route.fulfill({ status: 503, json: { title: "Unavailable" } }));
  await page.getByLabel("Key (text or JSON)").fill("credited");
  await page.getByRole("combobox", { name: "Policy", exact: true }).selectOption("demo");
  await press(page, "Credit");
  const said = page.getByRole("list", { name: "Result" });
  await said.getByText("It is done, but the audit log cannot be read. 503: Unavailable").waitFor();
  await said.getByText(/^demo .*; now demo /).waitFor();
  await page.getByLabel("Token with the scope admin").fill("wrong");
  await press(page, "Show");
  await page
    .getByRole("alert")
    .getByText(/^401: /)
    .first()
    .waitFor();
  assert.equal(await page.getByLabel("Policy demo").count(), 0);
  assert.equal(await said.getByRole("listitem").count(), 0);
  await close();
});

test("an act is distinguished from one on another key at the same time", async () => {
  const { page, close } = await show();
  await page.route("**/v1/audit?limit=100", async (route) => {
    await ask("keys/credit", { policy: "api", key: "another", cost: 1 });
    await route.continue();
  });
  await page.getByLabel("Key (text or JSON)").fill("this one");
  await page.getByRole("combobox", { name: "Policy", exact: true }).selectOption("api");
  await press(page, "Credit");
  const text = await page
    .getByLabel("Result")
    .getByText(/^Recorded as /)
    .textContent();
  const { object } = await ask("keys/inspect", { key: "this one" });
  const { acts } = await ask("audit?limit=10", undefined, "GET");
  const [, number] = /^Recorded as ([\d,]+)/.exec(text);
  assert.equal(acts.find((act) => act.number === Number(number.replaceAll(",", ""))).key, object);
  await close();
});

test("a policy is changed after the service has reported what that would do", async () => {
  const { page, close } = await show();
  await press(page, "Edit demo");
  const json = page.getByLabel("demo, as JSON");
  const before = await json.inputValue();
  await json.fill('{"rate":10,"period":"1 fortnight"}');
  await press(page, "What would change?");
  await page
    .getByRole("alert")
    .getByText(/^400: .*period/)
    .waitFor();
  await json.fill('{"rate":7,"period":"10s","capacity":10}');
  // Announcements go into an existing element.
  const announcer = await page.getByLabel("Policy demo").locator('[aria-live="polite"]').elementHandle();
  await press(page, "What would change?");
  await page.getByLabel("What would change").getByText("demo: 7 per 10s instead of 10 per 10s").waitFor();
  assert.match(await announcer.textContent(), /demo: 7 per 10s instead of 10 per 10s.*Apply/);
  assert.equal(await page.getByRole("alert").count(), 0);
  await press(page, "Apply");
  await page.getByLabel("Policy demo").getByText("from an operator").waitFor();
  const { policies } = await ask("policies", undefined, "GET");
  assert.equal(policies.find(({ name }) => name === "demo").policy.rate, 7);
  // Somebody else was quicker.
  await press(page, "Edit demo");
  await json.waitFor(); // with the version before theirs
  const { url } = await served();
  const changed = await fetch(`${url}/v1/policies/demo`, {
    method: "PUT",
    headers: { ...headers, "if-match": "*" },
    body: before,
  });
  assert.equal(changed.status, 200);
  await json.fill('{"rate":8,"period":"10s","capacity":10}');
  await press(page, "What would change?");
  await page
    .getByRole("alert")
    .getByText(/^412: /)
    .waitFor();
  await close();
});

test("one key is inspected, explained, credited, reset, blocked and freed, each with its act", async () => {
  const { page, said, close } = await show();
  const says = page.getByLabel("Result");
  await ask("consume", { policy: "api", key: "mallory", cost: 50 });
  await page.getByLabel("Key (text or JSON)").fill("mallory");
  await page.getByRole("combobox", { name: "Policy", exact: true }).selectOption("api");
  await press(page, "Inspect");
  await says.getByText(/^api: 1[5-9]\d left$/).waitFor();
  await page.getByLabel("Tokens to explain or credit").fill("20");
  await press(page, "Explain");
  await says.getByText(/^Allowed: the limit api allows 100 per minute/).waitFor();
  await press(page, "Credit");
  await says.getByText(/^Recorded as \d+: key\.credited by test, /).waitFor();
  await press(page, "Reset");
  await says.getByText(/^Recorded as \d+: key\.reset by test, /).waitFor();
  await press(page, "Block");
  await says.getByText(/^Recorded as \d+: override\.\w+ by test, /).waitFor();
  const { overrides } = await ask('overrides?policy=api&key="mallory"', undefined, "GET");
  assert.equal(overrides[0].override.banned, true);
  await press(page, "Remove override");
  await says.getByText(/^Recorded as \d+: override\.deleted by test, /).waitFor();
  assert.deepEqual((await ask('overrides?policy=api&key="mallory"', undefined, "GET")).overrides, []);
  await press(page, "Remove override");
  await says.getByText("It has no override of its own").waitFor();
  assert.deepEqual(said, []);
  await close();
});

test('a pasted hash is not taken for a key, and as {"hash"} it blocks its key', async () => {
  const { page, said, close } = await show();
  const says = page.getByLabel("Result");
  const { object: hash } = await ask("keys/inspect", { key: "known by its hash" });
  const key = page.getByLabel("Key (text or JSON)");
  await page.getByRole("combobox", { name: "Policy", exact: true }).selectOption("api");
  await key.fill(hash);
  await press(page, "Block");
  await says.getByText(`This looks like the hash of a key: write {"hash":"${hash}"}`).waitFor();
  const blocked = async () => (await ask("consume", { policy: "api", key: "known by its hash" })).banned === true;
  assert.equal(await blocked(), false);
  await key.fill(`{"hash":"${hash}"}`);
  await press(page, "Block");
  await says.getByText(/^Recorded as \d+: override\.created by test, /).waitFor();
  assert.equal(await blocked(), true);
  await press(page, "Remove override");
  await says.getByText(/^Recorded as \d+: override\.deleted by test, /).waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("the page sends as many requests as it says", async () => {
  const { page, close } = await open("#operators");
  let sent = [];
  page.on("request", (request) => {
    const [, path] = /\/v1\/(.*)/.exec(request.url()) ?? [];
    if (path && !path.startsWith("metrics")) sent.push(path);
  });
  await page.getByLabel("Token with the scope admin").fill(TOKEN);
  await press(page, "Show");
  await page.getByRole("region", { name: "Acts, latest first" }).waitFor();
  // The counters are among the requests of each minute.
  assert.deepEqual(sent.toSorted(), ["audit?limit=20", "overrides?limit=20", "policies"]);
  sent = [];
  await page.getByLabel("Key (text or JSON)").fill("credited");
  await press(page, "Credit");
  await page
    .getByLabel("Result")
    .getByText(/^Recorded as /)
    .waitFor();
  assert.equal(sent.length, 6, sent.join());
  await page.getByText("13 requests a minute, and up to six when you read or change something.").waitFor();
  await close();
});

test("overrides and acts are listed page by page, and again after a change", async () => {
  const until = Date.now() + 3_600_000;
  const overrides = [
    { policy: "daily", key: "listed", multiple: 2.5 },
    { policy: "daily", key: ["tenant 7", "alice"], unlimited: true },
    { policy: "api", key: "listed by number", rate: "7/1m" },
    { policy: "daily", prefix: "trial:", multiple: 0.5, until },
    ...Array.from({ length: 18 }, (_, i) => ({ policy: "daily", key: `listed ${i}`, banned: true })),
  ];
  const set = await ask("overrides", { overrides }, "PUT");
  assert.equal(set.status, 200, set.detail);
  const { page, said, close } = await show();
  const listed = page.getByRole("region", { name: "Overrides in force" }).getByRole("row");
  const acts = page.getByRole("region", { name: "Acts, latest first" }).getByRole("row");
  await acts.nth(1).waitFor();
  const rows = async (list) =>
    (await list.evaluateAll((all) => all.map(({ cells }) => [...cells].map((cell) => cell.textContent)))).slice(1);
  const whole = async (title, path, member, list) => {
    const all = await ask(`${path}?limit=100`, undefined, "GET");
    const more = page.getByRole("button", { name: `Show more: ${title}` });
    while ((await more.count()) > 0) {
      const before = await list.count();
      await more.click();
      await list.nth(before).waitFor();
    }
    assert.equal((await rows(list)).length, all[member].length);
    return all[member];
  };
  const moment = (at) => page.evaluate((at) => new Date(at).toLocaleString(), at);
  assert.equal((await rows(listed)).length, 20, "one page");
  const all = await whole("Overrides", "overrides", "overrides", listed);
  const since = await moment(all.find(({ override }) => override.key === "listed").since);
  const shown = await rows(listed);
  for (const row of [
    ["daily", "listed", "2.5 times the policy", "permanent", since],
    ["daily", '["tenant 7","alice"]', "without limits", "permanent", since],
    ["daily", "prefix trial:", "0.5 times the policy", await moment(until), since],
    ["api", "listed by number", '{"rate":"7/1m"}', "permanent", since],
    ["daily", "listed 7", "blocked", "permanent", since],
  ])
    assert.deepEqual(
      shown.filter(([, whose]) => whose === row[1]),
      [row],
    );

  await page.getByLabel("Key (text or JSON)").fill("listed");
  await page.getByRole("combobox", { name: "Policy", exact: true }).selectOption("daily");
  await press(page, "Reset");
  await acts.nth(1).getByRole("cell", { name: "key.reset" }).waitFor();
  const recorded = await whole("Audit log", "audit", "acts", acts);
  const [latest] = await rows(acts);
  const { number, at, key } = recorded[0];
  assert.deepEqual(latest, [
    number.toLocaleString("en-US"),
    await moment(at),
    "test",
    "key.reset",
    "daily",
    `${key.slice(0, 16)}…`,
    "daily 2,500",
    "daily 2,500",
  ]);
  const first = (await rows(acts)).at(-1);
  assert.match(first.join("|"), /^\d+\|.*\|deployment .*\|policy\.created\|\w+\|\|nothing\|/);
  assert.deepEqual(said, []);
  await close();
});

test("a wrong token shows the problem and nothing else, and is stored nowhere", async () => {
  const { page, said, close } = await open("#operators");
  await page.getByLabel("Token with the scope admin").fill("nonsense");
  await page.getByRole("button", { name: "Show" }).click();
  await page
    .getByRole("alert")
    .getByText(/^401: /)
    .waitFor();
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href]));
  assert.ok(!kept.includes("nonsense"));
  assert.deepEqual(await page.locator("#main button").allTextContents(), ["Show"]);
  assert.deepEqual(await page.locator("#main h2").allTextContents(), ["Service"]);
  assert.equal(await page.getByText(/Loading|No key/).count(), 0);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(
    said.map((text) => text.replace(/ .*\/v1/, "")),
    ["401/policies"],
  );
  await close();
});

test("after a token is revoked, the data it has read disappears, and it is not sent again", async () => {
  const { page, said, close } = await show({ hasClock: true });
  await page.route("**/v1/metrics", (route) => route.fulfill({ status: 401, json: { detail: "revoked" } }));
  await page.clock.runFor(10_000);
  await page.getByRole("alert").getByText("401: revoked").waitFor();
  await page.clock.runFor(60_000);
  assert.deepEqual(await page.locator("#main h2").allTextContents(), ["Service"]);
  assert.deepEqual(
    said.map((text) => text.replace(/ .*\/v1/, "")),
    ["401/metrics"],
  );
  await close();
});

test("a token refused by one endpoint is not sent to another, and a late answer hides no error", async () => {
  const { page, said, close } = await show({ hasClock: true });
  const overrides = (await hold(page, "**/v1/overrides?limit=20"))();
  await page.route("**/v1/keys/inspect", (route) => route.fulfill({ status: 401, json: { detail: "revoked" } }));
  await page.getByRole("button", { name: "Read again: Overrides" }).click();
  const showOverrides = await overrides;
  await page.getByLabel("Key (text or JSON)").fill("anyone");
  await press(page, "Inspect");
  await page.getByLabel("Result").getByText("401: revoked").waitFor();
  await showOverrides();
  assert.equal(await page.getByText("Loading").count(), 0);
  await page.getByRole("heading", { name: "Overrides" }).waitFor();
  await page.clock.runFor(10_000);
  await page.getByRole("alert").getByText("401: revoked").waitFor();
  assert.deepEqual(await page.locator("#main h2").allTextContents(), ["Service"]);
  assert.deepEqual(
    said.map((text) => text.replace(/ .*\/v1/, "")),
    ["401/keys/inspect"],
  );
  await close();
});

for (const [colorScheme, width] of [
  ["light", 1440],
  ["dark", 390],
]) {
  test(`${colorScheme}, ${width} px: axe finds nothing, and nothing is cut off`, async () => {
    await ask("overrides", { overrides: [{ policy: "api", key: `axe ${width}`, banned: true }] }, "PUT");
    const { page, said, close } = await show({ hasClock: true, colorScheme, viewport: { width, height: 900 } });
    await press(page, "Edit api");
    await page.getByLabel("api, as JSON").waitFor();
    await page.getByRole("region", { name: "Overrides in force" }).waitFor();
    await page.clock.runFor(10_000);
    await page.getByRole("region", { name: "Per second, by policy" }).waitFor();
    await page.getByText("Decisions per second as a table").click();
    await checkUsable(page);
    assert.deepEqual(said, []);
    await close();
  });
}

for (const width of [390, 1440]) {
  test(`nothing moves by itself at ${width} px`, async () => {
    // Slow enough that later shifts are not attributed to the click.
    const { page, close } = await show({ viewport: { width, height: 844 }, slownessMs: 700 });
    await page.getByText("Rates appear with").waitFor({ state: "detached" });
    await page.evaluate(() => scrollTo(0, document.querySelector("canvas").getBoundingClientRect().top));
    await page.waitForTimeout(600);
    for (let i = 0; i < 12; i++) await ask("consume", { policy: "demo", key: `moves ${width}` });
    await page.waitForTimeout(11_000);
    const moved = await shift(page);
    assert.ok(moved < 0.002, `${moved}`);
    await close();
  });
}

// The last one: it stops the server.
test("says when the service is gone, then since when counters run, and reloads what had failed", async () => {
  const { page, close } = await show();
  const since = page.getByText(/^(No key has been refused since|Since) /);
  await since.first().waitFor();
  await page.getByText("Rates appear with").waitFor({ state: "detached" });
  const began = Date.now();
  await page.context().setOffline(true);
  const alert = page.getByRole("alert").getByText("The service cannot be reached");
  await page.getByRole("button", { name: "Read again: Overrides" }).click();
  await alert.waitFor();
  await checkUsable(page);
  await restart();
  await page.waitForTimeout(10_000);
  await page.context().setOffline(false);
  await alert.waitFor({ state: "detached" });
  const told = await page.getByText(/^No key has been refused since /).textContent();
  const [, moment] = / since (.*)\.$/.exec(told);
  const at = await page.evaluate((moment) => Date.parse(moment), moment);
  assert.ok(at >= began - 1000 && at <= Date.now(), `${told}, which began after ${new Date(began)}`);
  await page.getByText(/^Every request has been decided since /).waitFor();
  await page.getByText(/^Over the \d+ sec before the last reading\.$/).waitFor();
  await close();
});
