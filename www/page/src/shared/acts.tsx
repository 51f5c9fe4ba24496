// What a visitor can ask by hand: a click asks once, holding the button asks on.
import { useRef } from "preact/hooks";
import type { Amount } from "../levels/amount.ts";
import { Field } from "./controls.tsx";

export type Act = "consume" | "reserve" | "settle" | "cancel" | "refund";

export function Acts({
  limits,
  canSettle,
  cost,
  onCost,
  onAct,
}: {
  limits: readonly { readonly name?: string }[];
  /** Whether there is an open reservation. */
  canSettle: boolean;
  cost: Amount;
  onCost: (cost: Amount) => void;
  onAct: (act: Act, cost: Amount) => void;
}) {
  return (
    <div class="row">
      {ACTS.map(([act, title]) => (
        <Held
          key={act}
          title={title}
          isMain={act === "consume"}
          isOff={!canSettle && (act === "settle" || act === "cancel")}
          act={() => onAct(act, cost)}
        />
      ))}
      {limits.map(({ name }) => (
        <Field key={name} label={name === undefined ? "Cost" : `Cost in ${name}`}>
          <input
            type="number"
            min={0}
            value={typeof cost === "number" ? cost : cost[name!]}
            onInput={({ currentTarget: { valueAsNumber: tokens } }) => {
              if (!Number.isSafeInteger(tokens) || tokens < 0) return;
              onCost(typeof cost === "number" ? tokens : { ...cost, [name!]: tokens });
            }}
          />
        </Field>
      ))}
    </div>
  );
}

function Held({ title, isMain, isOff, act }: { title: string; isMain: boolean; isOff: boolean; act: () => void }) {
  const timer = useRef<ReturnType<typeof setInterval>>(undefined);
  const latest = useRef(act);
  latest.current = act;
  const isRepeated = useRef(false);
  const release = () => clearInterval(timer.current);
  const press = () => {
    release();
    isRepeated.current = false;
    timer.current = setInterval(() => {
      isRepeated.current = true;
      latest.current();
    }, HELD_MS);
  };
  const click = () => {
    if (!isRepeated.current) act();
    isRepeated.current = false;
  };
  return (
    <button
      type="button"
      disabled={isOff}
      class={isMain ? "main" : ""}
      onPointerDown={press}
      onPointerUp={release}
      onPointerLeave={release}
      onPointerCancel={release}
      onClick={click}
    >
      {title}
    </button>
  );
}

const ACTS: readonly (readonly [act: Act, title: string])[] = [
  ["consume", "Consume"],
  ["reserve", "Reserve"],
  ["settle", "Settle"],
  ["cancel", "Cancel"],
  ["refund", "Refund"],
];
/** Longer than a click. */
const HELD_MS = 250;
