// The registry's records: the overrides in force, and the audit log. Both are read page by page.
import { useEffect, useState } from "preact/hooks";
import { Panel, Table } from "../shared/controls.tsx";
import { writtenKey } from "../shared/key.ts";
import { dateTime, number } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";
import type { Act, Audit, Override, Overrides, Service } from "./service.ts";

interface Props {
  readonly service: Service;
  /** How many changes the visitor has made: the list is reloaded after each. */
  readonly changes: number;
  readonly onProblem: (text: string) => void;
}

export function OverrideList(props: Props) {
  return (
    <Paged
      {...props}
      title="Overrides"
      label="Overrides in force"
      columns={["Policy", "Whose", "What", "Until", "Since"]}
      empty="No key or prefix has an override."
      read={async (service, next) => {
        const after = next === null ? "" : `&after=${next}`;
        const { overrides, next: rest } = await service.ask<Overrides>(`/v1/overrides?limit=${PAGE}${after}`);
        return { rows: overrides.map(overrideRow), next: rest };
      }}
    />
  );
}

export function AuditLog(props: Props) {
  return (
    <Paged
      {...props}
      title="Audit log"
      label="Acts, latest first"
      columns={["Act", "When", "By", "What", "Policy", "Key", "Before", "After"]}
      empty="No changes yet."
      read={async (service, next) => {
        const before = next === null ? "" : `&before=${next}`;
        const { acts, next: rest } = await service.ask<Audit>(`/v1/audit?limit=${PAGE}${before}`);
        return { rows: acts.map(actRow), next: rest };
      }}
    />
  );
}

type Next = string | number | null;
type Rows = readonly (readonly string[])[];

function Paged({
  service,
  changes,
  onProblem,
  title,
  label,
  columns,
  empty,
  read,
}: Props & {
  title: string;
  /** The name of the table, different from its panel's. */
  label: string;
  columns: readonly string[];
  empty: string;
  read: (service: Service, next: Next) => Promise<{ rows: Rows; next: Next }>;
}) {
  const [shown, setShown] = useState<{ rows: Rows; next: Next }>();
  const more = (before: Rows, from: Next) => {
    let isOver = false;
    read(service, from).then(
      ({ rows, next }) => {
        if (isOver) return;
        setShown({ rows: [...before, ...rows], next });
        onProblem("");
      },
      (error) => isOver || onProblem(reasonOf(error)),
    );
    return () => {
      isOver = true;
    };
  };
  useEffect(() => more([], null), [service, changes]);
  const { rows = [], next = null } = shown ?? {};
  return (
    <Panel
      title={title}
      aside={
        <button type="button" class="small" aria-label={`Read again: ${title}`} onClick={() => more([], null)}>
          Read again
        </button>
      }
    >
      <div class="stack">
        {rows.length > 0 ? (
          <Table label={label} columns={columns} rows={rows} />
        ) : (
          <p class="quiet">{shown ? empty : NOT_READ}</p>
        )}
        {next !== null && (
          <button type="button" aria-label={`Show more: ${title}`} onClick={() => more(rows, next)}>
            Show more
          </button>
        )}
      </div>
    </Panel>
  );
}

function overrideRow({ since, override }: Overrides["overrides"][number]): string[] {
  const { policy, key, prefix, until } = override;
  const whose = key === undefined ? `prefix ${prefix}` : writtenKey(key);
  return [policy, whose, terms(override), until === undefined ? "permanent" : dateTime(until), dateTime(since)];
}

function actRow({ number: count, at, by, act, policy, key, carry, before, after, replayed }: Act): string[] {
  return [
    number(count),
    dateTime(at),
    by,
    carry === undefined ? act : `${act}, carry ${carry}`,
    policy ?? "",
    key === undefined || key.length <= DIGITS ? (key ?? "") : `${key.slice(0, DIGITS)}…`,
    replayed ? "unknown: an earlier try did it" : state(before),
    state(after),
  ];
}

/** A state before or after an act: the levels of a key, an override, or a policy. */
function state(was: unknown): string {
  if (was === null || was === undefined) return "nothing";
  if (Array.isArray(was))
    return was.map(({ limit, level }: { limit: string; level: number }) => `${limit} ${number(level)}`).join(", ");
  if (!Object.hasOwn(Object(was), "policy")) return typeof was === "string" ? was : JSON.stringify(was);
  const { until } = was as Override;
  return `${terms(was as Override)}, ${until === undefined ? "permanent" : `until ${dateTime(until)}`}`;
}

function terms({
  policy: _,
  key: __,
  prefix: ___,
  until: ____,
  banned,
  unlimited,
  multiple,
  ...numbers
}: Override): string {
  if (banned) return "blocked";
  if (unlimited) return "without limits";
  return multiple === undefined ? JSON.stringify(numbers) : `${number(multiple)} times the policy`;
}

/** Shown in place of unreadable values. */
export const NOT_READ = "It could not be read.";

/** Digits of a hash: enough to tell keys apart. */
const DIGITS = 16;
/** Entries per page. */
const PAGE = 20;
