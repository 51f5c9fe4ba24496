// The playground: a policy, its requests, and its charts. All arithmetic is the package's; this file only arranges.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Levels } from "../levels/levels.tsx";
import { announced } from "../levels/words.ts";
import { Acts } from "../shared/acts.tsx";
import { Choice, Field, Panel, Problem, SAID_AFTER_MS, useAnnouncer } from "../shared/controls.tsx";
import { moment, number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { ViewProps } from "../views.ts";
import { Decision } from "./decision.tsx";
import { Editor } from "./editor.tsx";
import { decode, encode, type Scene, SPEEDS } from "./link.ts";
import { Play } from "./play.ts";
import { hasWindow, otherKind, type Policy, type Read, read } from "./policy.ts";
import { PRESETS } from "./presets.ts";
import { type Ask, passedOver, TRACES, type TraceKind, trace } from "./trace.ts";
import { summary } from "./words.ts";

export function Playground({ isShown }: ViewProps) {
  const [scene, setScene] = useState(sceneOfAddress);
  /** Shown in place of an unreadable link. */
  const [instead, setInstead] = useState(() => (isUnreadable() ? scene : undefined));
  const [reads, setReads] = useState<readonly Read[]>([]);
  const [policies, setPolicies] = useState<readonly Policy[]>([]);
  /** Why the reader of policies did not load, if so. */
  const [failure, setFailure] = useState("");
  const [now, setNow] = useState(scene.at);
  const [playing, setPlaying] = useState(false);
  const [picked, setPicked] = useState(scene.picked);
  /** How often it was opened by an address without a scene. */
  const [visits, visit] = useState(0);
  /** What the link omits, in words. */
  const [leftOut, setLeftOut] = useState("");
  const [status, say] = useAnnouncer();
  const { toml, policy: chosen, other, otherPolicy, acts } = scene;

  useEffect(() => {
    let isLatest = true;
    Promise.all([read(toml, chosen), ...(other === undefined ? [] : [read(other, otherPolicy)])]).then(
      (reads) => {
        if (!isLatest) return;
        setFailure("");
        setReads(reads);
        const policies = reads.flatMap(({ ...one }) => ("policy" in one && one.policy ? [one.policy] : []));
        // While there is an error, the last valid policy goes on.
        if (policies.length === reads.length) setPolicies(policies);
      },
      (error) => isLatest && setFailure(`The policy cannot be read; load the page again. ${reasonOf(error)}.`),
    );
    return () => {
      isLatest = false;
    };
  }, [toml, chosen, other, otherPolicy]);

  const [policy] = policies;
  const cost = useMemo(() => (policy ? costFor(scene.cost, policy) : 1), [scene.cost, policy]);
  const played = useMemo(
    () => (policy ? trace(scene.trace, policy.limits, cost, scene.csv) : undefined),
    [policy, scene.trace, cost, scene.csv],
  );
  const skipped = useMemo(() => (scene.trace === "csv" ? passedOver(scene.csv ?? "") : []), [scene.trace, scene.csv]);
  // Acts are not among its inputs: each is added to the existing play.
  const known = useRef(acts);
  known.current = acts;
  const play = useMemo(() => played && new Play(policies, played.asks, known.current), [policies, played]);
  // With requests only by hand it still plays for some seconds of the visitor's time.
  const byHandMs = scene.trace === "none" ? scene.speed * BY_HAND_MS : 0;
  const durationMs = Math.max(played?.durationMs ?? 60_000, byHandMs, acts.at(-1)?.at ?? 0);
  const shown = Math.min(now, durationMs);
  play?.advance(shown);

  useEffect(() => {
    if (!playing) return undefined;
    let frame = 0;
    let last = performance.now();
    const step = (at: number) => {
      // By the clock and not by frames, so that a busy moment loses no time.
      const passed = Math.max(0, at - last) * scene.speed;
      last = at;
      setNow((now) => Math.min(durationMs, now + passed));
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame);
  }, [playing, scene.speed, durationMs]);
  useEffect(() => {
    if (shown >= durationMs || !isShown) setPlaying(false);
  }, [shown, durationMs, isShown]);

  const change = useCallback((changes: Partial<Scene>) => {
    setScene((scene) => ({ ...scene, ...changes }));
  }, []);
  const restart = (changes: Partial<Scene>) => {
    change({ acts: [], ...changes });
    setNow(0);
    setPicked(undefined);
  };

  // The address follows when nothing moves; the previous page stays the one to go back to.
  useEffect(() => {
    if (playing || !isShown) return undefined;
    const { picked: _, csv, ...rest } = scene;
    const marked = { ...rest, at: Math.floor(shown), ...(picked !== undefined && { picked }) };
    const isPlayed = scene.trace === "csv" && csv !== undefined;
    const timer = setTimeout(() => {
      if (!/^(#playground.*)?$/.test(location.hash)) return;
      const whole = encode({ ...marked, ...(isPlayed && { csv }) });
      const text = whole ?? encode({ ...marked, acts: [] });
      history.replaceState(null, "", `#playground${text ? `?${text}` : ""}`);
      setLeftOut(whole ? "" : text ? ": it leaves out the CSV and the requests by hand" : ": it leaves out everything");
    }, 300);
    return () => clearTimeout(timer);
  }, [scene, shown, playing, picked, isShown, visits]);
  useEffect(() => {
    const arrive = () => {
      if (!location.hash.startsWith("#playground")) return;
      if (!location.hash.includes("?")) return visit((count) => count + 1);
      const scene = sceneOfAddress();
      setScene(scene);
      setInstead(isUnreadable() ? scene : undefined);
      setNow(scene.at);
      setPicked(scene.picked);
      setPlaying(false);
    };
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);

  const simulations = play?.simulations ?? [];
  const [index, of] = picked ?? [LATEST, 0];
  const whose = of === 1 && simulations[1] ? 1 : 0;
  const told = simulations[whose];
  const event = told?.events[Math.min(index, told.count(shown) - 1)];

  const tell = (index: number, of: number, delayMs?: number) => {
    setPicked(index < 0 ? undefined : [index, of]);
    const event = play?.simulations[of]?.events[index];
    if (event) say(announced(event, play!.simulations[of]!.limits), delayMs);
  };
  /** When a request was last made by hand. */
  const lastAct = useRef(0);
  const act = (verb: Ask["verb"], cost: Ask["cost"], heldTimes?: number) => {
    if (!play) return;
    const times = heldTimes ?? 1;
    const [from, to] = [Math.min(lastAct.current, shown), Math.floor(shown)];
    lastAct.current = shown;
    // The requests of a held button are spread over the time since the last frame.
    const asks = Array.from({ length: times }, (_, i) => {
      return { at: Math.floor(from + ((to - from) * (i + 1)) / times), verb, cost };
    });
    for (const ask of asks) play.act(ask);
    setScene(({ acts, ...scene }) => ({ ...scene, acts: [...acts, ...asks].sort((a, b) => a.at - b.at) }));
    tell(play.simulations[whose]!.count(to) - 1, whose, heldTimes && SAID_AFTER_MS);
  };
  const step = () => {
    const next = play?.next(shown);
    if (next === undefined) return;
    setPlaying(false);
    setNow(next);
    play!.advance(next);
    tell(play!.simulations[whose]!.count(next) - 1, whose);
  };
  /** Marks a decision of one of the policies: the nearest to the marked one, or the latest if that is marked. */
  const turnTo = (of: number) => {
    if (index < LATEST && event) tell(simulations[of]!.nearest(event.at, shown), of);
    else setPicked([LATEST, of]);
  };
  // Everything appears at once, so that nothing moves.
  if (reads.length === 0) return failure ? <Problem text={failure} /> : <p class="quiet">Loading …</p>;
  const preset = PRESETS.find((preset) => preset.toml === toml)?.id ?? "own";

  return (
    <>
      {status}
      <Problem
        text={
          failure ||
          (scene === instead
            ? "This link cannot be read. It may be cut off, or made by another version. The first example is shown instead."
            : undefined)
        }
      />
      <Choice
        label="Preset"
        value={preset}
        options={PRESETS.map(({ id, title }) => [id, title])}
        onChange={(id) => {
          const { toml, trace, speed } = PRESETS.find((preset) => preset.id === id)!;
          const { csv } = scene;
          setScene({ toml, trace, acts: [], at: 0, speed, ...(csv !== undefined && { csv }) });
          // With reduced motion, only the end is shown.
          const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
          setNow(isStill ? Infinity : 0);
          setPicked(undefined);
          setPlaying(!isStill);
        }}
      />
      <div class="playground">
        <div class="stack settings">
          <Editor
            title="Policy"
            toml={toml}
            chosen={chosen}
            read={reads[0]}
            onChange={(toml) => change({ toml })}
            onChoose={(policy) => change({ policy })}
          />
          {other !== undefined && (
            <Editor
              title="Compared with"
              toml={other}
              chosen={otherPolicy}
              read={reads[1]}
              onChange={(other) => change({ other })}
              onChoose={(otherPolicy) => change({ otherPolicy })}
            />
          )}
          {/* One button for both, which keeps the focus. */}
          <button
            type="button"
            onClick={() =>
              setScene(({ other, otherPolicy: _, ...scene }) => ({
                ...scene,
                ...(other === undefined && { other: otherKind(toml, chosen) }),
                ...(other === undefined && chosen !== undefined && { otherPolicy: chosen }),
              }))
            }
          >
            {other === undefined
              ? `Compare with a ${hasWindow(toml, chosen) ? "token bucket" : "fixed window"}`
              : "Stop comparing"}
          </button>
        </div>
        <div class="stack">
          <Panel
            title="Play"
            aside={
              <span class="now" aria-hidden="true">
                {moment(shown, durationMs)}
              </span>
            }
          >
            <div class="stack">
              <div class="row">
                <button
                  type="button"
                  class="main play"
                  onClick={() => {
                    if (shown >= durationMs) setNow(0);
                    setPlaying(!playing);
                  }}
                >
                  {playing ? "Pause" : "Play"}
                </button>
                <button type="button" onClick={step} disabled={play?.next(shown) === undefined}>
                  Step
                </button>
                <Choice
                  label="Speed"
                  value={String(scene.speed)}
                  options={SPEEDS.map((speed) => [String(speed), `${number(speed)}×`])}
                  onChange={(speed) => change({ speed: Number(speed) })}
                />
                <select
                  class="grow"
                  aria-label="Trace"
                  value={scene.trace}
                  onChange={(event) => restart({ trace: event.currentTarget.value as TraceKind })}
                >
                  {TRACES.map(([id, title]) => (
                    <option key={id} value={id}>
                      {title}
                    </option>
                  ))}
                </select>
              </div>
              {scene.trace === "csv" && (
                <Field label="Lines of seconds,cost,verb; the last two may be left out">
                  {(scene.csv ?? "").length < MOST_TO_EDIT ? (
                    <textarea
                      value={scene.csv ?? ""}
                      onInput={(event) => restart({ csv: event.currentTarget.value })}
                      spellcheck={false}
                    />
                  ) : (
                    <output>{number(played?.asks.length ?? 0)} requests</output>
                  )}
                  {skipped.length > 0 && (
                    <output class="mistakes">
                      {skipped.length === 1
                        ? `Line ${number(skipped[0]!)} is not of this form`
                        : `${number(skipped.length)} lines are not of this form, the first is line ${number(skipped[0]!)}`}
                    </output>
                  )}
                  <input
                    type="file"
                    accept=".csv,text/csv,text/plain"
                    aria-label="A file of such lines"
                    onChange={async ({ currentTarget: { files } }) => {
                      if (files?.[0]) restart({ csv: await files[0].text() });
                    }}
                  />
                </Field>
              )}
              <input
                type="range"
                aria-label="Moment"
                aria-valuetext={moment(shown, durationMs)}
                min={0}
                max={SLIDER_STEPS}
                step={1}
                value={Math.round((shown / durationMs) * SLIDER_STEPS)}
                onInput={({ currentTarget: { valueAsNumber: step } }) => {
                  setPlaying(false);
                  setNow((step / SLIDER_STEPS) * durationMs);
                }}
              />
              {policy && (
                <Acts
                  key={policy.name}
                  limits={policy.limits}
                  canSettle={simulations[0]?.open(shown) ?? false}
                  cost={cost}
                  speed={scene.speed}
                  onCost={(cost) => change({ cost })}
                  onAct={act}
                />
              )}
              {leftOut && <p class="quiet">Too much for a link{leftOut}</p>}
            </div>
          </Panel>
          <div class="sides">
            {simulations.map((simulation, i) => (
              <Levels
                key={i}
                track={simulation}
                title={summary(simulation.policy)}
                now={Math.floor(shown)}
                to={durationMs}
                selected={event?.at}
                onPick={(index) => tell(index, i)}
              />
            ))}
          </div>
          {told && (
            <Decision
              simulation={told}
              event={event}
              first={played?.asks[0] ?? { at: 0, verb: "consume", cost }}
              durationMs={durationMs}
              of={simulations.length > 1 ? whose : undefined}
              onOf={turnTo}
            />
          )}
        </div>
      </div>
    </>
  );
}

/** In place of a decision's number: the latest. */
const LATEST = Number.MAX_SAFE_INTEGER;
/** Characters: a field with more is slow. */
const MOST_TO_EDIT = 20_000;
/** Of the visitor's time: at 1,000× a minute would be over at once. */
const BY_HAND_MS = 10_000;
/** Of the slider: less than two pixels each, and a held key goes through them in some seconds. */
const SLIDER_STEPS = 500;

function sceneOfAddress(): Scene {
  const [{ toml, trace, speed }] = PRESETS as [(typeof PRESETS)[number]];
  return decode(linked()) ?? { toml, trace, acts: [], at: 40_000, speed }; // the whole trace
}

function isUnreadable(): boolean {
  return linked() !== "" && decode(linked()) === undefined;
}

/** A scene in an address. */
function linked(): string {
  return location.hash.startsWith("#playground?") ? location.hash.slice("#playground?".length) : "";
}

/** The chosen cost, if it fits the policy; otherwise one that shows something. */
function costFor(chosen: Ask["cost"] | undefined, { limits }: Policy): Ask["cost"] {
  const named = limits.every(({ name }) => name !== undefined);
  if (!named) return typeof chosen === "number" ? chosen : 1;
  const known = typeof chosen === "object" ? chosen : {};
  return Object.fromEntries(
    limits.map(({ name, capacity = 1 }) => [name!, known[name!] ?? (capacity > 1000 ? Math.round(capacity / 20) : 1)]),
  );
}
