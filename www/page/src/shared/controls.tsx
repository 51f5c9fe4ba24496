// Small controls that views share.
import type { ComponentChildren, VNode } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { keyOf } from "./key.ts";

/**
 * Announces texts to screen readers: an element for the view, and a function that fills it. Each text has its own element, because one
 * that is the same as before would not be announced.
 */
export function useAnnouncer() {
  const [{ text, count }, set] = useState({ text: "", count: 0 });
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  /** At once, or after this delay, if nothing else is announced until then. */
  const say = useCallback((text: string, delayMs?: number) => {
    const fill = () => set(({ count }) => ({ text, count: count + 1 }));
    clearTimeout(timer.current);
    if (delayMs === undefined) fill();
    else timer.current = setTimeout(fill, delayMs);
  }, []);
  const status = (
    <p class="unseen" role="status">
      <span key={count}>{text}</span>
    </p>
  );
  return [status, say] as const;
}

/** While a button is held, decisions come faster than anyone could hear: only the last one is announced. */
export const SAID_AFTER_MS = 300;

/** A button that copies a text, and confirms it. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [said, say] = useState("");
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => say(""), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = () =>
    // Plain HTTP has no clipboard.
    Promise.resolve()
      .then(() => navigator.clipboard.writeText(text))
      .then(
        () => say("Copied"),
        () => say("Cannot copy"),
      );
  return (
    <button type="button" class="small" onClick={copy} aria-live="polite">
      {said || label}
    </button>
  );
}

/** A choice: buttons in a row, one of them pressed. */
export function Choice<Id extends string>({
  label,
  options,
  value,
  onChange,
}: {
  label: string;
  options: readonly (readonly [id: Id, title: string])[];
  value: Id;
  onChange: (id: Id) => void;
}) {
  return (
    <fieldset class="choice">
      <legend class="unseen">{label}</legend>
      {options.map(([id, title]) => (
        <button type="button" key={id} aria-pressed={id === value} onClick={() => onChange(id)}>
          {title}
        </button>
      ))}
    </fieldset>
  );
}

/** A labelled field. */
export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is the child
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

/** A field for the key. */
export function KeyField({
  label,
  defaultValue = "",
  ...input
}: {
  label: string;
  defaultValue?: string;
  required?: boolean;
}) {
  return (
    <Field label={label}>
      <input
        {...input}
        name="key"
        defaultValue={defaultValue}
        autocomplete="off"
        spellcheck={false}
        onInput={({ currentTarget: field }) => {
          field.setCustomValidity(
            keyOf(field.value) === undefined ? 'Not JSON. Write a text that begins with [, { or " in quotes.' : "",
          );
        }}
      />
    </Field>
  );
}

/** Part of a view, with a heading. */
export function Panel({
  title,
  children,
  aside,
}: {
  title: string;
  children: ComponentChildren;
  aside?: ComponentChildren;
}) {
  return (
    <section class="panel" aria-label={title}>
      <div class="head">
        <h2>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

/** The error, if any. */
export function Problem({ text }: { text: string | undefined }) {
  if (!text) return null;
  return (
    <p class="mistakes" role="alert">
      {text}
    </p>
  );
}

/** A table with the same data as the chart beside it, closed at first. */
export function DataTable({
  caption,
  columns,
  rows,
}: {
  caption: string;
  columns: readonly string[];
  rows: () => readonly (readonly (string | number)[])[];
}) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <bdi>{caption}</bdi>
      </summary>
      {open && <Table label={caption} columns={columns} rows={rows()} />}
    </details>
  );
}

/** The content of a cell: a text, or a control with one. */
export type Cell = string | number | VNode;

/** A table that scrolls where it does not fit. */
export function Table({
  label,
  columns,
  rows,
}: {
  label: string;
  columns: readonly string[];
  rows: readonly (readonly Cell[])[];
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard
    <section class="scrolls" tabIndex={0} aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column} scope="col">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j} class={typeof cell !== "object" && String(cell).length > LINE ? "long" : undefined}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** Characters: a cell with more may have several lines. */
const LINE = 20;
