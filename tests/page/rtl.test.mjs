// The page forced to read from right to left: it is mirrored, and English text with its numbers still reads from left to right.
import assert from "node:assert/strict";
import { test } from "node:test";
import { headers, open, overflow, served, TOKEN } from "./page.mjs";

async function mirrored(hash, locale) {
  const opened = await open(hash, { locale });
  await opened.page.evaluate(() => {
    document.documentElement.dir = "rtl";
  });
  return opened;
}

/** Texts with a character that is left of the one before it, on the same line. */
const disordered = (page) =>
  page.evaluate(() => {
    const blocks = new Map();
    const walker = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let block = node.parentElement;
      if (!block.checkVisibility() || block.closest(".unseen, select")) continue;
      while (getComputedStyle(block).display.startsWith("inline") && block.tagName !== "BUTTON")
        block = block.parentElement;
      blocks.set(block, [...(blocks.get(block) ?? []), node]);
    }
    const found = [];
    for (const nodes of blocks.values()) {
      let last;
      for (const node of nodes) {
        for (let i = 0; i < node.data.length; i++) {
          const range = new Range();
          range.setStart(node, i);
          range.setEnd(node, i + 1);
          const box = range.getBoundingClientRect();
          if (box.width === 0) continue;
          if (last && Math.abs(box.top - last.top) < 3 && box.left < last.left - 0.5)
            found.push(nodes.map(({ data }) => data).join(""));
          last = box;
        }
      }
    }
    return [...new Set(found)];
  });

const isMirrored = (page) =>
  page.evaluate(() => {
    const [settings, rest] = document.querySelector("#main > :not([hidden]) .playground").children;
    return settings.getBoundingClientRect().left > rest.getBoundingClientRect().left;
  });

async function check({ page, said, close }) {
  assert.deepEqual(await disordered(page), []);
  assert.ok(await isMirrored(page));
  assert.ok((await overflow(page)) <= 0);
  for (const field of await page.locator("#main input, #main textarea, #main pre").all())
    assert.equal(await field.evaluate((field) => getComputedStyle(field).direction), "ltr");
  assert.deepEqual(said, []);
  await close();
}

test("the playground", async () => {
  const opened = await mirrored("");
  const { page } = opened;
  await page.getByRole("button", { name: "LLM requests and tokens", exact: true }).click();
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByText("The last 50 decisions as a table").click();
  await page.getByText(/full in/).waitFor();
  await check(opened);
});

test("a real key, in debt", async () => {
  const opened = await mirrored("#live");
  const { page } = opened;
  const { url } = await served();
  await page.getByLabel("Token or grant").fill(TOKEN);
  await page.getByLabel("Policy").fill("llm");
  await page.getByLabel("Key (text or JSON; empty with a grant)").fill("mirrored");
  await page.getByRole("button", { name: "Follow" }).click();
  await page.getByText("0 granted, 0 refused").waitFor();
  const body = JSON.stringify({ policy: "llm", key: "mirrored", cost: { requests: 120, tokens: 30_000 } });
  await fetch(`${url}/v1/charge`, { method: "POST", headers, body });
  await page.getByRole("heading", { name: /^requests: -\d+ of 60 \(in debt\)/ }).waitFor();
  for (const table of ["Requests made here, as a table", "The last 50 decisions as a table"])
    await page.getByText(table).click();
  await check(opened);
});

test("what operators see", async () => {
  const { url } = await served();
  const body = JSON.stringify({
    overrides: [
      { policy: "daily", key: ["\u05e9\u05dc\u05d5\u05dd", "tenant 7"], multiple: 0.5 },
      { policy: "daily", prefix: "trial:", banned: true },
    ],
  });
  assert.equal((await fetch(`${url}/v1/overrides`, { method: "PUT", headers, body })).status, 200);
  const opened = await mirrored("#operators");
  const { page } = opened;
  await page.getByLabel("Token with the scope admin").fill(TOKEN);
  await page.getByRole("button", { name: "Show" }).click();
  const whose = page.getByRole("region", { name: "Overrides in force" }).locator("td:nth-child(2)");
  await whose.first().waitFor();
  await page.getByLabel("Key (text or JSON)").fill("never asked");
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await page.getByText("All budgets are full").waitFor();
  // A key is JSON, from left to right, even if its contents are not.
  const key = whose.getByText("\u05e9\u05dc\u05d5\u05dd");
  const places = await key.evaluate((cell) =>
    [0, cell.firstChild.data.length - 1].map((at) => {
      const range = new Range();
      range.setStart(cell.firstChild, at);
      range.setEnd(cell.firstChild, at + 1);
      return range.getBoundingClientRect().left;
    }),
  );
  assert.ok(places[0] < places[1], `${places}`);
  await key.evaluate((cell) => cell.closest("tr").remove());
  await check(opened);
});

test("a length of time in the visitor's script does not reorder what is beside it", async () => {
  const { page, close } = await mirrored("", "he");
  await page.getByRole("button", { name: "LLM requests and tokens", exact: true }).click();
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  // Seconds until it is full: milliseconds are "ms" in Hebrew, too.
  for (let i = 0; i < 3; i++) await page.getByRole("button", { name: "Consume", exact: true }).click();
  const line = page.locator(".counts").first();
  await line.getByText(/full in .*[\u0590-\u05ff]/).waitFor();
  const [full, unit] = await line.evaluate((line) => {
    const text = [...line.childNodes].at(-1);
    return ["f", /[\u0590-\u05ff]/].map((wanted) => {
      const at = text.data.search(wanted);
      const range = new Range();
      range.setStart(text, at);
      range.setEnd(text, at + 1);
      return range.getBoundingClientRect().left;
    });
  });
  assert.ok(full < unit);
  assert.match(await line.textContent(), /full in \u2068.*\u2069$/);
  await close();
});
