// The input of the bundlers: all entries of the package in one page.
import { createElement } from "react";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import * as tollgate from "tollgate";
import { useRateLimit } from "tollgate/react";
import * as slim from "tollgate/slim";
import { exercise, standingClock } from "./exercise.mjs";

function Shown({ limiter }) {
  const { ok, remaining, readyAt } = useRateLimit(limiter);
  return `${ok} ${remaining} ${readyAt}`;
}

/** The hook's states: at first, when nothing is left, and when the clock has reached `readyAt`. */
function hook() {
  const clock = standingClock();
  const limiter = new slim.Limiter({ rate: 3, periodMs: 1000 }, { clock });
  const element = document.body.appendChild(document.createElement("p"));
  const shown = (change) => {
    flushSync(change);
    return element.textContent;
  };
  const root = createRoot(element);
  return [
    () => root.render(createElement(Shown, { limiter })),
    () => limiter.tryConsume(3),
    () => clock.set(333),
    () => clock.set(334),
  ].map(shown);
}

const others = new Map(Object.entries(slim));
const isOne = Object.entries(tollgate).every(([name, value]) => value === others.get(name));
const hooked = hook();
exercise(tollgate).then((result) => (globalThis.outcome = { isOne, hooked, exercise: result }));
