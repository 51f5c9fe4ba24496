// The policies in force, with their lint. One is changed only after the service has reported what the change would do.
import { useEffect, useRef, useState } from "preact/hooks";
import { Field, Panel, Problem } from "../shared/controls.tsx";
import { dateTime } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { Policies, Service } from "./service.ts";

interface Draft {
  readonly name: string;
  readonly text: string;
  /** The version that it changes. */
  readonly etag: string;
  /** The service's dry run of this text; nothing before it has been requested. */
  readonly changes?: readonly string[];
  /** Why the dry run or the change failed. */
  readonly problem?: string;
}

export function PolicyList({
  service,
  policies,
  changes,
  isShown,
  onProblem,
  onRead,
  onChanged,
}: {
  service: Service;
  /** The policies as last read. */
  policies: Policies["policies"];
  /** Reloads them each time it changes. */
  changes: number;
  /** Otherwise nothing is requested. */
  isShown: boolean;
  onProblem: (text: string) => void;
  onRead: (policies: Policies["policies"]) => void;
  onChanged: () => void;
}) {
  const [draft, setDraft] = useState<Draft>();
  /** The policy whose text was just closed: the focus returns to where it came from. */
  const left = useRef("");
  const tried = (act: () => Promise<void>) =>
    act().then(
      () => onProblem(""),
      (error) => onProblem(reasonOf(error)),
    );
  /** Updates a draft, unless it was changed or closed meanwhile. */
  const become = ({ name, text, etag }: Draft, more: Partial<Draft> | undefined) =>
    setDraft((now) =>
      now?.name === name && now.text === text && now.etag === etag ? more && { name, text, etag, ...more } : now,
    );
  const load = async () => {
    const { policies } = await service.ask<Policies>("/v1/policies");
    onRead(policies);
  };
  /** Starts with the policies just read. */
  const isNew = useRef(true);
  useEffect(() => {
    const isRead = isNew.current;
    isNew.current = false;
    if (!isShown) return undefined;
    if (!isRead) void tried(load);
    const timer = setInterval(() => document.visibilityState === "visible" && tried(load), LOOK_MS);
    return () => clearInterval(timer);
  }, [service, isShown, changes]);

  const path = (name: string) => `/v1/policies/${encodeURIComponent(name)}`;
  /** Counts edits and loads: a text that arrives late replaces nothing. */
  const edits = useRef(0);
  const edit = (name: string) =>
    tried(async () => {
      const turn = ++edits.current;
      const { policy, etag } = await service.ask<{ policy: unknown }>(path(name));
      if (turn === edits.current) setDraft({ name, etag, text: JSON.stringify(policy, undefined, 2) });
    });
  const put = async (draft: Draft) => {
    const { name, text: body, etag: match, changes } = draft;
    const address = changes ? path(name) : `${path(name)}?dry_run=true`;
    try {
      const answer = await service.ask<{ changes: readonly string[] }>(address, { method: "PUT", body, match });
      if (!changes) return become(draft, { changes: answer.changes });
      left.current = name;
      become(draft, undefined);
    } catch (error) {
      return become(draft, { problem: reasonOf(error) });
    }
    onChanged();
  };

  return (
    <Panel
      title="Policies"
      aside={
        <button type="button" class="small" aria-label="Read again: Policies" onClick={() => tried(load)}>
          Read again
        </button>
      }
    >
      <div class="stack">
        {policies.map(({ name, version, source, fixed, lint }) => (
          <section key={name} aria-label={`Policy ${name}`}>
            <h3>{name}</h3>
            <ul class="quiet">
              {lint.map((line) => (
                <li key={line}>{line}</li>
              ))}
              <li>
                from {source === "admin" ? "an operator" : "the deployment"}
                {version > 0 && `, in force since ${dateTime(version)}`}
              </li>
            </ul>
            {draft?.name === name ? (
              <form
                class="stack"
                onSubmit={(event) => {
                  event.preventDefault();
                  void put(draft);
                }}
              >
                <Field label={`${name}, as JSON`}>
                  <textarea
                    ref={focus}
                    value={draft.text}
                    spellcheck={false}
                    aria-invalid={draft.problem !== undefined}
                    onInput={({ currentTarget: { value: text } }) => {
                      edits.current += 1;
                      setDraft({ name, etag: draft.etag, text });
                    }}
                  />
                </Field>
                <Problem text={draft.problem} />
                {/* Says what would change, and that the button now applies it. */}
                <div class="stack" aria-live="polite">
                  {draft.changes && (
                    <ul aria-label="What would change">
                      {draft.changes.map((line) => (
                        <li key={line}>{line}</li>
                      ))}
                    </ul>
                  )}
                  <div class="row">
                    <button type="submit" class="main">
                      {draft.changes ? "Apply" : "What would change?"}
                    </button>
                    <button
                      type="button"
                      onClick={() => {
                        left.current = name;
                        setDraft(undefined);
                      }}
                    >
                      Cancel
                    </button>
                  </div>
                </div>
              </form>
            ) : (
              !fixed && (
                <button
                  type="button"
                  class="small"
                  ref={(button) => {
                    if (left.current !== name) return;
                    left.current = "";
                    focus(button);
                  }}
                  onClick={() => edit(name)}
                >
                  Edit {name}
                </button>
              )
            )}
          </section>
        ))}
      </div>
    </Panel>
  );
}

const focus = (element: HTMLElement | null) => element?.focus();

/** Others may change them. */
const LOOK_MS = 60_000;
export const LOOKS_A_MINUTE = 60_000 / LOOK_MS;
