// A real key of this service: its level as any caller changes it, and a twin's predictions beside the service's answers.
import { useEffect, useRef, useState } from "preact/hooks";
import { Client } from "tollgate";
import { type Amount, costText, fitted } from "../levels/amount.ts";
import { Levels } from "../levels/levels.tsx";
import { announced } from "../levels/words.ts";
import { Acts, type Verb } from "../shared/acts.tsx";
import { DataTable, Field, KeyField, Panel, Problem, SAID_AFTER_MS, useAnnouncer } from "../shared/controls.tsx";
import { keyOf } from "../shared/key.ts";
import { length, moment, number } from "../shared/numbers.ts";
import type { ViewProps } from "../views.ts";
import { type Asked, Watched } from "./watched.ts";

export function Live({ isShown }: ViewProps) {
  const [watched, setWatched] = useState<Watched>();
  const [, redraw] = useState(0);
  const [cost, setCost] = useState<Amount>(1);
  const [status, say] = useAnnouncer();
  const form = useRef<HTMLFormElement>(null);

  useEffect(() => {
    if (!watched || !isShown) return undefined;
    const again = () => redraw((count) => count + 1);
    const look = () => {
      if (document.visibilityState === "visible") void watched.look().then(again);
    };
    look();
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const timers = [setInterval(look, LOOK_MS), setInterval(again, isStill ? LOOK_MS : 250)];
    return () => timers.forEach(clearInterval);
  }, [watched, isShown]);

  const start = (event: Event) => {
    event.preventDefault();
    const { token, policy, key } = Object.fromEntries(new FormData(form.current!)) as Record<string, string>;
    // A function, because the token is the visitor's own, not the page's.
    const client = new Client({ url: location.origin, token: async () => token! });
    setWatched(new Watched(client, { policy: policy!, ...(key && { key: keyOf(key)! }) }));
    say("");
  };
  const ask = async (verb: Verb, amount: Amount, heldTimes?: number): Promise<void> => {
    const { cost, text, event } = await watched!.ask(verb, amount);
    const told = event ? announced(event, watched!.track!.limits, text) : `${verb} ${costText(cost)}: ${text}`;
    say(told, heldTimes && SAID_AFTER_MS);
    redraw((count) => count + 1);
  };
  const now = Math.floor(watched?.now() ?? 0);
  const from = Math.max(0, now - SHOWN_MS);
  const { track, asked = [], problem, blind, isOver, quickest } = watched ?? {};
  const limits = track?.limits ?? [{}];

  return (
    <>
      {status}
      <div class="playground">
        <div class="stack settings first">
          <Panel title="Key">
            <form class="stack" ref={form} onSubmit={start}>
              <Field label="Token or grant">
                <input name="token" type="password" required autocomplete="off" spellcheck={false} />
              </Field>
              <Field label="Policy">
                <input name="policy" required defaultValue="api" spellcheck={false} />
              </Field>
              <KeyField label="Key (text or JSON; empty with a grant)" defaultValue="alice" />
              <button type="submit" class="main">
                Follow
              </button>
              <p class="quiet">
                The token stays in the memory of this tab. While the tab is visible, it sends {number(60_000 / LOOK_MS)}{" "}
                requests a minute. Open a second tab with the same key: each sees what the other takes.
              </p>
            </form>
          </Panel>
        </div>
        <div class="stack">
          <Problem text={problem} />
          {watched && !track && !problem && !blind && <p class="quiet">Loading …</p>}
          {watched && !isOver && (track || blind) && (
            <Panel title="Ask">
              <div class="stack">
                <Problem text={blind && `${blind}. The page follows only what you ask here.`} />
                <Acts
                  limits={limits}
                  canSettle={watched.canSettle()}
                  cost={fitted(cost, limits)}
                  onCost={setCost}
                  onAct={ask}
                />
                <dl class="facts">
                  <dt>Remaining (predicted)</dt>
                  <dd>{track ? number(watched.predicted()) : "–"}</dd>
                  <dt>Predictions that were right</dt>
                  <dd>{rightness(asked)}</dd>
                  <dt>Quickest round trip</dt>
                  <dd>
                    {quickest && Number.isFinite(quickest.roundTripMs) ? length(Math.round(quickest.roundTripMs)) : "–"}
                  </dd>
                  <dt>The service's clock</dt>
                  <dd>{quickest && track ? offset(Math.round(quickest.aheadMs)) : "–"}</dd>
                </dl>
                <DataTable
                  caption="Requests made here, as a table"
                  columns={[
                    "Moment",
                    "Asked",
                    "Cost",
                    "Predicted",
                    "Answer",
                    "Remaining (predicted)",
                    "Remaining",
                    "Round trip",
                  ]}
                  rows={() => asked.slice(-ROWS).reverse().map(row)}
                />
              </div>
            </Panel>
          )}
          {track && (
            <Levels
              track={track}
              title={`${track.name}, for this key`}
              now={now}
              from={from}
              to={Math.max(SHOWN_MS, now)}
            />
          )}
        </div>
      </div>
    </>
  );
}

/** How far the service's clock is from the local one. */
function offset(aheadMs: number): string {
  if (aheadMs === 0) return "same as here";
  return `${length(Math.abs(aheadMs))} ${aheadMs < 0 ? "behind" : "ahead"}`;
}

/** How many predictions the service has confirmed. */
function rightness(asked: readonly Asked[]): string {
  const known = asked.filter(({ predicted, allowed }) => predicted && allowed !== undefined);
  const right = known.filter(({ predicted, allowed }) => predicted!.allowed === allowed);
  return known.length ? `${number(right.length)} of ${number(known.length)}` : "–";
}

function row({ at, verb, predicted, remaining, text, roundTripMs, ...asked }: Asked): (string | number)[] {
  const expected = predicted ? (predicted.allowed ? "granted" : "refused") : "–";
  const left = predicted ? number(predicted.remaining) : "–";
  const told = remaining === undefined ? "–" : number(remaining);
  const cost = costText(asked.cost);
  return [moment(at, SHOWN_MS), verb, cost, expected, text, left, told, length(Math.round(roundTripMs))];
}

const LOOK_MS = 2000;
const SHOWN_MS = 60_000;
const ROWS = 50;
