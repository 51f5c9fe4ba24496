// One key: its state, the reason, and an operator's acts on it. Each act is shown with its line in the audit log.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Field, KeyField, Panel } from "../shared/controls.tsx";
import { keyOf, writtenKey } from "../shared/key.ts";
import { dateTime, number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { Audit, Service } from "./service.ts";

/** The hash of a key in lists and logs. It is also a text, so it must be clear which is meant. */
const LIKE_HASH = /^\s*[0-9a-f]{32}\s*$/i;

/** The acts, and their names in the audit log if they change anything. */
const OPERATIONS = {
  Inspect: "",
  Explain: "",
  Reset: "key.reset",
  Credit: "key.credited",
  Block: "override.",
  "Remove override": "override.",
} as const;
type Operation = keyof typeof OPERATIONS;

/** A key chosen elsewhere, by its hash: a new object each time. */
export interface Chosen {
  readonly policy: string;
  readonly key: { readonly hash: string };
}

export function OneKey({
  service,
  policies,
  chosen,
  onChanged,
}: {
  service: Service;
  policies: readonly string[];
  chosen: Chosen | undefined;
  onChanged: () => void;
}) {
  const [lines, setLines] = useState<readonly string[]>([]);
  const form = useRef<HTMLFormElement>(null);
  /** How many acts there were: results of earlier ones are outdated. */
  const acts = useRef(0);
  // Before the next event: who clicks and types at once types into the key that was clicked.
  useLayoutEffect(() => {
    if (!chosen) return;
    const field = (name: string) => form.current!.elements.namedItem(name) as HTMLInputElement | HTMLSelectElement;
    field("policy").value = chosen.policy;
    field("key").value = writtenKey(chosen.key);
    field("key").setCustomValidity("");
    field("key").focus();
    acts.current++;
    setLines([]);
  }, [chosen]);
  const perform = async (act: Operation) => {
    if (!form.current!.reportValidity()) return;
    const turn = ++acts.current;
    const say = (lines: readonly string[]) => turn === acts.current && setLines(lines);
    const { policy, key, cost, minutes } = Object.fromEntries(new FormData(form.current!)) as Record<string, string>;
    if (LIKE_HASH.test(key!)) {
      say([
        `This looks like the hash of a key: write {"hash":"${key}"}, or "${key}" in quotes for a key with this text.`,
      ]);
      return;
    }
    try {
      const removes = act === "Remove override";
      const body = {
        key: keyOf(key!),
        ...(act !== "Inspect" && { policy }),
        ...((act === "Explain" || act === "Credit") && { cost: Number(cost) }),
        ...(act === "Block" && { for_ms: Number(minutes) * 60_000 }),
      };
      const answer = removes
        ? await service.ask<Answer>("/v1/overrides", { method: "PUT", body: { removed: [{ policy, key: body.key }] } })
        : await service.ask<Answer>(`/v1/keys/${act.toLowerCase()}`, { method: "POST", body });
      const word = removes && answer.removed === 0 ? "" : OPERATIONS[act];
      const lines = said(act, answer);
      say(lines);
      if (!word) return;
      onChanged();
      say([...lines, await recorded(service, word, policy!, body.key, answer.at)]);
    } catch (error) {
      say([reasonOf(error)]);
    }
  };
  return (
    <Panel title="One key">
      <form class="stack" ref={form} onSubmit={(event) => event.preventDefault()}>
        <KeyField label="Key (text or JSON)" required />
        <Field label="Policy">
          <select name="policy">
            {policies.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </Field>
        <Field label="Tokens to explain or credit">
          <input name="cost" type="number" min={1} step={1} required defaultValue="1" />
        </Field>
        <Field label="Minutes to block">
          <input name="minutes" type="number" min={1} max={527_040} step={1} required defaultValue="10" />
        </Field>
        <div class="row">
          {(Object.keys(OPERATIONS) as Operation[]).map((act) => (
            <button key={act} type="button" onClick={() => perform(act)}>
              {act}
            </button>
          ))}
        </div>
        <ul class="quiet" aria-live="polite" aria-label="Result">
          {lines.map((line) => (
            <li key={line}>{line}</li>
          ))}
        </ul>
      </form>
    </Panel>
  );
}

/** The audit log's line about an act: found for an override by its moment, for a key by its name in the log. */
async function recorded(service: Service, word: string, policy: string, key: unknown, at: number | undefined) {
  try {
    const { object } =
      at === undefined ? await service.ask<Answer>("/v1/keys/inspect", { method: "POST", body: { key } }) : {};
    const { acts } = await service.ask<Audit>("/v1/audit?limit=100");
    const isIt = (act: Audit["acts"][number]) => (at === undefined ? act.key === object : act.at === at);
    const found = acts.find((one) => one.act.startsWith(word) && one.policy === policy && isIt(one));
    if (!found) return "It is not among the latest acts in the audit log.";
    return `Recorded as ${number(found.number)}: ${found.act} by ${found.by}, ${dateTime(found.at)}`;
  } catch (error) {
    return `It is done, but the audit log cannot be read. ${reasonOf(error)}`;
  }
}

interface Level {
  readonly limit: string;
  readonly level: number;
}

interface Answer {
  /** When the registry has changed something. */
  readonly at?: number;
  /** How many overrides. */
  readonly removed?: number;
  readonly explanation?: string;
  readonly before?: readonly Level[];
  readonly after?: readonly Level[];
  readonly object?: string;
  readonly policies?: readonly {
    readonly policy: string;
    readonly shard?: { readonly index: number; readonly count: number };
    readonly limits: readonly {
      readonly name?: string;
      readonly remaining: number;
      readonly owed: number;
      readonly soft?: true;
    }[];
  }[];
  readonly reservations?: readonly unknown[];
}

/** The answer in lines. */
function said(act: Operation, answer: Answer): string[] {
  if (answer.explanation) return [answer.explanation];
  if (answer.before && answer.after) {
    const levels = (all: readonly Level[]) => all.map(({ limit, level }) => `${limit} ${number(level)}`).join(", ");
    return [`${levels(answer.before)}; now ${levels(answer.after)}`];
  }
  if (act === "Block") return ["Blocked. It takes effect everywhere within ten seconds."];
  if (act === "Remove override")
    return [
      answer.removed ? "Removed. It takes effect everywhere within ten seconds." : "It has no override of its own",
    ];
  const limits = (answer.policies ?? []).flatMap(({ policy, shard, limits }) =>
    limits.map(({ name, remaining, owed, soft }) => {
      const debt = owed > 0 ? `, ${number(owed)} ${soft ? "over" : "owed"}` : "";
      const part = shard ? `, shard ${number(shard.index + 1)} of ${number(shard.count)}` : "";
      return `${name === undefined ? policy : `${policy}/${name}`}${part}: ${number(remaining)} left${debt}`;
    }),
  );
  return [
    `Its hash is ${answer.object}`,
    ...(limits.length > 0 ? limits : ["All budgets are full"]),
    `Open reservations: ${number(answer.reservations?.length ?? 0)}`,
  ];
}
