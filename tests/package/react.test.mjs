// The React hook in a real browser, with and without StrictMode, by a clock that the test moves: what it renders, when,
// and how often. Then the same without React.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { createElement } from "react";
import { renderToString } from "react-dom/server";
import { Limiter, watch } from "../../build/package/index.js";
import { useRateLimit } from "../../build/package/react.js";
import { launch, serve } from "./pages.mjs";

const root = fileURLToPath(new URL("../../", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "tollgate-react-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const entry = `
  import * as react from "react";
  import * as client from "react-dom/client";
  import * as tollgate from "./build/package/index.js";
  import { useRateLimit } from "./build/package/react.js";
  import { SharedLimiter } from "./build/package/shared.js";
  Object.assign(globalThis, react, client, tollgate, { SharedLimiter, useRateLimit });
`;
const bundle = {
  bundle: true,
  format: "esm",
  define: { "process.env.NODE_ENV": '"development"' },
  outfile: join(folder, "page.js"),
};
await build({ stdin: { contents: entry, resolveDir: root }, ...bundle });
writeFileSync(
  join(folder, "page.html"),
  `<!doctype html><link rel="icon" href="data:,"><script type="module" src="page.js"></script>`,
);
const { url } = await serve(folder);
let browser, page, printed;

before(async () => {
  browser = await launch();
  page = await browser.newPage();
  page.on("console", (message) => /React DevTools/.test(message.text()) || printed.push(message.text()));
  page.on("pageerror", (error) => printed.push(error.stack));
  printed = [];
  await page.addInitScript(`globalThis.fakeClock = ${fakeClock};`);
  await page.goto(`${url}/page.html`);
  await page.evaluate(() => {
    /** Renders `Shown` with these props; `log` records the moment and the state of each render. */
    globalThis.scene = (props, { strict = false, html } = {}) => {
      const log = [],
        element = document.createElement("div");
      const Shown = ({ id = "", limiter, cost }) => {
        const limit = useRateLimit(limiter, cost === undefined ? undefined : { cost });
        const { ok, remaining, readyAt } = limit;
        log.push([`${id}${limiter.clock.now()}`, ok, remaining, readyAt]);
        scene.limit = limit;
        return createElement("p", null, `${ok} ${remaining} ${readyAt}`);
      };
      const tree = (props) => {
        const shown = [props].flat().map((props, key) => createElement(Shown, { key, ...props }));
        return strict ? createElement(StrictMode, null, ...shown) : createElement("div", null, ...shown);
      };
      element.innerHTML = html ?? "";
      const errors = [];
      const onRecoverableError = (error) => errors.push(error.message);
      const root = html === undefined ? createRoot(element) : hydrateRoot(element, tree(props), { onRecoverableError });
      const scene = {
        log,
        element,
        errors,
        async show(props) {
          root.render(tree(props));
          await rendered();
        },
        async end() {
          root.unmount();
          await rendered();
        },
      };
      return scene;
    };
    /** Resolves when React is idle: it works in tasks of a MessageChannel, and this one queues behind them. */
    globalThis.rendered = async () => {
      for (let i = 0; i < 5; i++) {
        await new Promise((resolve) => {
          const { port1, port2 } = new MessageChannel();
          port1.onmessage = resolve;
          port2.postMessage(0);
        });
      }
    };
    /** A limiter of 3 per second that counts its listeners. */
    globalThis.limited = (clock, limits = { rate: 3, periodMs: 1000 }) => {
      const limiter = new Limiter(limits, { clock });
      const on = limiter.on.bind(limiter);
      Object.assign(limiter, { listening: 0, subscribed: 0 });
      limiter.on = (listener) => {
        limiter.listening += 1;
        limiter.subscribed += 1;
        const off = on(listener);
        return () => {
          limiter.listening -= 1;
          off();
        };
      };
      return limiter;
    };
  });
});
after(() => browser.close());
afterEach(() => assert.deepEqual(printed.splice(0), [], "on the console"));

/** What the server renders. */
function Shown({ limiter }) {
  const { ok, remaining, readyAt } = useRateLimit(limiter);
  return createElement("p", null, `${ok} ${remaining} ${readyAt}`);
}

/** A clock that moves only on request, millisecond by millisecond. Its text is also part of the page. */
function fakeClock() {
  let now = 0;
  const timers = new Set();
  return {
    timers,
    now: () => now,
    at: (moment, wake) => {
      const timer = { moment, wake };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    async to(moment, then = async () => {}) {
      while (now < moment) {
        now += 1;
        for (const timer of [...timers]) {
          if (timer.moment > now || !timers.delete(timer)) continue;
          timer.wake();
        }
        await then();
      }
    },
  };
}

for (const strict of [false, true]) {
  describe(strict ? "in StrictMode" : "not in StrictMode", () => {
    /** Each render as often as React makes it: twice in StrictMode. */
    const renders = (...rows) => (strict ? rows.flatMap((row) => [row, row]) : rows);

    test("renders only when tokens are taken and as each comes back", async () => {
      const { log, timers, texts } = await page.evaluate(async (strict) => {
        const clock = fakeClock(),
          limiter = limited(clock),
          { log, element, show, end } = scene({ limiter }, { strict });
        const timers = [],
          texts = [];
        const note = () => {
          timers.push(clock.timers.size);
          texts.push(element.textContent);
        };
        await show({ limiter });
        note();
        for (let i = 0; i < 4; i++) limiter.tryConsume();
        await rendered();
        note();
        for (const moment of [333, 334, 999, 1000, 2000]) {
          await clock.to(moment, rendered);
          note();
        }
        await end();
        note();
        return { log, timers, texts };
      }, strict);
      assert.deepEqual(
        log,
        renders(
          ["0", true, 3, 0],
          ["0", false, 0, 334],
          ["334", true, 1, 0],
          ["667", true, 2, 0],
          ["1000", true, 3, 0],
        ),
      );
      assert.deepEqual(texts, [
        "true 3 0",
        "false 0 334",
        "false 0 334",
        "true 1 0",
        "true 2 0",
        "true 3 0",
        "true 3 0",
        "",
      ]);
      assert.deepEqual(timers, [0, 1, 1, 1, 1, 0, 0, 0]);
    });

    test("follows a new cost", async () => {
      const { log, left } = await page.evaluate(async (strict) => {
        const clock = fakeClock(),
          limiter = limited(clock),
          { log, show, end } = scene({ limiter, cost: 1 }, { strict });
        await show({ limiter, cost: 1 });
        limiter.tryConsume(2);
        await rendered();
        await show({ limiter, cost: 2 });
        await clock.to(334, rendered);
        await show({ limiter, cost: 4 });
        await end();
        return { log, left: [limiter.listening, clock.timers.size] };
      }, strict);
      assert.deepEqual(
        log,
        renders(
          ["0", true, 3, 0],
          ["0", true, 1, 0],
          ["0", false, 1, 334],
          ["334", true, 2, 0],
          ["334", false, 2, Infinity],
        ),
      );
      assert.deepEqual(left, [0, 0]);
    });

    test("follows a new limiter and unsubscribes from the old one", async () => {
      const { log, listening, timers } = await page.evaluate(async (strict) => {
        const clock = fakeClock(),
          first = limited(clock),
          second = limited(clock, { rate: 5, periodMs: 1000 });
        const { log, show, end } = scene({ limiter: first }, { strict });
        const listening = [],
          timers = [];
        const note = () => {
          listening.push([first.listening, second.listening]);
          timers.push(clock.timers.size);
        };
        await show({ limiter: first });
        first.tryConsume(3);
        await rendered();
        note();
        await show({ limiter: second });
        note();
        first.tryConsume();
        await clock.to(334, rendered);
        second.tryConsume(5);
        await rendered();
        note();
        await end();
        note();
        return { log, listening, timers };
      }, strict);
      assert.deepEqual(
        log,
        renders(["0", true, 3, 0], ["0", false, 0, 334], ["0", true, 5, 0], ["334", false, 0, 534]),
      );
      assert.deepEqual(
        [listening, timers],
        [
          [
            [1, 0],
            [0, 1],
            [0, 1],
            [0, 0],
          ],
          [1, 0, 1, 0],
        ],
      );
    });

    test("an equal cost by names does not subscribe again", async () => {
      const { subscribed, same } = await page.evaluate(async (strict) => {
        const limiter = limited(fakeClock(), [
          { name: "calls", rate: 3, periodMs: 1000 },
          { name: "bytes", rate: 100, periodMs: 1000 },
        ]);
        const shown = scene({ limiter, cost: { calls: 1, bytes: 10 } }, { strict });
        await shown.show({ limiter, cost: { calls: 1, bytes: 10 } });
        const { subscribed } = limiter,
          { limit } = shown;
        await shown.show({ limiter, cost: { calls: 1, bytes: 10 } });
        const outcome = { subscribed: limiter.subscribed - subscribed, same: limit === shown.limit };
        await shown.end();
        return outcome;
      }, strict);
      assert.deepEqual({ subscribed, same }, { subscribed: 0, same: true });
    });

    test("components with the same limiter agree", async () => {
      const { log, left } = await page.evaluate(async (strict) => {
        const clock = fakeClock(),
          limiter = limited(clock),
          both = [
            { id: "a", limiter },
            { id: "b", limiter, cost: 2 },
          ];
        const { log, show, end } = scene(both, { strict });
        await show(both);
        limiter.tryConsume(2);
        await rendered();
        await clock.to(1000, rendered);
        await show(both.slice(0, 1));
        const alone = limiter.listening;
        await end();
        return {
          log: log.slice(0, log.findLastIndex(([at]) => at.startsWith("b")) + 1),
          left: [alone, limiter.listening, clock.timers.size],
        };
      }, strict);
      assert.deepEqual(log, [
        ...renders(["a0", true, 3, 0]),
        ...renders(["b0", true, 3, 0]),
        ...renders(["a0", true, 1, 0]),
        ...renders(["b0", false, 1, 334]),
        ...renders(["a334", true, 2, 0]),
        ...renders(["b334", true, 2, 0]),
        ...renders(["a667", true, 3, 0]),
        ...renders(["b667", true, 3, 0]),
      ]);
      assert.deepEqual(left, [1, 0, 0]);
    });

    test("with a SharedLimiter, what another instance takes is shown", async () => {
      const outcome = await page.evaluate(async (strict) => {
        const limits = { rate: 0, periodMs: 1000, capacity: 3 },
          name = `react ${strict}`;
        const limiter = new SharedLimiter(name, limits),
          other = new SharedLimiter(name, limits);
        await Promise.all([limiter.ready, other.ready]);
        const shown = scene({ limiter }, { strict });
        await shown.show({ limiter });
        const texts = [shown.element.textContent];
        const until = async (text) => {
          while (shown.element.textContent !== text) await rendered();
          texts.push(text);
        };
        const allowed = await limiter.tryConsume();
        await until("true 2 0");
        await other.tryConsume(2);
        await until("false 0 Infinity");
        await shown.end();
        return { allowed, texts };
      }, strict);
      assert.deepEqual(outcome, {
        allowed: true,
        texts: ["true 3 0", "true 2 0", "false 0 Infinity"],
      });
    });

    test("hydrates what the server rendered", async () => {
      const clock = fakeClock(),
        limiter = new Limiter({ rate: 3, periodMs: 1000 }, { clock });
      const rendered = renderToString(createElement("div", null, createElement(Shown, { limiter })));
      assert.equal(rendered, "<div><p>true 3 0</p></div>");
      assert.equal(clock.timers.size, 0);
      const html = strict ? rendered.replaceAll(/<\/?div>/g, "") : rendered;
      const outcome = await page.evaluate(
        async ([html, strict]) => {
          const limiter = limited(fakeClock()),
            shown = scene({ limiter }, { strict, html });
          const taken = shown.element.querySelector("p");
          await rendered();
          const outcome = {
            isSame: taken === shown.element.querySelector("p"),
            errors: shown.errors,
            text: shown.element.textContent,
          };
          await shown.end();
          const spent = limited(fakeClock());
          spent.tryConsume(3);
          const later = scene({ limiter: spent }, { strict, html });
          await rendered();
          Object.assign(outcome, {
            errorsLater: later.errors,
            isRight: later.element.textContent.startsWith("false 0 "),
          });
          await later.end();
          return outcome;
        },
        [html, strict],
      );
      assert.deepEqual(outcome, { isSame: true, errors: [], text: "true 3 0", errorsLater: [], isRight: true });
    });
  });
}

describe("without React", () => {
  test("reports each change at its moment and sleeps in between", async () => {
    const clock = fakeClock(),
      limiter = new Limiter({ rate: 3, periodMs: 1000 }, { clock });
    const { get, subscribe } = watch(limiter, 2);
    const seen = [];
    assert.deepEqual(get(), { ok: true, remaining: 3, readyAt: 0 });
    assert.equal(get(), get());
    const end = subscribe(() => seen.push([clock.now(), get()]));
    limiter.tryConsume(3);
    limiter.tryConsume();
    assert.equal(clock.timers.size, 1);
    await clock.to(2000);
    assert.deepEqual(seen, [
      [0, { ok: false, remaining: 0, readyAt: 667 }],
      [334, { ok: false, remaining: 1, readyAt: 667 }],
      [667, { ok: true, remaining: 2, readyAt: 0 }],
      [1000, { ok: true, remaining: 3, readyAt: 0 }],
    ]);
    limiter.tryConsume(3);
    end();
    end();
    assert.equal(clock.timers.size, 0);
    limiter.tryConsume();
    await clock.to(3000);
    assert.equal(seen.length, 5);
    assert.deepEqual(get(), { ok: true, remaining: 3, readyAt: 0 }); // also without listeners
  });

  test("a request made at the readyAt wake-up is granted, whatever the rate", async () => {
    for (const [rate, periodMs] of [
      [7, 100],
      [3, 1000],
      [1, 1],
      [1000, 999],
    ]) {
      const clock = fakeClock(),
        limiter = new Limiter({ rate, periodMs, capacity: 5 }, { clock });
      const store = watch(limiter);
      const seen = [];
      store.get();
      store.subscribe(() => seen.push(store.get().ok));
      for (let i = 0; i < 20; i++) {
        limiter.tryConsume(limiter.remaining());
        const { readyAt } = store.get();
        await clock.to(readyAt - 1);
        assert.equal(store.get().ok, false);
        await clock.to(readyAt);
        assert.equal(store.get().ok, true);
      }
      assert.deepEqual(
        seen,
        Array.from({ length: 40 }, (_, i) => i % 2 === 1),
      );
    }
  });

  test("listeners are removed one by one, even by another listener", () => {
    const clock = fakeClock(),
      limiter = new Limiter({ rate: 3, periodMs: 1000 }, { clock }),
      store = watch(limiter);
    store.get();
    const seen = [];
    const one = () => seen.push("one");
    const ends = [store.subscribe(one), store.subscribe(one), store.subscribe(() => ends[1]())];
    limiter.tryConsume();
    assert.deepEqual(seen, ["one", "one"]);
    limiter.tryConsume();
    assert.deepEqual(seen, ["one", "one", "one"]);
    for (const end of ends) end();
    assert.equal(clock.timers.size, 0);
  });
});
