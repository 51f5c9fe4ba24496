// What a bundler is given: all entries of the package in one page.
import { createElement } from "react";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import * as tollgate from "tollgate";
import { useRateLimit } from "tollgate/react";
import * as slim from "tollgate/slim";
import { exercise, standingClock } from "./exercise.mjs";

/** What the hook shows: at first, when nothing is left, and when the clock has come to `readyAt`. */
function hook() {
  const clock = standingClock();
  const limiter = new slim.Limiter({ rate: 3, periodMs: 1000 }, { clock });
  const element = document.body.appendChild(document.createElement("p"));
  const Shown = () => {
    const { ok, remaining, readyAt } = useRateLimit(limiter);
    return `${ok} ${remaining} ${readyAt}`;
  };
  const shown = (change) => (flushSync(change), element.textContent);
  const root = createRoot(element);
  return [
    () => root.render(createElement(Shown)),
    () => limiter.consume(3),
    () => clock.set(333),
    () => clock.set(334),
  ].map(shown);
}

const isOne = Object.keys(tollgate).every((name) => tollgate[name] === slim[name]);
const hooked = hook();
exercise(tollgate).then((result) => (globalThis.outcome = { isOne, hooked, exercise: result }));
