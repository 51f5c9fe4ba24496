// A use of every export.
import {
  type AcquireOptions,
  type AcquireRequest,
  type Answer,
  acquire,
  type BatchDegraded,
  type BatchGranted,
  type BatchRefused,
  type Bucket,
  Budget,
  type BudgetCost,
  type BudgetRequest,
  type CallOptions,
  type Client,
  type ClientOptions,
  type Clock,
  type ConcurrencyOptions,
  type CoreSource,
  type Cost,
  countdown,
  type DecideOptions,
  type Decision,
  type Degraded,
  type DegradedResult,
  type Extended,
  type Grant,
  type Granted,
  type Inspection,
  init,
  type Key,
  type Leased,
  type LeaseRequest,
  type Limit,
  Limiter,
  type LimiterEvent,
  type LimiterOptions,
  type LimitFetchOptions,
  type LimitNames,
  type LimitNumbers,
  type LimitSnapshot,
  type LimitVerdict,
  limitFetch,
  makeClock,
  type NotGranted,
  NotGrantedError,
  orThrow,
  type Pausable,
  type PolicyName,
  type PolicyNames,
  type Predicted,
  type Problem,
  type Refusal,
  type Refused,
  type ReservationRequest,
  type Reserved,
  type Returned,
  type RunRequest,
  run,
  type Snapshot,
  type Spent,
  type Standing,
  type Store,
  systemClock,
  type ThrottleOptions,
  TollgateError,
  type TollgateErrorCode,
  type TollgateErrorDetails,
  Twin,
  type TwinOptions,
  type Undecided,
  type Verb,
  type Verdict,
  type Watchable,
  watch,
} from "tollgate";
import { Client as ClientAlone } from "tollgate/client";
import { type RenewingOptions, renewing } from "tollgate/grants";
import { type KeyedDecision, KeyedLimiter, type KeyedLimiterOptions, type Key as KeyOfMany } from "tollgate/keyed";
import {
  type CalendarWindow,
  calendarWindow,
  type FirstUseWindow,
  firstUseWindow,
  type RollingWindow,
  rollingWindow,
  type Turn,
  WarmUp,
  type WarmUpNumbers,
  type WarmUpOptions,
} from "tollgate/kinds";
import { type LeasedGrant, type LeasedRefusal, LeasingLimiter, type LeasingOptions } from "tollgate/leases";
import { type Finding, type LintResult, lint } from "tollgate/lint";
import {
  type CountOptions,
  type LimitedBy,
  type NodeReply,
  type NodeRequest,
  type NodeResponse,
  type NodeServer,
  type RateLimit,
  type RateLimitOptions,
  type RequestCost,
  type RequestLimiter,
  rateLimit,
} from "tollgate/node";
import { type Rate, rate } from "tollgate/rate";
import { useRateLimit } from "tollgate/react";
import { SharedLimiter } from "tollgate/shared";
import { Bucket as SlimBucket, init as slimInit } from "tollgate/slim";
import { FakeClock, forget } from "tollgate/testing";

const limit: Limit<"day"> = {
  kind: "fixed_window",
  name: "day",
  rate: 10,
  periodMs: 86_400_000,
  capacity: 20,
  maxDebt: 5,
  initial: 0,
  offsetMs: 3_600_000,
};
const verb: Verb = "reserve";
const cost: Cost<"day"> = { day: 2 };

// One limit, with time as an argument. slim has the same types.
const bucket: Bucket = new SlimBucket(0, limit);
const allowed: boolean = bucket.tryConsume(0) && bucket.tryConsume(0, 2);
const asking: DecideOptions = { cost: 1, verb, maxWaitMs: 1000 };
const decision: Decision = Math.random() < 0.5 ? bucket.peek(0, asking) : bucket.decide(0, asking);
const both: number[] = [decision.remaining, decision.retryAfterMs];
if (decision.allowed) {
  const grant: Grant = decision;
  const numbers: [number, number, 0] = [grant.tokens, grant.readyAt, grant.retryAfterMs];
  void numbers;
} else {
  const refusal: Refusal = decision;
  const maxCost: number | undefined = refusal.maxCost;
  void [refusal.retryAt.toFixed(), maxCost];
}
const snapshot: Snapshot = bucket.save(0);
bucket.restore(JSON.parse(JSON.stringify(snapshot)) as Snapshot, false);
const left: number = bucket.remaining(0) - bucket.owed(0) + bucket.fullAt(0);

// Rates in text, and what policies admit.
const read: Rate = rate("20/s burst 40");
void new Budget(0, [
  { ...read, name: "requests" },
  { ...rate("9/day", "fixed_window"), name: "tokens" },
] as const);
async function linted(): Promise<readonly Finding[]> {
  const result: LintResult = await lint({ api: "100/1m", llm: { rate: 2.5, period: "1s" } });
  const { policies } = await lint('{"api":"100/1m"}');
  const within: number | undefined = policies[0]?.limits[0]?.within[0]?.tokens;
  void [within, result.errors.join()];
  return result.policies.flatMap(({ findings }) => findings);
}
void linted;

// Several limits.
const budget = new Budget(0, [limit, { name: "burst", rate: 1, periodMs: 1 }] as const);
const taken: boolean = budget.tryConsume(0, { burst: 2, day: 1 });
const borrowed: Decision = budget.decide(0, { cost: { day: 1, burst: 2 }, verb: "borrow" });
const free: Budget = new Budget(0, { rate: 1, periodMs: 1 });
const unknown: Budget<string> = new Budget(0, JSON.parse("[]") as Limit[]);
void [free.decide(0, { cost: 1 }), unknown.peek(0, { cost: { any: 1 } })];
budget.restore(budget.save(0));

// A clock and a queue.
const clock: Clock = makeClock(
  () => Date.now(),
  () => performance.now(),
);
const options: LimiterOptions = {
  clock: Math.random() < 0.5 ? clock : Math.random() < 0.5 ? systemClock : new FakeClock(0),
  maxQueue: 10,
  overflow: "drop_oldest",
};
const concurrency: ConcurrencyOptions = { ...options, maxConcurrent: 3 };
const limiter: Limiter<"day"> = new Limiter([limit], concurrency);
const asked: AcquireOptions<"day"> = { cost, signal: AbortSignal.timeout(1000), maxWaitMs: 1000, priority: 1 };
const admitted: Promise<Grant> = limiter.acquire(asked);
void [limiter.decide({ cost: { day: 1 }, maxWaitMs: 0 }), limiter.reserve({ cost, maxWaitMs: 10 }), limiter.peek(cost)];
limiter.charge({ day: 1 });
const off: () => void = limiter.on((event: LimiterEvent<"day">) => {
  switch (event.type) {
    case "allow":
      return void event.decision.allowed;
    case "refuse":
      return void event.decision.retryAt;
    case "queue":
      return void event.waiting;
    case "drop":
      return void event.reason;
    case "change":
      return;
    default:
      return event satisfies never;
  }
});
const throttling: ThrottleOptions<[text: string, times: number]> = { cost: (text, times) => text.length * times };
const throttled: (text: string, times: number) => Promise<string> = limiter.throttle(
  (text: string, times: number) => text.repeat(times),
  throttling,
);
const unwrapped: () => Promise<number> = limiter.throttle(async () => 1);

// All tabs.
const shared = new SharedLimiter("search", limit, options);
const ready: Promise<void> = shared.ready;
const consumed: Promise<boolean> = shared.tryConsume({ day: 2 });
const decided: Promise<Decision> = shared.decide({ cost: 2, verb: "borrow" });
const reserved: Promise<Decision> = shared.reserve({ cost });

// Many keys.
const inHours: FirstUseWindow<"a"> = { name: "a", rate: 20, periodMs: 18_000_000 };
const monthly: CalendarWindow = { rate: 1000, calendar: "month", starts: 15, zone: "UTC", initial: 0 };
const byKind = [new Limiter(firstUseWindow(inHours)).tryConsume({ a: 1 }), new Limiter(calendarWindow(monthly))];
const anyMinute: RollingWindow<"a"> = { name: "a", rate: 500, periodMs: 60_000, grains: 120 };
const isInAnyMinute: boolean = new Limiter(rollingWindow(anyMinute)).tryConsume({ a: 1 });
const numbers: WarmUpNumbers = { rate: 2, periodMs: 1000, warmUpMs: 4000 };
const soon: WarmUpOptions = { cost: 2, maxWaitMs: 100 };
const turn: Turn = new WarmUp(0, numbers).borrow(0, soon);
const startsAt: number =
  (turn.allowed ? turn.readyAt : turn.retryAt) + new WarmUp(0, numbers).peek(0, { cost: 2 }).readyAt;
const keys: KeyedLimiterOptions = { maxKeys: 10, ipv6Prefix: 56, clock };
const keyed: KeyedLimiter<"day"> = new KeyedLimiter([limit], keys);
const caller: KeyOfMany = { ip: "192.0.2.1" };
keyed.decide(caller);
const known: boolean = keyed.tryConsume("alice", { day: 1 });
const told: Decision[] = [
  keyed.decide("alice", { cost, verb, maxWaitMs: 0 }),
  keyed.peek("alice", cost),
  keyed.charge("alice", cost),
];
const next: KeyedDecision = keyed.decide("alice");
void next.nextTokenAt.toFixed();
keyed.refund("alice", cost);
keyed.reset("alice");
forget();
const counts: number[] = [keyed.remaining("alice"), keyed.size, keyed.maxKeys, keyed.limits.length];

// A fetch.
const pausable: Pausable<"day"> = Math.random() < 0.5 ? limiter : shared;
const fetching: LimitFetchOptions<"day"> = {
  fetch,
  cost: async (request) => (request.method === "POST" ? { day: (await request.text()).length } : 1),
  settle: async (response) => ({ day: (await response.text()).length }),
  retries: 1,
  jitterMs: 0,
  maxPauseMs: 60_000,
  countUntil: "headers",
  priority: 2,
};
const limited: typeof fetch = limitFetch(pausable, fetching);

// A server that decides by leases.
async function lease(): Promise<number> {
  const wanted: LeaseRequest = {
    policy: "api",
    key: "alice",
    tokens: 50,
    returned: [{ lease: "5d1f0c9a77e2b304", spent: 2 }],
  };
  const leased: Leased | Degraded | Problem = await client.lease(wanted);
  const leasing: LeasingOptions<"api"> = { policy: "api", maxKeys: 10, clock };
  const limiter = new LeasingLimiter(client, leasing);
  const decision: LeasedGrant | LeasedRefusal = await limiter.consume(["tenant 7", "alice"], { requests: 1 });
  await limiter.close();
  return decision.allowed ? decision.remaining : decision.retryAfterMs + leased.status;
}
void lease;

// A limit in front of a server on Node.
interface Asked extends NodeRequest {
  readonly user?: string;
}
const counting: CountOptions<[request: Asked, response: NodeResponse]> = {
  key: ({ user }) => user,
  cost: async ({ method }): Promise<RequestCost> => (method === "POST" ? { day: 5 } : 1),
  skip: ({ headers }) => headers["x-internal"] === "yes",
};
const whatLimits: RequestLimiter = Math.random() < 0.5 ? keyed : new KeyedLimiter(limit);
const limiting: LimitedBy = { limiter: whatLimits, policy: "sign-in", failedOnly: true };
const inFront: RateLimitOptions<Asked, NodeResponse> = {
  ...limiting,
  ...counting,
  onRefused: ({ retry_after_ms }, _, response) => response.end(`${retry_after_ms}`),
  onError: ({ detail }) => detail === "",
};
const ofServer: RateLimit = rateLimit(inFront);
async function serve(server: NodeServer, request: NodeRequest, response: NodeResponse, reply: NodeReply) {
  ofServer(server, {}, (error?: Error) => void error);
  ofServer(request, response, (error?: unknown) => void error);
  const passes: boolean = await rateLimit({ limiter: client, policy: "api" })(request, response);
  return [passes, rateLimit({ limiter: new LeasingLimiter(client, { policy: "api" }) }), reply.send("")];
}
void serve;

// A server, and its twin.
const where: ClientOptions = { url: "https://tollgate.example.com", token: async () => "token", fetcher: { fetch } };
const client: Client = new ClientAlone({ ...where, timeoutMs: 1000 });
const renewed: RenewingOptions = { clock };
const inPage: Client = new ClientAlone({ ...where, token: renewing(async () => "a.b.c", renewed) });
const whose: Key[] = ["alice", ["tenant 7", "alice"], { ip: "192.0.2.1" }];
const question: BudgetRequest = {
  policy: "api",
  key: whose[0]!,
  cost: 2,
  mode: "up_to",
  max_wait_ms: 10,
  snapshot: true,
};
const call: CallOptions = { idempotencyKey: "1", signal: new AbortController().signal };
async function ask(): Promise<string | number> {
  const answer: Granted | Degraded | Refused | Problem = await client.consume(question, call);
  if (answer.status === 200) {
    if (answer.degraded) return answer.degraded;
    const verdict: Verdict = answer;
    const first: LimitVerdict | undefined = verdict.limits?.[0];
    return first?.remaining ?? verdict.remaining ?? Infinity;
  }
  if (answer.status === 429) return answer.retry_after_ms ?? answer.title;
  const inspected: Inspection | Problem = await client.inspect(question);
  if (inspected.status !== 200) return inspected.cause ?? inspected.detail;
  const numbers: LimitNumbers | undefined = inspected.limits[0];
  const stands: LimitSnapshot | undefined = inspected.snapshot?.[0];
  const closing: ReservationRequest = { ...question, reservation: "r" };
  const batch: BatchGranted | BatchDegraded | BatchRefused | Problem = await client.batch({ requests: [question] });
  const extended: Extended | Refused | Problem = await client.extend(closing);
  if (extended.status === 200) return extended.reservation.concat(extended.expires_at.toFixed());
  const ended: Granted | Problem = await client.settle(closing);
  const undecided: Undecided | undefined = (batch as BatchRefused).results.find((result) => "undecided" in result);
  if (undecided) return undecided.undecided;
  const results: readonly (Verdict | DegradedResult)[] = batch.status === 200 ? batch.results : [];
  return results.length > 0 ? results.length : `${numbers?.period_ms} ${stands?.drops} ${ended.status}`;
}
/** What narrows by `allowed` alone, whatever else the answer is. */
async function narrowed(): Promise<string | number | undefined> {
  const answer = await client.consume(question);
  if (!answer.allowed)
    return answer.retry_at ?? answer.retry_after_ms ?? answer.max_cost ?? answer.cause ?? answer.detail;
  const peeked = await client.peek(question);
  if (!peeked.allowed) return peeked.retry_at ?? peeked.detail;
  const batch = await client.batch({ requests: [question] });
  if (!batch.allowed) return batch.retry_at ?? batch.detail;
  const local = bucket.peek(0);
  return peeked.remaining ?? batch.results.length + (local.allowed ? local.readyAt : (local.maxCost ?? local.retryAt));
}
/** With `throws`, an answer is granted. */
async function thrown(): Promise<string | number | undefined> {
  const throwing = new ClientAlone({ ...where, throws: true });
  const knowing: Client<Policies, true> = new ClientAlone<Policies, true>({ ...where, throws: true });
  const usual: Client = throwing;
  try {
    const granted: Returned<Granted | Degraded | Refused | Problem, true> = await throwing.consume(question);
    const allowed: true = granted.allowed && (await knowing.peek({ policy: "api" })).allowed;
    const { reservation } = await throwing.consume({ ...question, mode: "reserve" });
    const { remaining } = orThrow(await usual.consume(question));
    return allowed ? (remaining ?? reservation) : granted.policy;
  } catch (error) {
    if (!(error instanceof NotGrantedError)) throw error;
    const answer: NotGranted = error.answer;
    return error.retryAt + error.retryAfterMs || error.answer.headers.get("retry-after") || answer.detail;
  }
}
async function reserve(): Promise<string | null> {
  const answer: Reserved | Refused | Problem = await client.consume({ ...question, mode: "reserve" });
  if (answer.status === 200) return answer.reservation.concat(answer.expires_at.toFixed());
  const whole: Answer = answer;
  const spent: Spent<string> | Refused | Problem = await client.spend(question, async (report) => {
    report({ requests: 1 });
    return "text";
  });
  if (spent.status !== 200) return spent.detail;
  if (spent.settled instanceof TollgateError) return spent.settled.code;
  return spent.result.concat(spent.settled.status.toFixed(), whole.headers.get("retry-after") ?? "");
}
const following: TwinOptions = { policy: "api", key: "alice", trustMs: 1000, clock };
const twin = new Twin(client, following);
const ofGrant = new Twin(client, { policy: "api" });
const granted: Promise<Granted | Degraded> = twin.acquire({ cost: { requests: 1 }, maxWaitMs: 1000 });
const fetchByTwin: typeof fetch = limitFetch(twin, { cost: { requests: 1 } });
twin.pause(0);
twin.resume();
async function predicted(): Promise<boolean> {
  const answer: Granted | Degraded | Refused | Problem | Predicted = await twin.consume();
  return answer.status === 429 && "predicted" in answer && answer.predicted;
}

// Policies whose names are known.
interface Policies {
  api: never;
  llm: "requests" | "tokens";
}
const cheap: BudgetCost<Policies> = { policy: "api", cost: 2 };
const dear: BudgetRequest<Policies> = {
  policy: "llm",
  key: "alice",
  cost: { requests: 1, tokens: 500 },
  mode: "borrow",
};
const first: PolicyName<Policies> & PolicyName<"api"> = "api";
const limits: LimitNames<Policies>["llm"] = "tokens";
const knowing = new ClientAlone<Policies>(where);
const knowingNames = new ClientAlone<"api" | "llm">(where);
async function askKnowing(policy: PolicyName<Policies>): Promise<void> {
  await knowing.consume(dear);
  await knowing.consume({ policy, key: "alice", cost: 2 });
  await knowing.batch({ requests: [cheap, dear] });
  await knowing.spend(dear, (report) => report({ requests: 1, tokens: 20 }));
  await knowing.settle({ policy: "llm", reservation: "r", cost: { requests: 1, tokens: 20 } });
  await knowingNames.consume({ policy: first, key: "alice", cost: { [limits]: 1 } });
  await new Twin(knowing, { policy: "llm", key: "alice" }).consume({ requests: 1, tokens: 1 });
}
/** A helper for any client takes those that know more. */
const inspectAny = (any: Client) => any.inspect({ policy: "api", key: "alice" });
const inspected = [inspectAny(client), inspectAny(knowing), inspectAny(knowingNames)];
function waitFor<P extends PolicyNames>(its: Client<P>, request: AcquireRequest<P>): Promise<Granted | Degraded> {
  return acquire(its, request);
}
const waited: Promise<Granted | Degraded> = waitFor(knowing, {
  ...dear,
  maxWaitMs: 1000,
  signal: AbortSignal.timeout(1000),
  clock,
});
const running: RunRequest<{ renders: never }> = { policy: "renders", key: "alice", maxWaitMs: 1000 };
const ran: Promise<string> = run(new ClientAlone<{ renders: never }>(where), running, async () => "an image");
const waitedForAny = acquire(client, { policy: "any", cost: { any: 1 } });

// User interfaces.
const watchables: Watchable[] = [limiter, shared, twin];
const store: Store = watch(watchables[0]!, 2);
const named: Watchable<"day"> = shared;
void [watch(named, cost), watch(limiter, { day: 1 }), watch(twin, { requests: 1 })];
const standing: Standing = store.get();
const seconds: Store<number> = countdown(watchables[0]!, 2);
function Button(): boolean {
  const hooked: Standing = useRateLimit(limiter, { cost });
  return hooked.ok && useRateLimit(shared).ok && useRateLimit(twin, { cost: { requests: 1 } }).ok;
}

// The core and errors.
const sources: CoreSource[] = [new Uint8Array(8), new ArrayBuffer(8)];
init(sources[0]!);
slimInit(() => sources[1]!);
const details: TollgateErrorDetails = { min: 0, max: 1, maxCost: 2, retryAt: 3 };
const error: Error = new TollgateError("wait_too_long", "later", details);
if (error instanceof TollgateError) {
  const code: TollgateErrorCode = error.code;
  void [code === "cost_too_small", code === "queue_full", error.retryAt];
}

export {
  admitted,
  allowed,
  ask,
  askKnowing,
  Button,
  borrowed,
  both,
  byKind,
  consumed,
  counts,
  decided,
  fetchByTwin,
  granted,
  inPage,
  inspected,
  isInAnyMinute,
  known,
  left,
  limited,
  narrowed,
  off,
  ofGrant,
  predicted,
  ran,
  ready,
  reserve,
  reserved,
  seconds,
  standing,
  startsAt,
  taken,
  throttled,
  thrown,
  told,
  unwrapped,
  waited,
  waitedForAny,
};
