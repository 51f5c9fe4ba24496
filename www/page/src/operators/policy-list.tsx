// The policies in force, with what the lint says. One is changed only after the service has said what the change would do.
import { useEffect, useState } from "preact/hooks";
import { Field, Panel } from "../shared/controls.tsx";
import type { Policies, Service } from "./service.ts";

interface Draft {
  readonly name: string;
  readonly text: string;
  /** The version that it changes. */
  readonly etag: string;
  /** What the service says that the text would change; nothing before it was asked about this text. */
  readonly changes?: readonly string[];
}

export function PolicyList({
  service,
  isShown,
  onProblem,
  onNames,
  onChanged,
}: {
  service: Service;
  /** Else nothing is asked. */
  isShown: boolean;
  onProblem: (text: string) => void;
  onNames: (names: readonly string[]) => void;
  onChanged: () => void;
}) {
  const [policies, setPolicies] = useState<Policies["policies"]>([]);
  const [draft, setDraft] = useState<Draft>();
  const tried = (act: () => Promise<void>) =>
    act().then(
      () => onProblem(""),
      (error) => onProblem(error.message),
    );
  const load = async () => {
    const { policies } = await service.ask<Policies>("/v1/policies");
    setPolicies(policies);
    onNames(policies.map(({ name }) => name));
  };
  useEffect(() => setDraft(undefined), [service]);
  useEffect(() => {
    if (!isShown) return undefined;
    void tried(load);
    const timer = setInterval(() => document.visibilityState === "visible" && tried(load), LOOK_MS);
    return () => clearInterval(timer);
  }, [service, isShown]);

  const path = (name: string) => `/v1/policies/${encodeURIComponent(name)}`;
  const edit = (name: string) =>
    tried(async () => {
      const { policy, etag } = await service.ask<{ policy: unknown }>(path(name));
      setDraft({ name, etag, text: JSON.stringify(policy, undefined, 2) });
    });
  const check = ({ name, text, etag }: Draft) =>
    tried(async () => {
      const asked = { method: "PUT", body: text, match: etag } as const;
      const { changes } = await service.ask<{ changes: readonly string[] }>(`${path(name)}?dry_run=true`, asked);
      setDraft({ name, text, etag, changes });
    });
  const apply = ({ name, text, etag }: Draft) =>
    tried(async () => {
      await service.ask(path(name), { method: "PUT", body: text, match: etag });
      setDraft(undefined);
      onChanged();
      await load();
    });

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
                {version > 0 && `, in force since ${new Date(version).toLocaleString()}`}
              </li>
            </ul>
            {draft?.name === name ? (
              <form
                class="stack"
                onSubmit={(event) => {
                  event.preventDefault();
                  void (draft.changes ? apply(draft) : check(draft));
                }}
              >
                <Field label={`${name}, as JSON`}>
                  <textarea
                    value={draft.text}
                    spellcheck={false}
                    onInput={({ currentTarget: { value: text } }) => {
                      const { changes: _, ...rest } = draft;
                      setDraft({ ...rest, text });
                    }}
                  />
                </Field>
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
                  <button type="button" onClick={() => setDraft(undefined)}>
                    Cancel
                  </button>
                </div>
              </form>
            ) : (
              !fixed && (
                <button type="button" class="small" onClick={() => edit(name)}>
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

/** Others may change them. */
const LOOK_MS = 60_000;
export const LOOKS_A_MINUTE = 60_000 / LOOK_MS;
