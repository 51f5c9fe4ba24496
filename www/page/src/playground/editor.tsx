// A policy as a form or as TOML: the TOML is stored, and the form shows it.
import { useRef, useState } from "preact/hooks";
import { Choice, Copy, Field, Panel } from "../shared/controls.tsx";
import { length, number } from "../shared/numbers.ts";
import { chosenOf, type Form, formOf, namesOf, type Policy, type Read, tomlOf } from "./policy.ts";
import type { Fields } from "./source.ts";

export function Editor({
  title,
  toml,
  chosen,
  read,
  onChange,
  onChoose,
}: {
  title: string;
  toml: string;
  /** The name of the policy that is played, if not the first. */
  chosen: string | undefined;
  read: Read | undefined;
  onChange: (toml: string) => void;
  onChoose: (name: string) => void;
}) {
  const [way, setWay] = useState<"form" | "toml">("form");
  const text = useRef<HTMLTextAreaElement>(null);
  const edited = useRef<Edited>(undefined);
  const form = formOf(toml, chosen);
  const names = namesOf(toml);
  /** Typing into one field is one change, so that a field that is emptied first keeps the comment on its line. */
  const edit = (field: string | undefined, changed: (form: Form) => Form) => {
    const { current: last } = edited;
    const from = field !== undefined && last?.field === field && last.to === toml ? last.from : toml;
    const to = tomlOf(from, changed(formOf(from, chosen)!));
    edited.current = { field, from, to };
    onChange(to);
  };
  const shown = form ? way : "toml";
  const goTo = (line: number) => {
    setWay("toml");
    requestAnimationFrame(() => {
      const lines = toml.split("\n");
      const start = lines.slice(0, line - 1).join("\n").length + Number(line > 1);
      text.current?.focus();
      text.current?.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    });
  };
  return (
    <Panel
      title={title}
      aside={
        <Choice
          label={`${title}: how to edit`}
          value={shown}
          options={[
            ["form", "Form"],
            ["toml", "TOML"],
          ]}
          onChange={setWay}
        />
      }
    >
      {names.length > 1 && (
        <Field label="Policy to play">
          <select value={chosenOf(names, chosen)!} onChange={({ currentTarget: { value } }) => onChoose(value)}>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </Field>
      )}
      {shown === "form" ? (
        <FormFields form={form!} onEdit={edit} />
      ) : (
        <>
          <textarea
            ref={text}
            aria-label={`${title} as TOML`}
            aria-invalid={Boolean(read?.mistakes)}
            value={toml}
            spellcheck={false}
            onInput={(event) => onChange(event.currentTarget.value)}
          />
          <Copy text={toml} label="Copy TOML" />
        </>
      )}
      {read?.mistakes && (
        <div role="alert">
          <ul class="mistakes">
            {read.mistakes.map(({ text, line }) => (
              <li key={text}>
                {text}{" "}
                {line !== undefined && (
                  <button type="button" class="small" onClick={() => goTo(line)}>
                    Line {number(line)}
                  </button>
                )}
              </li>
            ))}
          </ul>
        </div>
      )}
      {read && "policy" in read && read.policy && <Meaning policy={read.policy} />}
    </Panel>
  );
}

/** A text before typing into a field, and now. */
interface Edited {
  readonly field: string | undefined;
  readonly from: string;
  readonly to: string;
}

function FormFields({
  form,
  onEdit,
}: {
  form: Form;
  onEdit: (field: string | undefined, changed: (form: Form) => Form) => void;
}) {
  const change = (index: number, changes: Fields) =>
    onEdit(`${index} ${Object.keys(changes)}`, (form) => ({
      ...form,
      limits: form.limits.map((limit, i) =>
        i === index
          ? Object.fromEntries(Object.entries({ ...limit, ...changes }).filter(([, value]) => value !== undefined))
          : limit,
      ),
    }));
  const add = () =>
    onEdit(undefined, (form) => {
      const named = form.limits.map((limit, i) => ({ name: `limit${i + 1}`, ...limit }));
      return { ...form, limits: [...named, { name: `limit${named.length + 1}`, rate: 1000, period: "1h" }] };
    });
  const adder = useRef<HTMLButtonElement>(null);
  const remove = (index: number) => {
    onEdit(undefined, (form) => ({ ...form, limits: form.limits.filter((_, i) => i !== index) }));
    adder.current!.focus(); // the pressed button may disappear
  };
  return (
    <>
      {form.limits.map((limit, i) => (
        <fieldset class="form" key={i}>
          <legend>{String(limit.name ?? form.name)}</legend>
          <label class="field wide">
            <span>Refills</span>
            <select
              value={String(limit.kind ?? "token_bucket")}
              onChange={({ currentTarget: { value } }) =>
                change(
                  i,
                  value === "fixed_window"
                    ? { kind: value, offset: limit.offset ?? "0s" }
                    : { kind: undefined, offset: undefined },
                )
              }
            >
              <option value="token_bucket">evenly (token bucket)</option>
              <option value="fixed_window">all at once (fixed window)</option>
            </select>
          </label>
          {(limit.kind === "fixed_window" ? [...FIELDS, OFFSET] : FIELDS).map(([field, label]) => (
            <Setting
              key={field}
              label={label}
              value={String(limit[field] ?? "")}
              onChange={(value) => change(i, { [field]: settingOf(field, value) })}
            />
          ))}
          {form.limits.length > 1 && (
            <button type="button" class="wide" onClick={() => remove(i)}>
              Remove this limit
            </button>
          )}
        </fieldset>
      ))}
      <button type="button" ref={adder} onClick={add}>
        Add a limit
      </button>
    </>
  );
}

/** A field that shows what is being typed: `2.0`, on the way to `2.05`, is 2 in the TOML. */
function Setting({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  const [typed, setTyped] = useState<string>();
  return (
    <Field label={label}>
      <input
        value={typed ?? value}
        onInput={({ currentTarget: { value } }) => {
          setTyped(value);
          onChange(value);
        }}
        onBlur={() => setTyped(undefined)}
      />
    </Field>
  );
}

/** What the policy admits, in the reader's numbers and words. */
function Meaning({ policy }: { policy: Policy }) {
  return (
    <div class="stack">
      {policy.lint.limits
        .filter(({ is_enforced }) => is_enforced)
        .map((limit) => (
          <div key={limit.name}>
            {limit.name !== undefined && <h3>{limit.name}</h3>}
            <dl class="facts">
              {limit.long_run && (
                <>
                  <dt>In the long run</dt>
                  <dd>
                    {number(limit.long_run.tokens)} per {length(limit.long_run.period_ms)}
                  </dd>
                </>
              )}
              <dt>At once, at most</dt>
              <dd>{number(limit.burst)}</dd>
              {limit.debt && (
                <>
                  <dt>In debt, at most</dt>
                  <dd>{number(limit.debt.max_debt)}</dd>
                </>
              )}
              {(limit.debt ?? limit).within.map(({ period_ms, tokens }) => (
                <>
                  <dt>
                    Within any {length(period_ms)}
                    {limit.debt && ", with debt"}
                  </dt>
                  <dd>{number(tokens)}</dd>
                </>
              ))}
              <dt>From empty to full</dt>
              <dd>{length(limit.full_after_ms)}</dd>
            </dl>
          </div>
        ))}
      {policy.ownWindows.map(({ limit, opensAt }) => (
        <p class="quiet" key={limit}>
          Without an offset, each key’s windows of {limit} open at times of their own, derived from the key. Here they
          first open {length(opensAt)} after the start.
        </p>
      ))}
      {policy.lint.findings.map(({ code, limit, level, text }) => (
        <p class="quiet" key={`${code}${limit}`}>
          {level === "warning" ? "Warning" : "Note"}
          {limit !== undefined && `, ${limit}`}: {text}
        </p>
      ))}
    </div>
  );
}

/** A number if the text is one, so that the TOML has no quotes; the reader judges the rest. */
function settingOf(field: string, text: string): unknown {
  if (text.trim() === "") return undefined;
  return !["period", "name", "offset"].includes(field) && /^\d+(\.\d*)?$/.test(text.trim()) ? Number(text) : text;
}

const FIELDS: readonly (readonly [field: string, label: string])[] = [
  ["rate", "Tokens added"],
  ["period", "per"],
  ["capacity", "Capacity"],
  ["max_debt", "Maximum debt"],
];
const OFFSET = ["offset", "Opens at (offset)"] as const;
