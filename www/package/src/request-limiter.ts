// The limiters that can be in front of a server, with the answers of the service.
import { Answers, type Written } from "./answers.js";
import type { Cost } from "./budget.js";
import type {
  BudgetRequest,
  Client,
  Inspection,
  Key,
  LimitNumbers,
  PolicyName,
  PolicyNames,
  Problem,
} from "./client.js";
import { TollgateError } from "./errors.js";
import type { Answer, Counted } from "./in-front.js";
import type { KeyedLimiter, Key as KeyOfMany } from "./keyed-limiter.js";
import type { LeasedGrant, LeasedRefusal, LeasingLimiter } from "./leasing-limiter.js";
import { type LocalAnswer, localAnswer } from "./local-answer.js";
import { networkOf } from "./network.js";
import { answerOf } from "./not-granted.js";

/** What can limit requests: the budgets of this process, leases of a service's, or the service itself. */
export type RequestLimiter<P extends PolicyNames = string> =
  | KeyedLimiter
  | KeyedLimiter<string>
  | LeasingLimiter<P>
  | Client<P>
  | Client<P, true>;

/** What limits, and how it is called. */
export interface LimitedBy<P extends PolicyNames = string> {
  /** A `LeasingLimiter` makes one more call a minute for each key, for the numbers in the headers: its client needs the scope `consume`, too. */
  readonly limiter: RequestLimiter<P>;
  /**
   * For a `Client`, the policy. For a `KeyedLimiter`, its name in headers and answers, `"default"` by default: give each its own where
   * several are in front of one route. A `LeasingLimiter` has one.
   */
  readonly policy?: PolicyName<P>;
  /**
   * Charges only failed requests, as for attempts to sign in. Each takes its tokens when it comes, so that many at once are limited, too.
   * They are given back once it has been answered with a status below 400. Not with a `LeasingLimiter`; a `Client` needs the scope
   * `adjust`. Default: `false`.
   */
  readonly failedOnly?: boolean;
}

/** Counts requests. */
export interface Counter<P extends PolicyNames> {
  consume(counted: Counted<P>): Promise<LocalAnswer>;
  /**
   * Where only failed requests are charged: gives the tokens of one that has passed back, if its response's status says that it has not
   * failed.
   */
  responded(counted: Counted<P>, answer: LocalAnswer, status: number): void;
}

/** The counter of a limiter. Throws a {@link TollgateError} for options that do not fit it. */
export function counterOf<P extends PolicyNames>({ limiter, policy, failedOnly }: LimitedBy<P>): Counter<P> {
  const [consume, refund] = callsOf(limiter, policy) as unknown as [Counter<P>["consume"], Refund<P>?];
  if (failedOnly && !refund)
    throw new TollgateError("failedOnly_unknown", "a LeasingLimiter cannot give tokens back: failedOnly needs another");
  return {
    consume,
    responded(counted, answer, status) {
      const { degraded, unlimited } = answer as { readonly degraded?: unknown; readonly unlimited?: unknown };
      const isTaken = !degraded && !unlimited;
      if (isTaken && status < 400) void refund?.(counted);
    },
  };
}

type Refund<P extends PolicyNames> = (counted: Counted<P>) => unknown;
type Calls = [consume: (counted: Counted) => Promise<LocalAnswer>, refund?: Refund<string>];

function callsOf(limiter: unknown, policy: string | undefined): Calls {
  // By their methods, because a program may have two copies of the package.
  const has = (method: string) =>
    typeof (limiter as Record<string, unknown> | null | undefined)?.[method] === "function";
  if (has("consumeEach")) return callsOfKeyed(limiter as KeyedLimiter<string>, policy ?? "default");
  if (has("limitsFor")) return callsOfLeasing(limiter as LeasingLimiter);
  if (!has("lease"))
    throw new TollgateError(
      "limiter_unknown",
      `limiter must be a KeyedLimiter, a LeasingLimiter or a Client, not ${String(limiter)}`,
    );
  if (policy === undefined) throw new TollgateError("policy_unknown", "a Client needs the name of a `policy`");
  return callsOfClient(limiter as Client, policy);
}

function callsOfKeyed(limiter: KeyedLimiter<string>, policy: string): Calls {
  const answers = new Answers();
  answers.setLimits(policy, limiter.limits);
  const written = ({ key, cost }: Counted): Written => {
    // A list, or anything that a client has sent as JSON, which may have no text.
    if (typeof key !== "string" && typeof (key as { readonly ip?: unknown }).ip !== "string")
      return answers.badRequest("key must be a text or an address");
    try {
      const consumed = limiter.consumeEach(key as KeyOfMany, cost as Cost<string>);
      const { now } = consumed;
      return "limits" in consumed
        ? answers.decided(cost as Cost<string>, now, consumed.limits)
        : answers.noRoom(consumed.roomAt - now);
    } catch (error) {
      // A client can cause a wrong key or cost.
      if (/^(cost|ip|key)_/.test(codeOf(error))) return answers.badRequest((error as Error).message);
      throw error;
    }
  };
  return [
    async (counted) => localAnswer(written(counted)),
    ({ key, cost }) => limiter.refund(key as KeyOfMany, cost as Cost<string>),
  ];
}

function callsOfClient(client: Client, policy: string): Calls {
  return [
    async (counted) => {
      const request = { policy, ...counted } as BudgetRequest;
      return localAnswer(await client.consume(request).catch(answerOf).then(writtenOf).catch(undecided));
    },
    // What is not given back stays charged.
    (counted) => client.refund({ policy, ...counted } as BudgetRequest).catch(() => {}),
  ];
}

function callsOfLeasing(limiter: LeasingLimiter): Calls {
  const { policy } = limiter;
  const answers = new Answers();
  /** Those of the answers, and of each inspection, as text. */
  let settings = "";
  const texts = new WeakMap<Inspection, string>();

  /** Sets the limits of a key. Those of the last key were others, if one of them has an override. */
  const setLimits = (inspection: Inspection) => {
    const text = texts.get(inspection) ?? JSON.stringify(inspection.limits.map(limitOf));
    texts.set(inspection, text);
    if (text !== settings) answers.setLimits(policy, JSON.parse(text));
    settings = text;
  };

  const written = async ({ key, cost }: Counted): Promise<Written> => {
    const whose = networkIn(key);
    const decision = await limiter.consume(whose, cost);
    const inspection = await limiter.limitsFor(whose);
    const { limits, unlimited, banned, banned_until } = inspection;
    // Refused, it has limits again.
    const isKnown = limits.length > 0 && !(unlimited && decision.allowed);
    // Nothing is known of a budget if the service could not decide.
    if (decision.allowed && (decision.degraded || !isKnown)) return { status: 200, headers: {}, body: "{}" };
    if (!isKnown) return answers.unavailable(false); // refused by limits that have just changed
    const now = momentOf(decision);
    // All that is known is what is left here and at the service: as if each limit had just that.
    const left = decision.remaining + limiter.leftFor(whose);
    const each = limits.map(({ kind, period_ms, capacity, reset_at }) => {
      const at = kind === "fixed_window" ? windowAt(now, period_ms, reset_at ?? now) : now;
      return { decision, snapshot: { tokens: Math.min(left, capacity), drops: 0, at } };
    });
    setLimits(inspection);
    // The inspection may be a minute old: a ban that has ended since is still in it, and so is one that was lifted.
    const lasts = (banned_until ?? Infinity) > now;
    const isBanned =
      !!banned && lasts && !decision.allowed && (banned_until === undefined) === (decision.retryAt === Infinity);
    return answers.decided(cost as Cost<string>, now, each, isBanned);
  };
  return [async (counted) => localAnswer(await written(counted).catch(undecided))];
}

/** A limit of an inspection. */
function limitOf({ name, kind, rate, period_ms: periodMs, capacity, max_debt: maxDebt }: LimitNumbers): object {
  return { name, kind, rate, periodMs, capacity, maxDebt };
}

/** When the current window opened, by the moment at which one of them opens. */
function windowAt(now: number, periodMs: number, opensAt: number): number {
  const sinceMs = (now - opensAt) % periodMs;
  return now - sinceMs - (sinceMs < 0 ? periodMs : 0);
}

/** The moment of a decision, by the limiter's clock. */
function momentOf(decision: LeasedGrant | LeasedRefusal): number {
  if (decision.allowed) return decision.readyAt;
  return decision.retryAt < Infinity ? decision.retryAt - decision.retryAfterMs : Date.now();
}

/** An IPv6 address as its network's, because each address would have leases of its own. */
function networkIn(key: Key): Key {
  const ip: unknown = (key as { readonly ip?: unknown })?.ip;
  if (typeof ip !== "string") return key;
  const network = networkOf(ip, IPV6_PREFIX);
  return network.includes(":") ? { ip: `${network}::` } : key;
}

/** What an error of a client or a leasing limiter says: its answer, or that there was none. Others are thrown again. */
function undecided(error: unknown): Written {
  const code = codeOf(error);
  const { cause } = error as { readonly cause?: unknown };
  // "refused" is of a client that throws, made by another copy of the package.
  const isAnswer = code === "not_granted" || code === "refused";
  if (isAnswer && (cause as Partial<Answer> | undefined)?.headers) {
    // A 400 that no client can cause.
    if (NO_LEASE.test((cause as Problem).detail)) throw error;
    return writtenOf(cause as Problem);
  }
  if (/^(cost|ip)_/.test(code)) return ofNone().badRequest((error as Error).message);
  if (NO_ANSWER.includes(code)) return ofNone().unavailable(code === "timeout");
  throw error;
}

/** An answer of the service's, with the headers that are for the client. */
function writtenOf(answer: { readonly status: number; readonly headers: Headers }): Written {
  const { status, headers } = answer;
  // It is misconfigured, or the request has not arrived in time: nothing of the application's.
  if (status === 500 || status === 408) return ofNone().unavailable(status === 408);
  const kept = KEPT.flatMap((name) => {
    const value = headers.get(name);
    return value === null ? [] : [[name, value]];
  });
  return { status, headers: Object.fromEntries(kept), body: `${JSON.stringify(answer)}\n` };
}

/** Answers that are about no limits. */
function ofNone(): Answers {
  none ??= new Answers();
  return none;
}
let none: Answers | undefined;

const codeOf = (error: unknown): string => String((error as { readonly code?: unknown } | null | undefined)?.code);

/** The service may be fine, but did not answer this request, or was not asked. */
const NO_ANSWER = ["network_failed", "timeout", "answer_malformed", "token_missing", "closed"];
/** As the service says it of a policy. */
const NO_LEASE = /has no `lease`/;
const KEPT = [
  "content-type",
  "cache-control",
  "x-content-type-options",
  "ratelimit-policy",
  "ratelimit",
  "retry-after",
];
/** The service's default. */
const IPV6_PREFIX = 64;
