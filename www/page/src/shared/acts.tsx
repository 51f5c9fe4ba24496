// What a visitor can ask by hand: a click asks once, holding the button asks on.
import { useEffect, useRef } from "preact/hooks";
import type { Amount } from "../levels/amount.ts";
import { Field } from "./controls.tsx";

export type Verb = "consume" | "reserve" | "settle" | "cancel" | "refund";

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
  /** While what it returns is pending, a button that is held asks nothing more. */
  onAct: (verb: Verb, cost: Amount) => unknown;
}) {
  return (
    <div class="row">
      {VERBS.map(([verb, title]) => (
        <Held
          key={verb}
          title={title}
          isMain={verb === "consume"}
          isOff={!canSettle && (verb === "settle" || verb === "cancel")}
          act={() => onAct(verb, verb === "cancel" ? 0 : cost)}
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

function Held({ title, isMain, isOff, act }: { title: string; isMain: boolean; isOff: boolean; act: () => unknown }) {
  const timer = useRef<ReturnType<typeof setInterval>>(undefined);
  const latest = useRef(act);
  latest.current = act;
  const isRepeated = useRef(false);
  const release = () => clearInterval(timer.current);
  const press = ({ button }: PointerEvent) => {
    release();
    isRepeated.current = false;
    if (button !== 0) return;
    let isPending = false;
    timer.current = setInterval(async () => {
      isRepeated.current = true;
      if (isPending) return;
      isPending = true;
      await latest.current();
      isPending = false;
    }, HELD_MS);
  };
  const click = ({ detail: clicks }: MouseEvent) => {
    // A key press is none of the pointer that has held it.
    if (clicks === 0 || !isRepeated.current) act();
    isRepeated.current = false;
  };
  useEffect(() => {
    if (isOff) release(); // a disabled button is never released
  }, [isOff]);
  useEffect(() => release, []);
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

const VERBS: readonly (readonly [verb: Verb, title: string])[] = [
  ["consume", "Consume"],
  ["reserve", "Reserve"],
  ["settle", "Settle"],
  ["cancel", "Cancel"],
  ["refund", "Refund"],
];
/** Longer than a click. */
const HELD_MS = 250;
