// A visitor's requests by hand: a click or a key sends one, holding either repeats it.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { Amount } from "../levels/amount.ts";
import { Field } from "./controls.tsx";
import { number } from "./numbers.ts";
import { VERBS, type Verb } from "./verbs.ts";

export type { Verb } from "./verbs.ts";

export function Acts({
  limits,
  canSettle,
  cost,
  speed = 1,
  onCost,
  onAct,
}: {
  limits: readonly { readonly name?: string }[];
  /** Whether there is an open reservation. */
  canSettle: boolean;
  cost: Amount;
  /** How many times faster than real time a held button repeats. */
  speed?: number;
  onCost: (cost: Amount) => void;
  /** Sends one request, or as many as a held button needs; while its result is pending, a held button sends no more. */
  onAct: (verb: Verb, cost: Amount, heldTimes?: number) => unknown;
}) {
  /** Typed texts that are not costs, by the name of the limit. */
  const [wrong, setWrong] = useState<Readonly<Record<string, string>>>({});
  const row = useRef<HTMLDivElement>(null);
  const id = useId();
  const type = (name: string | undefined, { value, valueAsNumber: tokens }: HTMLInputElement) => {
    const { [name ?? ""]: _, ...others } = wrong;
    if (!Number.isSafeInteger(tokens) || tokens < 0) return setWrong({ ...others, [name ?? ""]: value });
    setWrong(others);
    onCost(typeof cost === "number" ? tokens : { ...cost, [name!]: tokens });
  };
  const isWrong = (name: string | undefined) => wrong[name ?? ""] !== undefined;
  const act = (verb: Verb, heldTimes?: number) => {
    const field = row.current!.querySelector<HTMLElement>("[aria-invalid=true]");
    if (field && verb !== "cancel") return field.focus();
    return onAct(verb, verb === "cancel" ? 0 : cost, heldTimes);
  };
  return (
    <div class="row" ref={row}>
      {VERBS.map(([verb, title]) => (
        <Held
          key={verb}
          title={title}
          isMain={verb === "consume"}
          isOff={!canSettle && (verb === "settle" || verb === "cancel")}
          speed={speed}
          act={(heldTimes) => act(verb, heldTimes)}
        />
      ))}
      {limits.map(({ name }) => (
        <Field key={name} label={labelOf(name)}>
          <input
            type="number"
            min={0}
            value={wrong[name ?? ""] ?? (typeof cost === "number" ? cost : cost[name!])}
            aria-invalid={isWrong(name)}
            aria-describedby={isWrong(name) ? `${id}${name}` : undefined}
            onInput={({ currentTarget }) => type(name, currentTarget)}
          />
        </Field>
      ))}
      {limits
        .filter(({ name }) => isWrong(name))
        .map(({ name }) => (
          <p class="mistakes" role="alert" key={name} id={`${id}${name}`}>
            {labelOf(name)}: write a whole number from 0 to {number(Number.MAX_SAFE_INTEGER)}
          </p>
        ))}
    </div>
  );
}

const labelOf = (name: string | undefined) => (name === undefined ? "Cost" : `Cost in ${name}`);

function Held({
  title,
  isMain,
  isOff,
  speed,
  act,
}: {
  title: string;
  isMain: boolean;
  isOff: boolean;
  speed: number;
  act: (heldTimes?: number) => unknown;
}) {
  const frame = useRef(0);
  const latest = useRef({ act, speed });
  latest.current = { act, speed };
  const isRepeated = useRef(false);
  const release = () => cancelAnimationFrame(frame.current);
  const hold = () => {
    release();
    isRepeated.current = false;
    let isPending = false;
    let last = performance.now() + HELD_MS;
    let due = 0;
    const step = async (now: number) => {
      frame.current = requestAnimationFrame(step);
      if (now < last) return;
      const { act, speed } = latest.current;
      // The first batch is one request: no time has passed in which more were missed.
      due = isRepeated.current ? Math.min(MOST_AT_ONCE, due + ((now - last) * speed) / HELD_MS) : 1;
      last = now;
      isRepeated.current = true;
      const times = Math.floor(due);
      if (times === 0) return;
      due -= times;
      if (isPending) return;
      isPending = true;
      await act(times);
      isPending = false;
    };
    frame.current = requestAnimationFrame(step);
  };
  const press = ({ button }: PointerEvent) => {
    if (button === 0) hold();
    else release();
  };
  const isPress = ({ key }: KeyboardEvent) => key === " " || key === "Enter";
  const pressKey = (event: KeyboardEvent) => {
    if (!isPress(event)) return;
    if (!event.repeat) hold();
    // Enter would click with each repetition, at whatever pace.
    else event.preventDefault();
  };
  const releaseKey = (event: KeyboardEvent) => {
    if (!isPress(event)) return;
    release();
    // The space bar would click now.
    if (isRepeated.current) event.preventDefault();
  };
  const click = ({ detail: clicks }: MouseEvent) => {
    // A key press does not belong to the pointer that held it.
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
      onKeyDown={pressKey}
      onKeyUp={releaseKey}
      onBlur={release}
      onClick={click}
    >
      {title}
    </button>
  );
}

/** Longer than a click: the delay until a button counts as held, and then the played time between two requests. */
const HELD_MS = 250;
/** After a busy moment it continues without making up for all missed requests. */
const MOST_AT_ONCE = 1000;
