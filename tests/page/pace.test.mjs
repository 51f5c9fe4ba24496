// The playground in real time: how long a frame stays. These tests need the machine for themselves, so `npm test` runs the
// other files first.
import assert from "node:assert/strict";
import { test } from "node:test";
import { counted, linkTo, open, press } from "./page.mjs";

test("100,000 decisions at 1,000× lose no second", async () => {
  const { page, said, close } = await open();
  await press(page, "TOML");
  await page.getByLabel("Policy as TOML").fill('[p]\nrate = 3000\nperiod = "1s"');
  await page.getByRole("heading", { name: /^p: token bucket, 3,000 per 1 sec/ }).waitFor();
  await page.getByLabel("Trace").selectOption("csv");
  const lines = Array.from({ length: 100_000 }, (_, i) => (i * 0.04).toFixed(2)).join("\n"); // 4000 s: four seconds at 1,000×
  await page
    .getByLabel("A file of such lines")
    .setInputFiles({ name: "a.csv", mimeType: "text/csv", buffer: Buffer.from(lines) });
  await page.getByText("100,000 requests").waitFor();
  await page.getByLabel("Moment").fill("0");
  await press(page, "1,000×");
  // The moment shown, in seconds of the trace, and when: for each frame in which it changes.
  const frames = await page.evaluate(async () => {
    const parts = () => document.querySelector(".now").textContent.split(":");
    const shown = () => parts().reduce((sum, part) => sum * 60 + Number(part), 0);
    [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Play").click();
    const frames = [{ at: performance.now(), shown: 0 }];
    while (frames.at(-1).shown < 4_000) {
      await new Promise(requestAnimationFrame);
      if (shown() !== frames.at(-1).shown) frames.push({ at: performance.now(), shown: shown() });
    }
    return frames;
  });
  // Played by the clock, it would catch up after a pause: so no second of real time may pass without a new frame.
  const pauses = frames.slice(1).map(({ at }, i) => at - frames[i].at);
  const longest = Math.max(...pauses);
  assert.ok(longest < 1000, `${Math.round(longest)} ms without a picture; ${frames.length} pictures in all`);
  const took = frames.at(-1).at - frames[1].at;
  const played = frames.at(-1).shown - frames[1].shown;
  assert.ok(Math.abs(took - played) < 1000, `${took} ms for ${played} s`);
  await page.getByRole("button", { name: "Play", exact: true }).waitFor();
  await page.getByText("100,000 granted, 0 refused").waitFor();
  assert.deepEqual(said, []);
  await close();
});

test("held at 1,000×, it sends thousands of requests as time passes, keeps drawing, and a link has them", async () => {
  const { page, said, url, close } = await open();
  await page.getByLabel("Trace").selectOption("none");
  await press(page, "1,000×");
  await press(page, "Play");
  await page.getByRole("button", { name: "Reserve", exact: true }).hover();
  await page.mouse.down();
  const longest = await page.evaluate(async () => {
    let [longest, last] = [0, performance.now()];
    const end = last + 1000;
    while (last < end) {
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      longest = Math.max(longest, now - last);
      last = now;
    }
    return longest;
  });
  await page.mouse.up();
  await press(page, "Pause");
  assert.ok(longest < 1000, `${Math.round(longest)} ms without a picture`);
  const { granted, refused } = await counted(page);
  assert.ok(granted + refused > 1000, `${granted + refused}`);
  assert.ok(granted > (granted + refused) * 0.45, `${granted} of ${granted + refused}`); // four a second, of which two are refilled
  const link = await linkTo(page, ({ acts }) => acts.length === granted + refused);
  await close();
  const other = await open(link.slice(url.length + 1));
  await other.page.getByText(/^[1-9][\d,]* granted, /).waitFor();
  assert.deepEqual(await counted(other.page), { granted, refused });
  assert.deepEqual(said, []);
  await other.close();
});
