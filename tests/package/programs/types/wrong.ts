// Wrong uses: the line after each mark does not compile.
import * as tollgate from "tollgate";
import {
  acquire,
  Bucket,
  Budget,
  Client,
  type Decision,
  init,
  Limiter,
  limitFetch,
  TollgateError,
  Twin,
  type Verb,
  watch,
} from "tollgate";
import { KeyedLimiter } from "tollgate/keyed";
import { lint } from "tollgate/lint";
// @ts-expect-error: only the entries that package.json names can be imported
import { Queue } from "tollgate/queue.js";
import { rate } from "tollgate/rate";
import { useRateLimit } from "tollgate/react";
import { SharedLimiter } from "tollgate/shared";

// @ts-expect-error: the core is private
export const core = tollgate.core;

const limit = { rate: 1, periodMs: 1000 };
// @ts-expect-error: the time comes first
new Bucket(limit);
// @ts-expect-error: a limit has a period
new Bucket(0, { rate: 1 });
// @ts-expect-error: the period is in milliseconds, and its name says so
new Bucket(0, { rate: 1, period: "1s" });
// @ts-expect-error: there are two kinds
new Bucket(0, { ...limit, kind: "leaky_bucket" });
const bucket = new Bucket(0, limit);
// @ts-expect-error: time is an argument
bucket.tryConsume();
// @ts-expect-error: time is a number
bucket.tryConsume(new Date());
// @ts-expect-error: a bucket has a single cost
bucket.tryConsume(0, { day: 1 });
// @ts-expect-error: the options are an object
bucket.decide(0, 5);
// @ts-expect-error: only `tryConsume` takes: a decision would be true in a condition
bucket.consume(0);
// @ts-expect-error: verbs are spelled as in JavaScript
const verb: Verb = "consume_up_to";
const decision: Decision = bucket.peek(0);
// @ts-expect-error: `allowed` has to be checked first
decision.retryAt;
// @ts-expect-error: a decision is an object, and so always truthy
if (decision === true) bucket.tryConsume(0);
if (decision.allowed) {
  // @ts-expect-error: a grant has no retryAt
  decision.retryAt;
} else {
  // @ts-expect-error: a refusal has no tokens
  decision.tokens;
  // @ts-expect-error: decisions are read-only
  decision.retryAt = 0;
}
// @ts-expect-error: a snapshot has three numbers
bucket.restore({ tokens: 1, at: 0 });

// @ts-expect-error: a budget is a list of limits
new Budget(0, { api: limit });
const limiter = new Limiter(limit);
// @ts-expect-error: a limiter has its own clock
limiter.tryConsume(0, 1);
// @ts-expect-error: only `tryConsume` takes: a decision would be true in a condition
if (limiter.consume()) bucket.tryConsume(0);
// @ts-expect-error: a limit without a name has a single cost
limiter.tryConsume({ requests: 1 });
// @ts-expect-error: the options are an object
limiter.reserve(1, 1000);
const named = new Limiter([
  { ...limit, name: "requests" },
  { ...limit, name: "tokens" },
]);
named.tryConsume({ requests: 1, tokens: 1 });
// @ts-expect-error: the limit is named `requests`
named.tryConsume({ request: 1, tokens: 1 });
// @ts-expect-error: a cost names every limit
named.decide({ cost: { requests: 1 } });
// @ts-expect-error: so does the cost of a wait
named.acquire({ cost: { request: 1, tokens: 1 } });
// @ts-expect-error: and that of a fetch
limitFetch(named, { cost: { request: 1, tokens: 1 } });
// @ts-expect-error: and what it is settled at
limitFetch(named, { settle: () => ({ request: 1, tokens: 1 }) });
// @ts-expect-error: and what is watched
watch(named, { request: 1, tokens: 1 });
// @ts-expect-error: and a budget
new Budget(0, { ...limit, name: "requests" }).tryConsume(0, { request: 1 });
// @ts-expect-error: a queue overflows in one of two ways
new Limiter(limit, { overflow: "drop" });
// @ts-expect-error: the wait is in milliseconds, and its name says so
limiter.acquire({ maxWait: 1000 });
// @ts-expect-error: a throttled function takes the same arguments
limiter.throttle((text: string) => text.length)(1);
// @ts-expect-error: a throttled function returns a promise
limiter.throttle(() => "text")().length;
// @ts-expect-error: a shared limiter has a name
new SharedLimiter(limit);
// @ts-expect-error: a shared limiter returns promises
if (new SharedLimiter("name", limit).tryConsume()) bucket.tryConsume(0);
// @ts-expect-error: its cost names the limits, too
new SharedLimiter("name", { ...limit, name: "requests" }).tryConsume({ request: 1 });
// @ts-expect-error: a bucket has no queue
limitFetch(bucket);
// @ts-expect-error: a bucket cannot be watched
watch(bucket);
export function Button() {
  // @ts-expect-error: the hook takes a limiter, not a limit
  useRateLimit(limit);
  // @ts-expect-error: the cost names the limits
  return useRateLimit(named, { cost: { request: 1, tokens: 1 } });
}

// @ts-expect-error: a client needs a token
new Client({ url: "https://tollgate.example.com" });
// @ts-expect-error: one that may be unset is none
new Client({ url: "https://tollgate.example.com", token: undefined as string | undefined });
const client = new Client({ url: "https://tollgate.example.com", token: "token" });
client.consume({ policy: "api", key: "alice" }).then((answer) => {
  // @ts-expect-error: a refusal has no moment of use
  if (!answer.allowed) answer.ready_at.toFixed();
  // @ts-expect-error: a grant has nothing to wait for
  if (answer.allowed) answer.retry_at.toFixed();
});
// @ts-expect-error: whether it throws is part of its type
new Client<"api">({ url: "https://tollgate.example.com", token: "token", throws: true });
new Client({ url: "https://tollgate.example.com", token: "token", throws: true })
  .consume({ policy: "api", key: "alice" })
  // @ts-expect-error: what is returned is granted
  .then((answer) => answer.detail);
// @ts-expect-error: an id that is a number is no key
client.consume({ policy: "api", key: 7 });
// @ts-expect-error: names are those of the HTTP API
client.consume({ policy: "api", key: "alice", maxWaitMs: 10 });
// @ts-expect-error: only a reservation can be settled
client.settle({ policy: "api", key: "alice" });
client.consume({ policy: "api", key: "alice" }).then((answer) => {
  // @ts-expect-error: a problem has no `remaining`
  return answer.remaining;
});
// @ts-expect-error: a twin follows one policy
new Twin(client, { key: "alice" });
interface Policies {
  api: never;
  llm: "requests" | "tokens";
}
const knowing = new Client<Policies>({ url: "https://tollgate.example.com", token: "token" });
// @ts-expect-error: there is no policy `apj`
knowing.consume({ policy: "apj", key: "alice" });
// @ts-expect-error: nor for a batch
knowing.batch({ requests: [{ policy: "apj", key: "alice" }] });
// @ts-expect-error: the limit is named `requests`
knowing.consume({ policy: "llm", key: "alice", cost: { request: 1, tokens: 1 } });
// @ts-expect-error: a cost names every limit
knowing.consume({ policy: "llm", key: "alice", cost: { requests: 1 } });
// @ts-expect-error: a limit without a name has a single cost
knowing.consume({ policy: "api", key: "alice", cost: { requests: 1, tokens: 1 } });
// @ts-expect-error: what the work has cost names the limits, too
knowing.spend({ policy: "llm", key: "alice" }, (report) => report({ request: 1, tokens: 1 }));
// @ts-expect-error: so does the cost of a wait
acquire(knowing, { policy: "llm", key: "alice", cost: { request: 1, tokens: 1 } });
// @ts-expect-error: which is for a policy that there is
acquire(knowing, { policy: "apj", key: "alice" });
// @ts-expect-error: as is a twin
new Twin(knowing, { policy: "apj", key: "alice" });
// @ts-expect-error: and its cost
new Twin(knowing, { policy: "llm", key: "alice" }).consume({ request: 1, tokens: 1 });
// @ts-expect-error: the names may be all that is known
new Client<"api" | "llm">({ url: "https://tollgate.example.com", token: null }).peek({ policy: "apj", key: "alice" });
// @ts-expect-error: a wait is in milliseconds, and its name says so
acquire(client, { policy: "api", key: "alice", max_wait_ms: 10 });

// @ts-expect-error: a key comes first
new KeyedLimiter(limit).tryConsume(1);
// @ts-expect-error: only tokens are numbers
new KeyedLimiter(limit).tryConsume("alice", "1");
// @ts-expect-error: the core's own
new Bucket(0, limit).address;

// @ts-expect-error: the module is required
init(undefined);
// @ts-expect-error: a policy has a rate
lint({ api: { period: "1s" } });
// @ts-expect-error: a rate is a text
rate(2.5);

// @ts-expect-error: an error has one of the codes
new TollgateError("some_code", "message");

export { Queue, verb };
