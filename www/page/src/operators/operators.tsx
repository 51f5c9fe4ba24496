// For operators of the service: what is decided, which policies there are, and single keys.
import { Fragment } from "preact";
import { useRef, useState } from "preact/hooks";
import { Field, Panel, Problem } from "../shared/controls.tsx";
import { number } from "../shared/numbers.ts";
import type { ViewProps } from "../views.ts";
import { Decided, REQUESTS_A_MINUTE } from "./decided.tsx";
import { OneKey } from "./one-key.tsx";
import { LOOKS_A_MINUTE, PolicyList } from "./policy-list.tsx";
import { AuditLog, OverrideList } from "./records.tsx";
import { Service } from "./service.ts";

export function Operators({ isShown }: ViewProps) {
  const [service, setService] = useState<Service>();
  const [problems, setProblems] = useState<Readonly<Record<string, string>>>({});
  const [policies, setPolicies] = useState<readonly string[]>([]);
  const [changes, setChanges] = useState(0);
  const count = () => setChanges((changes) => changes + 1);
  const form = useRef<HTMLFormElement>(null);
  // By panel: when one of them can be read again, the problem of another stays.
  const report = (panel: string) => (text: string) => setProblems((problems) => ({ ...problems, [panel]: text }));

  return (
    <div class="playground">
      <div class="stack settings first">
        <Panel title="Service">
          <form
            class="stack"
            ref={form}
            onSubmit={(event) => {
              event.preventDefault();
              setProblems({});
              setPolicies([]);
              setService(new Service(String(new FormData(form.current!).get("token"))));
            }}
          >
            <Field label="Token with the scope admin">
              <input name="token" type="password" required autocomplete="off" spellcheck={false} />
            </Field>
            <button type="submit" class="main">
              Show
            </button>
            <p class="quiet">
              The token stays in the memory of this tab. While the tab is visible, it sends{" "}
              {number(REQUESTS_A_MINUTE + LOOKS_A_MINUTE)} requests a minute, and up to five when you read or change
              something.
            </p>
          </form>
        </Panel>
        {/* By the service: what another token has read goes. */}
        {service && <OneKey key={service} service={service} policies={policies} onChanged={count} />}
      </div>
      <div class="stack">
        {[...new Set(Object.values(problems))].map((text) => (
          <Problem key={text} text={text} />
        ))}
        {service && (
          <Fragment key={service}>
            <Decided service={service} isShown={isShown} onProblem={report("decided")} />
            <PolicyList
              service={service}
              isShown={isShown}
              onProblem={report("policies")}
              onNames={setPolicies}
              onChanged={count}
            />
            <OverrideList service={service} changes={changes} onProblem={report("overrides")} />
            <AuditLog service={service} changes={changes} onProblem={report("audit")} />
          </Fragment>
        )}
      </div>
    </div>
  );
}
