// SharedLimiter: a tab whose process the system has stopped, as phones and sleeping laptops do, blocks no other.
import assert from "node:assert/strict";
import { test } from "node:test";
import { claimed, consume, landed, open, queue } from "./tabs.mjs";

const hour = { rate: 10, periodMs: 3_600_000, initial: 5 };

test("a tab whose process is stopped loses its turn to the next, and joins the queue again when it goes on", async () => {
  const [a, b] = [await open(hour), await open(hour)];
  await queue(a, "first", { cost: 10 });
  await claimed(b);
  await queue(b, "second", { cost: 2 });
  const goOn = await stop(a);
  try {
    await b.evaluate(() => limiter.refund(5)); // enough for the first
    assert.equal((await landed(b, "second")).decision.allowed, true);
    assert.equal((await consume(b, 2)).allowed, true);
  } finally {
    goOn();
  }
  await b.evaluate(() => limiter.refund(4));
  assert.equal((await landed(a, "first")).decision.allowed, true);
});

/** Stops the process of a tab, which other tabs do not share. Returns a function that lets it go on. */
async function stop(tab) {
  const session = await tab.context().browser().newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  for (const { id } of processInfo.filter(({ type }) => type === "renderer")) {
    process.kill(id, "SIGSTOP");
    const goOn = () => process.kill(id, "SIGCONT");
    const answers = tab.evaluate(() => true);
    const silence = new Promise((resolve) => setTimeout(resolve, SILENCE_MS, false));
    if (!(await Promise.race([answers, silence]))) return goOn;
    goOn();
  }
  throw new Error("no process of the browser is this tab's");
}

/** A running tab answers far sooner, even on a busy machine. A running tab that is taken for stopped fails the test. */
const SILENCE_MS = 1500;
