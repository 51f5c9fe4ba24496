// The playground in Chromium: what one asks by hand, and what one sees while it plays.
import "./modules.mjs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, violations } from "./page.mjs";

const { PRESETS } = await import("../../www/page/src/playground/presets.ts");

const press = (page, name) => page.getByRole("button", { name, exact: true }).click();
const status = (page) => page.getByRole("status").textContent();

/** How often was granted and refused. */
async function counted(page) {
  const text = await page.locator(".counts").first().textContent();
  const [, granted, refused] = /^([\d,]+) granted, ([\d,]+) refused/.exec(text);
  return { granted: Number(granted.replaceAll(",", "")), refused: Number(refused.replaceAll(",", "")) };
}

test("what never refills is said in words, and what is owed is drawn below nothing", async () => {
  const { page, close } = await open();
  await press(page, "Free trial");
  await page.getByText(/granted, [1-9]\d* refused, never full again$/).waitFor();
  await press(page, "Webhooks, evenly spaced");
  await page.getByRole("heading", { name: "webhooks: token bucket, 5 per 1 sec, at most 1, debt up to 20" }).waitFor();
  await page.getByRole("heading", { name: /^webhooks: -\d+ of 1 \(in debt\)$/ }).waitFor();
  await page
    .getByText(/^reserve 1: granted, to be used in [\d.]+ sec, 0 left$/)
    .first()
    .waitFor();
  const fact = (name) => page.locator("dt", { hasText: name }).locator("+ dd").textContent();
  assert.equal(await fact("At once, at most"), "1");
  assert.equal(await fact("In debt, at most"), "20");
  await close();
});
