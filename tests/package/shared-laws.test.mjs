// SharedLimiter: laws over simulated tabs that crash, freeze, stall, and have different clocks and numbers.
import assert from "node:assert/strict";
import { setImmediate } from "node:timers/promises";
import { count, law } from "../random.mjs";
import { World } from "./world.mjs";

/** Two versions of a page. */
const VERSIONS = [
  { rate: 10, periodMs: 1000, capacity: 10 },
  { rate: 7, periodMs: 900, capacity: 12 },
];

law(
  "admits no more than the bound, and no tab waits for ever",
  { seed: 11, cases: 100 },
  async ({ below, pick, chance }, seen) => {
    const world = new World(pick);
    let granted = 0;
    let creditedMs = 0;
    world.onWrite = ([version, epoch, at], before) => {
      if (!before) return;
      const [versionBefore, epochBefore, atBefore] = before;
      assert.ok(version > versionBefore, "each write has a version of its own");
      assert.ok(at >= atBefore || epoch > epochBefore, "time only goes back when all tabs learn of it");
      creditedMs += Math.max(0, at - atBefore);
    };
    const open = () => {
      const tab = world.open(pick([0, 0, 0, 20_000, 600_000, -20_000, -600_000]));
      tab.limiter = new tab.tollgate.SharedLimiter("a", pick(VERSIONS), { clock: tab.clock });
      tab.calls = new Set();
      tab.errors = [];
    };
    const failed = (tab) => (error) => void tab.errors.push(error);
    const grant = (what, cost) => {
      granted += cost;
      count(seen, what);
      const most = 12 + Math.floor((10 * creditedMs) / 1000);
      if (granted > most) world.errors.push(`${granted} granted of ${most}`);
    };
    const acts = {
      consume: (tab) => {
        const cost = below(4);
        tab.limiter.tryConsume(cost).then((allowed) => allowed && grant("consumed", cost), failed(tab));
      },
      acquire: (tab) => {
        const cost = 1 + below(10);
        const end = new AbortController();
        tab.calls.add(end);
        const maxWaitMs = chance(0.3) ? below(5000) : Infinity;
        tab.limiter
          .acquire({ cost, signal: end.signal, priority: below(2), maxWaitMs })
          .then(
            () => grant("acquired", cost),
            (error) =>
              /AbortError|wait_too_long/.test(error.code + error.name) ? count(seen, "dropped") : failed(tab)(error),
          )
          .finally(() => tab.calls.delete(end));
      },
      abort: (tab) => [...tab.calls][0]?.abort(),
      pause: (tab) => tab.limiter.pause(tab.limiter.clock.now() + below(3000)).catch(failed(tab)),
      charge: (tab) => tab.limiter.charge(below(3)).catch(failed(tab)),
      open: () => world.tabs.length < 5 && open(),
      crash: (tab) => world.crash(tab),
      suspend: (tab) => {
        if (!world.isWriting(tab)) tab.isSuspended = true;
      },
      hide: (tab) => {
        if (world.isWriting(tab)) return;
        tab.tell("pagehide");
        tab.isHidden = tab.isSuspended = true;
      },
      wake: (tab) => {
        tab.isSuspended = false;
        if (tab.isHidden) tab.tell("pageshow");
        tab.isHidden = false;
      },
    };
    const names = [...Object.keys(acts), "consume", "consume", "consume", "acquire", "acquire", "abort", "wake"];
    open();
    for (let i = 0; i < 150; i++) {
      const name = pick(names);
      const tab = pick(world.tabs);
      if (!tab) open();
      else if (!tab.isSuspended || name === "wake" || name === "crash") acts[name](tab);
      await setImmediate(); // the tab has run as far as it can
      for (let steps = below(8); steps > 0 && (await world.step()); steps--);
      if (chance(0.3)) await world.advance(below(2000));
    }
    // From now on only time passes. Each tab that cannot run delays the others by a second, at most.
    await world.advance(120_000);
    assert.deepEqual(world.errors, []);
    for (const tab of world.tabs) {
      assert.deepEqual([tab.warnings, tab.errors], [[], []]);
      if (tab.isSuspended) continue;
      count(seen, "tabs at the end");
      assert.equal(tab.limiter.waiting, 0, "a tab that can run does not wait for ever");
      assert.equal(tab.limiter.peek(10).allowed, true, "the budget is full, and not kept for a tab that cannot run");
    }
  },
);
