// The view of a real key: the built Worker, two tabs, and what each sees of the other.
import assert from "node:assert/strict";
import { test } from "node:test";
import { checkUsable, open, served, TOKEN } from "./page.mjs";

const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };

async function follow(policy, key, settings) {
  const opened = await open("#live", settings);
  const { page } = opened;
  await page.getByLabel("Token or grant").fill(TOKEN);
  await page.getByLabel("Policy").fill(policy);
  await page.getByLabel("Key of a user or tenant").fill(key);
  await page.getByRole("button", { name: "Follow" }).click();
  await page.getByRole("heading", { name: `${policy}, for this key` }).waitFor();
  return opened;
}

const consume = (page) => page.getByRole("button", { name: "Consume", exact: true }).click();
const fact = (page, name) => page.locator("dt", { hasText: name }).locator("+ dd").textContent();

test("two tabs share one budget, and each sees what the other takes", async () => {
  const [one, two] = [await follow("daily", "shared"), await follow("daily", "shared")];
  await one.page.getByLabel("Cost").fill("100");
  for (let i = 0; i < 3; i++) await consume(one.page);
  await one.page.getByRole("heading", { name: "daily: 700 of 1,000" }).waitFor();
  await two.page.getByRole("heading", { name: "daily: 700 of 1,000" }).waitFor();
  await two.page.getByText("1 granted, 0 refused").waitFor(); // what others took until it looked, as one
  await two.page.getByRole("heading", { name: "Admitted in total: 300 of at most 1,000" }).waitFor();
  await two.page.getByLabel("Cost").fill("701");
  await consume(two.page);
  await two.page.getByRole("status").getByText("701: refused, 700 left").waitFor();
  await two.page.getByText("1 granted, 1 refused").waitFor();
  assert.equal(await fact(two.page, "The twin was right"), "1 of 1");
  assert.equal(await fact(two.page, "The twin says is left"), "700");
  assert.deepEqual(
    [one.said, two.said].flat().filter((text) => !/429/.test(text)),
    [],
  );
  await Promise.all([one.close(), two.close()]);
});

test("what a server takes is seen, with several limits, and a level in debt", async () => {
  const { url } = await served();
  const { page, said, close } = await follow("llm", "a tenant");
  const body = JSON.stringify({ policy: "llm", key: "a tenant", cost: { requests: 65, tokens: 30_000 } });
  const answer = await fetch(`${url}/v1/charge`, { method: "POST", headers, body });
  assert.equal(answer.status, 200);
  await page.getByRole("heading", { name: /^requests: -[1-5] of 60 \(in debt\)/ }).waitFor();
  await page.getByRole("heading", { name: /^tokens: 70,\d{3} of 100,000/ }).waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("a wrong token, an unknown policy and a service that is gone are said", async () => {
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
  await page.context().setOffline(false);
  await alert.waitFor({ state: "detached" });
  await close();
});

test("the token is kept nowhere", async () => {
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
