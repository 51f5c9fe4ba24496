// What a visitor can ask by hand: a click asks once, holding the button asks on.
import { useRef } from "preact/hooks";
import type { Amount } from "../levels/amount.ts";
import { Field } from "../shared/controls.tsx";
import type { Policy } from "./policy.ts";
import type { Ask } from "./trace.ts";

export function Acts({
  policy,
  canSettle,
  cost,
  onCost,
  onAct,
}: {
  policy: Policy;
  /** Whether there is an open reservation. */
  canSettle: boolean;
  cost: Amount;
  onCost: (cost: Amount) => void;
  onAct: (verb: Ask["verb"], cost: Amount) => void;
}) {
  return (
    <div class="row">
      {ACTS.map(([verb, title]) => (
        <Held
          key={verb}
          title={title}
          isMain={verb === "consume"}
          isOff={!canSettle && (verb === "settle" || verb === "cancel")}
          act={() => onAct(verb, cost)}
        />
      ))}
      {policy.limits.map(({ name }) => (
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

const ACTS: readonly (readonly [verb: Ask["verb"], title: string])[] = [
  ["consume", "Consume"],
  ["reserve", "Reserve"],
  ["settle", "Settle"],
  ["cancel", "Cancel"],
  ["refund", "Refund"],
];
/** Longer than a click. */
const HELD_MS = 250;
