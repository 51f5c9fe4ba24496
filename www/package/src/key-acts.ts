// What operators do with one key, and what they are answered. The service's HTTP reference explains the members.
import type { Cost } from "./budget.js";
import type { Key, LimitNumbers, Problem, Verdict } from "./client.js";

/** What was done to the buckets of a policy. */
export interface KeyAct {
  readonly status: 200;
  readonly policy: string;
  readonly now: number;
  readonly replayed?: true;
  /** Whole tokens of each limit; below zero, what is owed. Absent from the repetition of an earlier request. */
  readonly before?: readonly { readonly limit: string; readonly level: number }[];
  readonly after: readonly { readonly limit: string; readonly level: number }[];
  /** Whether the audit log has it. If not, there is no registry or it did not answer, and the log has it. */
  readonly recorded: boolean;
  readonly stale_policies?: true;
}

/** What `consume` would decide, and why. */
export interface Explanation extends Verdict {
  readonly status: 200;
  /** For people: the limit that decides, its numbers, what is left, and when the request would pass. */
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
  /** How many overrides are new, and how many take the place of another. */
  readonly created: number;
  readonly replaced: number;
  /** The moment of the change. */
  readonly at: number | null;
}

/** How a key stands. */
export interface KeyState {
  readonly status: 200;
  /** The hash of the key, as lists and logs show it. */
  readonly object: string;
  readonly now: number;
  /** Every policy for which the key has a bucket. */
  readonly policies: readonly BucketState[];
  readonly reservations: readonly OpenReservation[];
  /** What is held for batches over several keys. */
  readonly holds: readonly { readonly ends_at: number; readonly tokens: readonly TakenTokens[] }[];
  /** The latest first; of some seconds or more, as long as the object is in memory. */
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
  /** Since when the policy's version is in force, if a registry has it. */
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

/** The requests and the answers, by the name of the function. */
export interface KeyCalls {
  /** Shows every bucket of a key, its reservations and its latest decisions. */
  inspect: [{ readonly key: OperatedKey }, KeyState | Problem];
  /** Explains what `consume` would decide, and takes nothing. */
  explain: [KeyBudget & { readonly cost?: Cost<string> }, Explanation | Problem];
  /** Fills all limits. */
  reset: [KeyBudget, KeyAct | Problem];
  /** Gives tokens, at most up to the capacity. */
  credit: [KeyBudget & { readonly cost?: Cost<string> }, KeyAct | Problem];
  /** Refuses a key for 10 000 ms to 366 days. It needs a registry. */
  block: [KeyBudget & { readonly for_ms: number }, Blocked | Problem];
}

interface KeyBudget {
  readonly policy: string;
  readonly key: OperatedKey;
}

/** A key, or its hash: the 32 hexadecimal digits that lists and logs show of it. */
export type OperatedKey = Key | { readonly hash: string };
