// The live view: the built Worker, two tabs, and what each sees of the other.
import assert from "node:assert/strict";
import { test } from "node:test";
import { SignJWT } from "jose";
import { checkUsable, GRANT_KEYS, headers, open, press, served, shift, slow, TOKEN } from "./page.mjs";

const KEY = "Key (text or JSON; empty with a grant)";

async function grant(claims) {
  const [[kid, secret]] = Object.entries(JSON.parse(GRANT_KEYS));
  const jwt = new SignJWT({ aud: "tollgate", ...claims }).setProtectedHeader({ alg: "HS256", kid });
  return jwt.setExpirationTime("10m").sign(Buffer.from(secret, "base64url"));
}

async function follow(policy, key, { token = TOKEN, slownessMs = 0, ...settings } = {}) {
  const opened = await open("#live", settings);
  const { page } = opened;
  if (slownessMs > 0) await slow(page, slownessMs);
  await page.getByLabel("Token or grant").fill(token);
  await page.getByLabel("Policy").fill(policy);
  await page.getByLabel(KEY).fill(key);
  await page.getByRole("button", { name: "Follow" }).click();
  await page.getByRole("heading", { name: `${policy}, for this key` }).waitFor();
  return opened;
}

const consume = (page) => press(page, "Consume");
const fact = (page, name) => page.locator("dt", { hasText: name }).locator("+ dd").textContent();

test("two tabs share one budget, and each sees what the other takes", async () => {
  const [one, two] = [await follow("daily", "shared"), await follow("daily", "shared")];
  await one.page.getByLabel("Cost").fill("300");
  await consume(one.page);
  await one.page.getByRole("heading", { name: "daily: 700 of 1,000" }).waitFor();
  await two.page.getByRole("heading", { name: "daily: 700 of 1,000" }).waitFor();
  await two.page.getByText("1 granted, 0 refused").waitFor();
  await two.page.getByRole("heading", { name: "Admitted in total: 300 of at most 1,000" }).waitFor();
  await two.page.getByText("The last 50 decisions as a table").click();
  const shown = two.page.getByRole("region", { name: "The last 50 decisions as a table" }).getByRole("row").nth(1);
  await shown.waitFor(); // the table is made when it is opened
  assert.deepEqual((await shown.getByRole("cell").allTextContents()).slice(1), [
    "consume",
    "300",
    "granted",
    "–",
    "700",
    "300",
  ]);
  await two.page.getByLabel("Cost").fill("701");
  await consume(two.page);
  await two.page
    .getByRole("status")
    .getByText(/^consume 701: refused, would pass in .*, 700 left$/)
    .waitFor();
  await two.page.getByText("1 granted, 1 refused").waitFor();
  assert.equal(await fact(two.page, "Predictions that were right"), "1 of 1");
  assert.equal(await fact(two.page, "Remaining (predicted)"), "700");
  assert.deepEqual(
    [one.said, two.said].flat().filter((text) => !/429/.test(text)),
    [],
  );
  await Promise.all([one.close(), two.close()]);
});

test("shows what a server takes, with several limits, and a level in debt", async () => {
  const { url } = await served();
  const { page, said, close } = await follow("llm", "a tenant");
  const body = JSON.stringify({ policy: "llm", key: "a tenant", cost: { requests: 120, tokens: 30_000 } });
  const answer = await fetch(`${url}/v1/charge`, { method: "POST", headers, body });
  assert.equal(answer.status, 200);
  await page.getByRole("heading", { name: /^requests: -\d+ of 60 \(in debt\)/ }).waitFor();
  await page.getByRole("heading", { name: /^tokens: 70,\d{3} of 100,000/ }).waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("reserves, settles at another cost, cancels and refunds, and nothing of it counts as done by others", async () => {
  const { page, said, close } = await follow("llm", '["tenant 7","alice"]');
  const heading = (left) => page.getByRole("heading", { name: new RegExp(`^tokens: ${left} of 100,000`) }).waitFor();
  const cost = page.getByLabel("Cost in tokens");
  const table = page.getByText("The last 50 decisions as a table");
  await cost.fill("50000");
  await press(page, "Reserve");
  await heading("50,\\d{3}");
  // It was this key, not a text that looks like it.
  const { url } = await served();
  const body = JSON.stringify({ policy: "llm", key: ["tenant 7", "alice"] });
  const inspected = await (await fetch(`${url}/v1/inspect`, { method: "POST", headers, body })).json();
  assert.ok(inspected.limits[1].remaining < 60_000, JSON.stringify(inspected));
  await cost.fill("20000");
  await press(page, "Settle");
  await heading("80,\\d{3}");
  await press(page, "Reserve");
  await heading("60,\\d{3}");
  await press(page, "Cancel");
  await heading("80,\\d{3}");
  await press(page, "Refund");
  await heading("100,000");

  await page.getByText("2 granted, 0 refused").waitFor();
  for (const name of ["Settle", "Cancel"])
    assert.ok(await page.getByRole("button", { name, exact: true }).isDisabled());
  await table.click();
  const rows = page.getByRole("region", { name: "The last 50 decisions as a table" }).getByRole("row");
  await rows.nth(1).waitFor();
  const asked = await rows.evaluateAll((all) => all.slice(1).map(({ cells }) => cells[1].textContent));
  assert.deepEqual(asked, ["refund", "cancel", "reserve", "settle", "reserve"]);
  assert.deepEqual(said, []);
  await close();
});

test("follows a grant's key without naming it, and says what the grant does not allow", async () => {
  const token = await grant({ key: ["tenant 7", "bob"], policies: ["daily"], verbs: ["consume", "inspect"] });
  const { page, close } = await follow("daily", "", { token });
  await page.getByLabel("Cost").fill("100");
  await consume(page);
  await page.getByRole("heading", { name: "daily: 900 of 1,000" }).waitFor();
  await press(page, "Refund");
  await page
    .getByRole("alert")
    .getByText(/^403: /)
    .waitFor();
  await close();
});

test("with a grant that lacks inspect, the page says so once, and follows its own requests", async () => {
  const token = await grant({ key: "carol", policies: ["daily"], verbs: ["consume"] });
  const { page, said, close } = await open("#live");
  await page.getByLabel("Token or grant").fill(token);
  await page.getByLabel("Policy").fill("daily");
  await page.getByLabel(KEY).fill("");
  await press(page, "Follow");
  const alert = page.getByRole("alert");
  await alert.getByText(/^403: this grant is not for inspect; .* The page follows only what you ask here\.$/).waitFor();
  await page.waitForTimeout(4500); // two looks would have been made
  await page.getByLabel("Cost").fill("100");
  await consume(page);
  await page.getByRole("heading", { name: "daily: 900 of 1,000" }).waitFor();
  await page.getByLabel("Cost").fill("901");
  await consume(page);
  await page.getByText("1 granted, 1 refused").waitFor();
  assert.equal(await fact(page, "Predictions that were right"), "1 of 1");
  assert.equal(await fact(page, "Remaining (predicted)"), "900");
  assert.equal(await alert.count(), 1);
  assert.deepEqual(
    said.map((text) => text.replace(/ .*\/v1/, "")),
    ["403/inspect", "429/consume"],
  );
  await close();
});

test("a policy with shards, whose answers carry no state, is followed all the same", async () => {
  const { page, close } = await follow("divided", "by parts");
  for (const left of [99, 98]) {
    await consume(page);
    await page.getByRole("heading", { name: `divided: ${left} of 100` }).waitFor();
    await page.getByText(`${100 - left} granted, 0 refused`).waitFor();
  }
  assert.equal(await page.getByRole("alert").count(), 0);
  await close();
});

test("a policy that enforces no limit has nothing to follow, and is requested once", async () => {
  const { url } = await served();
  const created = await fetch(`${url}/v1/policies/tried`, {
    method: "PUT",
    headers: { ...headers, "if-none-match": "*" },
    body: JSON.stringify({ rate: 1, period: "1h", mode: "shadow" }),
  });
  assert.equal(created.status, 201, await created.text());
  const { page, said, close } = await open("#live");
  let looks = 0;
  page.on("request", (request) => {
    looks += Number(/inspect/.test(request.url()));
  });
  await page.getByLabel("Token or grant").fill(TOKEN);
  await page.getByLabel("Policy").fill("tried");
  await press(page, "Follow");
  await page.getByRole("alert").getByText("tried enforces no limit: there is nothing to follow").waitFor();
  await page.waitForTimeout(4500); // two looks would have been made
  assert.equal(looks, 1);
  assert.equal(await page.getByText("Loading").count(), 0);
  assert.deepEqual(said, []);
  await close();
});

test("a key that is blocked keeps its level and its history", async () => {
  const { url } = await served();
  const ask = (path, method, body) => fetch(`${url}/v1/${path}`, { method, headers, body: JSON.stringify(body) });
  const { page, close } = await follow("api", "blocked");
  await page.getByLabel("Cost").fill("0");
  await consume(page);
  await page.getByText("1 granted, 0 refused").waitFor();
  const set = await ask("overrides", "PUT", { overrides: [{ policy: "api", key: "blocked", banned: true }] });
  assert.equal(set.status, 200);
  // It takes effect within ten seconds.
  while ((await ask("peek", "POST", { policy: "api", key: "blocked" })).status !== 429)
    await new Promise((done) => setTimeout(done, 200));
  await consume(page);
  await page
    .getByRole("status")
    .getByText(/^consume 0: refused, this key is blocked, 200 left$/)
    .waitFor();
  await page.getByText("1 granted, 1 refused").waitFor();
  await page.getByRole("heading", { name: "api: 200 of 200" }).waitFor();
  await close();
});

test("announcements name each limit and a reservation's wait, and stop while a button is held", async () => {
  const { page, said, close } = await follow("llm", "announced");
  const status = page.getByRole("status");
  const cost = (limit) => page.getByLabel(`Cost in ${limit}`);
  await cost("requests").fill("60");
  await cost("tokens").fill("60000");
  await consume(page);
  await status
    .getByText(/^consume 60 requests, 60,000 tokens: granted, \d left in requests, 40,0\d\d left in tokens$/)
    .waitFor();
  await cost("requests").fill("10");
  await cost("tokens").fill("1");
  await press(page, "Reserve");
  await status.getByText(/^reserve 10 requests, 1 tokens: granted, usable in \S+ sec, 0 left in requests, /).waitFor();
  await page.evaluate(() => {
    globalThis.announced = 0;
    new MutationObserver(() => {
      globalThis.announced += 1;
    }).observe(document.querySelector('[role="status"]'), { subtree: true, childList: true, characterData: true });
  });
  let asked = 0;
  page.on("request", (request) => {
    asked += Number(/refund/.test(request.url()));
  });
  await page.getByRole("button", { name: "Refund", exact: true }).hover();
  await page.mouse.down();
  await page.waitForTimeout(2500);
  await page.mouse.up();
  await status.getByText(/^refund 10 requests, 1 tokens: granted, \d+ left in requests, /).waitFor();
  const announced = await page.evaluate(() => globalThis.announced);
  assert.ok(asked >= 3 && announced < asked, `${announced} of ${asked}`);
  assert.deepEqual(said, []);
  await close();
});

test("on a phone tables scroll, and nothing else does", async () => {
  const { page, said, close } = await follow("llm", "phone", { viewport: { width: 390, height: 844 } });
  await consume(page);
  await page.getByText("1 granted, 0 refused").waitFor();
  for (const table of ["Requests made here, as a table", "The last 50 decisions as a table"]) {
    await page.getByText(table).click();
    await page.getByRole("region", { name: table }).waitFor();
  }
  await checkUsable(page);
  assert.deepEqual(said, []);
  await close();
});

test("a key that is malformed JSON is not sent", async () => {
  const { page, said, close } = await open("#live");
  await page.getByLabel("Token or grant").fill(TOKEN);
  await page.getByLabel(KEY).fill('["tenant 7", alice]');
  await press(page, "Follow");
  const says = await page.getByLabel(KEY).evaluate((field) => field.validationMessage);
  assert.equal(says, 'Not JSON. Write a text that begins with [, { or " in quotes.');
  assert.equal(await page.getByRole("button", { name: "Consume" }).count(), 0);
  assert.deepEqual(said, []);
  await close();
});

test("a wrong token shows the problem and nothing else, and is sent once", async () => {
  const { page, said, close } = await open("#live");
  await page.getByLabel("Token or grant").fill("nonsense");
  await press(page, "Follow");
  await page
    .getByRole("alert")
    .getByText(/^401: /)
    .waitFor();
  await page.waitForTimeout(4500); // two looks would have been made
  assert.deepEqual(await page.locator("#main button").allTextContents(), ["Follow"]);
  assert.deepEqual(await page.locator("#main h2").allTextContents(), ["Key"]);
  assert.deepEqual(
    said.map((text) => text.replace(/ .*\/v1/, "")),
    ["401/inspect"],
  );
  await close();
});

for (const width of [390, 1440]) {
  test(`nothing moves by itself at ${width} px`, async () => {
    const { url } = await served();
    const viewport = { width, height: 844 };
    // Slow enough that later shifts are not attributed to the click.
    const { page, close } = await follow("llm", `still ${width}`, { viewport, slownessMs: 700 });
    const other = (verb, cost) =>
      fetch(`${url}/v1/${verb}`, {
        method: "POST",
        headers,
        body: JSON.stringify({ policy: "llm", key: `still ${width}`, cost }),
      });
    await page.getByText("0 granted, 0 refused").waitFor();
    await page.getByRole("heading", { name: "llm, for this key" }).evaluate((heading) => heading.scrollIntoView());
    await page.waitForTimeout(600);
    await other("consume", { requests: 3, tokens: 1500 });
    await page.getByText("1 granted, 0 refused, full in").waitFor();
    await other("charge", { requests: 120, tokens: 90_000 });
    await page.getByText("(in debt)").first().waitFor();
    await page.waitForTimeout(3000);
    const moved = await shift(page);
    assert.ok(moved < 0.002, `${moved}`);
    await close();
  });
}

test("reports a wrong token, an unknown policy and an unreachable service", async () => {
  const { page, close } = await open("#live");
  const alert = page.getByRole("alert");
  await page.getByLabel("Token or grant").fill("nonsense");
  await page.getByRole("button", { name: "Follow" }).click();
  await alert.getByText(/^401: /).waitFor();
  await page.getByLabel("Token or grant").fill(TOKEN);
  await page.getByLabel("Policy").fill("nothing");
  await page.getByRole("button", { name: "Follow" }).click();
  await alert.getByText(/^404: .*nothing/).waitFor();
  await page.getByLabel("Policy").fill("api");
  await page.getByRole("button", { name: "Follow" }).click();
  await page.getByRole("heading", { name: "api, for this key" }).waitFor();
  await page.context().setOffline(true);
  await alert.waitFor();
  await checkUsable(page);
  await page.context().setOffline(false);
  await alert.waitFor({ state: "detached" });
  await close();
});

test("the token is stored nowhere", async () => {
  const { page, close } = await follow("api", "kept");
  const kept = await page.evaluate(() =>
    JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href, document.cookie]),
  );
  assert.ok(!kept.includes(TOKEN));
  await page.reload();
  assert.equal(await page.getByLabel("Token or grant").inputValue(), "");
  await close();
});

for (const [colorScheme, width] of [
  ["light", 1440],
  ["dark", 390],
]) {
  test(`${colorScheme}, ${width} px: axe finds nothing, and nothing is cut off`, async () => {
    const { page, said, close } = await follow("api", `axe ${width}`, {
      colorScheme,
      viewport: { width, height: 900 },
    });
    await consume(page);
    await page.getByText("1 granted, 0 refused").waitFor();
    await checkUsable(page);
    assert.deepEqual(said, []);
    await close();
  });
}
