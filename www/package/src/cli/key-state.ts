// The state of a key, in readable form.
import { coloured, columns, grouped, lasting, moment, plain, plural } from "./printed.js";

/** What the service answers to `inspect`. */
export interface KeyState {
  readonly object: string;
  readonly now: number;
  readonly policies: readonly BucketState[];
  readonly reservations: readonly OpenReservation[];
  readonly holds: readonly { readonly ends_at: number; readonly tokens: readonly Taken[] }[];
  readonly decisions: readonly PastDecision[];
}

export function standing({ object, now, policies, reservations, holds, decisions }: KeyState): string {
  const opened = reservations.map(({ reservation, tokens, opened_at, expires_at, unsettled }) => [
    reservation,
    taken(tokens),
    `opened ${moment(opened_at)}`,
    `expires ${moment(expires_at)}, then ${unsettled}`,
  ]);
  const held = holds.map(({ ends_at, tokens }) => [taken(tokens), `until ${moment(ends_at)}`]);
  const parts = [
    `hash ${object} at ${moment(now)}`,
    section(
      "buckets",
      columns(
        policies.flatMap((policy) => bucket(policy, now)),
        "  ",
      ),
    ),
    section("reservations", columns(opened, "  ")),
    section("held for batches", columns(held, "  ")),
    section("latest decisions", columns(decisions.map(decided), "  ")),
  ];
  return parts.join("\n");
}

interface BucketState {
  readonly policy: string;
  readonly shard?: { readonly index: number; readonly count: number };
  readonly shadow?: true;
  readonly banned?: true;
  readonly banned_until?: number;
  readonly unlimited?: true;
  readonly limits: readonly LimitState[];
  readonly error?: string;
}

interface LimitState {
  readonly name?: string;
  readonly kind: "token_bucket" | "fixed_window" | "first_use_window" | "rolling_window" | "slots";
  readonly rate: number;
  readonly period_ms: number;
  readonly calendar?: string;
  readonly capacity: number;
  readonly max_debt: number;
  readonly soft?: true;
  readonly remaining: number;
  readonly owed: number;
  readonly held: number;
  readonly reset_at: number | null;
}

interface Taken {
  readonly policy: string;
  readonly limit?: string;
  readonly tokens: number;
}

interface OpenReservation {
  readonly reservation: string;
  readonly opened_at: number;
  readonly expires_at: number;
  readonly unsettled: string;
  readonly tokens: readonly Taken[];
}

interface PastDecision {
  readonly at: number;
  readonly action: string;
  readonly policy: string;
  readonly cost: number;
  readonly allowed: boolean;
  readonly replayed?: true;
  readonly limit?: string;
  readonly retry_at?: number;
}

function bucket({ policy, shard, shadow, banned, banned_until, unlimited, limits, error }: BucketState, now: number) {
  const part = shard ? `, shard ${shard.index + 1} of ${shard.count}` : "";
  const rows = limits.map((limit) => [
    `${fullName(policy, limit.name)}${part}${shadow ? " (in shadow)" : ""}`,
    left(limit),
    numbers(limit),
    limit.kind === "slots" ? "each free when its reservation ends" : full(limit.reset_at, now),
  ]);
  if (banned) {
    const until = banned_until === undefined ? "for good" : `until ${moment(banned_until)}`;
    rows.push([policy, coloured("red", `BLOCKED ${until}`)]);
  }
  if (unlimited) rows.push([policy, "without limits: counted only"]);
  if (error !== undefined) rows.push([policy, plain(`cannot be read: ${error}`)]);
  return rows;
}

function left({ kind, remaining, owed, held, capacity, soft }: LimitState): string {
  if (kind === "slots") return `${grouped(held)} of ${plural(capacity, "slot")} in use`;
  const debt = soft ? `over by ${plural(owed, "token")}` : `owes ${plural(owed, "token")}`;
  const has = owed > 0 ? debt : `${grouped(remaining)} of ${plural(capacity, "token")} left`;
  return held > 0 ? `${has}, ${grouped(held)} held` : has;
}

function numbers({ kind, rate, period_ms, calendar, capacity, max_debt, soft }: LimitState): string {
  if (kind === "slots") return `at most ${grouped(capacity)} at once`;
  const paces = {
    token_bucket: "per",
    fixed_window: "in each window of",
    first_use_window: "in each window from first use of",
    rolling_window: "in any",
  };
  const pace = paces[kind];
  const debt = soft ? ", never refused" : max_debt > 0 ? `, debt at most ${grouped(max_debt)}` : "";
  const most = `at most ${grouped(capacity)}${debt}`;
  return `${rate === 0 ? "never refills" : `${grouped(rate)} ${calendar ? `in each calendar window (${calendar})` : `${pace} ${lasting(period_ms)}`}`}, ${most}`;
}

function full(at: number | null, now: number): string {
  if (at === null) return "never full again";
  return at <= now ? "full" : `full in ${lasting(at - now)}, ${moment(at)}`;
}

function decided({ at, action, policy, cost, allowed, replayed, limit, retry_at }: PastDecision): string[] {
  const by = limit === undefined ? "" : ` by ${limit}`;
  const until = retry_at === undefined ? "" : `, until ${moment(retry_at)}`;
  const verdict = allowed ? coloured("green", "allowed") : coloured("red", `refused${by}${until}`);
  return [moment(at), action, policy, grouped(cost), replayed ? `${verdict} (repeated)` : verdict];
}

const fullName = (policy: string, limit?: string) => (limit === undefined ? policy : `${policy}/${limit}`);
const taken = (all: readonly Taken[]) =>
  all.map(({ policy, limit, tokens }) => `${fullName(policy, limit)} ${grouped(tokens)}`).join(", ");
const section = (title: string, text: string) => (text === "" ? `\n${title}: none` : `\n${title}\n${text}`);
