// Operators' acts on one key, and their answers. The service's HTTP reference explains the members.
import type { Cost } from "./budget.js";
import type { Key, LimitNumbers, Problem, Verdict } from "./client.js";

/** The result of an act on the buckets of a policy. */
export interface KeyAct {
  readonly status: 200;
  readonly policy: string;
  readonly now: number;
  readonly replayed?: true;
  /** Whole tokens of each limit; negative in debt. Absent from a replay. */
  readonly before?: readonly { readonly limit: string; readonly level: number }[];
  readonly after: readonly { readonly limit: string; readonly level: number }[];
  /** Whether the audit log has it. If not, there is no registry or it did not answer, and the Worker's log has it. */
  readonly recorded: boolean;
  readonly stale_policies?: true;
}

/** What `consume` would decide, and why. */
export interface Explanation extends Verdict {
  readonly status: 200;
  /** Readable text: the limit that decides, its numbers, what is left, and when the request would pass. */
  readonly explanation: string;
  readonly banned?: true;
  readonly unlimited?: true;
  readonly stale_policies?: true;
}

/** A key is blocked: it has an override. */
export interface Blocked {
  readonly status: 200;
  /** In words. */
  readonly changes: readonly string[];
  /** How many overrides are new, and how many replace another. */
  readonly created: number;
  readonly replaced: number;
  /** The moment of the change. */
  readonly at: number | null;
}

/** The state of a key. */
export interface KeyState {
  readonly status: 200;
  /** The hash of the key, as lists and logs show it. */
  readonly object: string;
  readonly now: number;
  /** Every policy for which the key has a bucket. */
  readonly policies: readonly BucketState[];
  readonly reservations: readonly OpenReservation[];
  /** Tokens held for batches over several keys. */
  readonly holds: readonly { readonly ends_at: number; readonly tokens: readonly TakenTokens[] }[];
  /** The latest first; of the last seconds at least, as long as the object is in memory. */
  readonly decisions: readonly PastDecision[];
}

/** The bucket of a policy. */
export interface BucketState {
  readonly policy: string;
  /** Which shard of the budget, if the policy has `shards`. */
  readonly shard?: { readonly index: number; readonly count: number };
  readonly shadow?: true;
  readonly banned?: true;
  readonly banned_until?: number;
  readonly unlimited?: true;
  /** When the policy's version took effect, if it is from a registry. */
  readonly since?: number;
  readonly limits: readonly (LimitNumbers & {
    readonly remaining: number;
    readonly owed: number;
    readonly held: number;
    readonly reset_at: number | null;
    readonly level: { readonly tokens: number; readonly drops: number; readonly at: number };
  })[];
  /** Why the bucket cannot be read. */
  readonly error?: string;
}

/** Tokens of a limit, or of a policy whose limit has no name. */
export interface TakenTokens {
  readonly policy: string;
  readonly limit?: string;
  readonly tokens: number;
}

/** A reservation that is neither settled nor cancelled. */
export interface OpenReservation {
  readonly reservation: string;
  readonly opened_at: number;
  readonly expires_at: number;
  readonly unsettled: "keep" | "refund";
  readonly tokens: readonly TakenTokens[];
}

/** What was decided. */
export interface PastDecision {
  readonly at: number;
  readonly action: "consume" | "reserve" | "charge" | "refund" | "reset" | "hold" | "settle" | "cancel" | "extend";
  readonly policy: string;
  readonly cost: number;
  readonly allowed: boolean;
  readonly replayed?: true;
  /** The limit that refused. */
  readonly limit?: string;
  readonly retry_at?: number;
}

/** Requests and answers, by function name. */
export interface KeyCalls {
  /** Shows every bucket of a key, its reservations and its latest decisions. */
  inspect: [{ readonly key: OperatedKey }, KeyState | Problem];
  /** Explains what `consume` would decide, and takes nothing. */
  explain: [KeyBudget & { readonly cost?: Cost<string> }, Explanation | Problem];
  /** Fills all limits. */
  reset: [KeyBudget, KeyAct | Problem];
  /** Gives tokens, at most up to the capacity. */
  credit: [KeyBudget & { readonly cost?: Cost<string> }, KeyAct | Problem];
  /** Refuses a key for 10 000 ms to 366 days. Needs a registry. */
  block: [KeyBudget & { readonly for_ms: number }, Blocked | Problem];
}

interface KeyBudget {
  readonly policy: string;
  readonly key: OperatedKey;
}

/** A key, or its hash: the 32 hexadecimal digits that lists and logs show of it. */
export type OperatedKey = Key | { readonly hash: string };
