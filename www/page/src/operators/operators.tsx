// For operators of the service: decisions, policies, and single keys.
import { useEffect, useRef, useState } from "preact/hooks";
import { Field, Panel, Problem } from "../shared/controls.tsx";
import { number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { ViewProps } from "../views.ts";
import { Decided, REQUESTS_A_MINUTE } from "./decided.tsx";
import { type Chosen, OneKey } from "./one-key.tsx";
import { LOOKS_A_MINUTE, PolicyList } from "./policy-list.tsx";
import { AuditLog, OverrideList } from "./records.tsx";
import { type Policies, Service } from "./service.ts";

export function Operators({ isShown }: ViewProps) {
  const [service, setService] = useState<Service>();
  const [problems, setProblems] = useState<Readonly<Record<string, string>>>({});
  const [policies, setPolicies] = useState<Policies["policies"]>([]);
  const [changes, setChanges] = useState(0);
  const [chosen, choose] = useState<Chosen>();
  const count = () => setChanges((changes) => changes + 1);
  const form = useRef<HTMLFormElement>(null);
  /** The latest token: answers to an earlier one are ignored. */
  const latest = useRef<Service>(undefined);
  // By panel: when one recovers, the problem of another stays.
  const report = (panel: Reader) => (text: string) => {
    if (latest.current !== service) return;
    // Not by what was read before the token was refused: it says nothing of that.
    if (text && service!.refusal) setService(undefined);
    setProblems((problems) => ({ ...problems, [panel]: text }));
  };
  const isAway = Boolean(problems.decided);
  useEffect(() => {
    if (!isAway) count(); // panels that failed meanwhile are reloaded
  }, [isAway]);
  // Shown all at once: a panel that appeared later would push the others down.
  const isReady = service !== undefined && READERS.every((panel) => panel in problems);

  const names = policies.map(({ name }) => name);
  const isWrong = Object.values(problems).some(Boolean);

  const show = (event: Event) => {
    event.preventDefault();
    const service = new Service(String(new FormData(form.current!).get("token")));
    latest.current = service;
    setProblems({});
    setPolicies([]);
    setService(undefined);
    choose(undefined);
    // A single request first: with a wrong token there is only its problem to show.
    service.ask<Policies>("/v1/policies").then(
      ({ policies }) => {
        if (latest.current !== service) return;
        setPolicies(policies);
        setProblems({ policies: "" });
        setService(service);
      },
      (error) => latest.current === service && setProblems({ service: reasonOf(error) }),
    );
  };

  return (
    <div class="playground">
      <div class="stack settings first">
        <Panel title="Service">
          <form class="stack" ref={form} onSubmit={show}>
            <Field label="Token with the scope admin">
              <input name="token" type="password" required autocomplete="off" spellcheck={false} />
            </Field>
            <button type="submit" class="main">
              Show
            </button>
            <p class="quiet">
              The token stays in the memory of this tab. While the tab is visible, it sends{" "}
              {number(REQUESTS_A_MINUTE + LOOKS_A_MINUTE)} requests a minute, and up to six when you read or change
              something.
            </p>
          </form>
        </Panel>
        {/* By the service: what another token has read goes. */}
        {latest.current && !isReady && !isWrong && <p class="quiet">Loading …</p>}
        {isReady && <OneKey key={service} service={service} policies={names} chosen={chosen} onChanged={count} />}
      </div>
      <div class="stack">
        {[...new Set(Object.values(problems))].map((text) => (
          <Problem key={text} text={text} />
        ))}
        {service && (
          <div key={service} hidden={!isReady}>
            <div class="stack">
              <Decided
                service={service}
                policies={names}
                isShown={isShown}
                onProblem={report("decided")}
                onChoose={choose}
              />
              <PolicyList
                service={service}
                policies={policies}
                changes={changes}
                isShown={isShown}
                onProblem={report("policies")}
                onRead={(policies) => latest.current === service && setPolicies(policies)}
                onChanged={count}
              />
              <OverrideList service={service} changes={changes} onProblem={report("overrides")} />
              <AuditLog service={service} changes={changes} onProblem={report("audit")} />
            </div>
          </div>
        )}
      </div>
    </div>
  );
}

/** The panels that reload by themselves. */
const READERS = ["decided", "policies", "overrides", "audit"] as const;
type Reader = (typeof READERS)[number];
