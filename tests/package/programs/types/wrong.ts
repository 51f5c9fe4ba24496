// Wrong uses: the line after each mark does not compile.
import * as tollgate from "tollgate";
import {
  Bucket,
  Budget,
  Client,
  type Decision,
  init,
  Limiter,
  limitFetch,
  SharedLimiter,
  TollgateError,
  Twin,
  type Verb,
  watch,
} from "tollgate";
// @ts-expect-error: only the entries that package.json names can be imported
import { Queue } from "tollgate/queue.js";
import { useRateLimit } from "tollgate/react";

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
bucket.consume();
// @ts-expect-error: time is a number
bucket.consume(new Date());
// @ts-expect-error: a bucket has a single cost
bucket.consume(0, { day: 1 });
// @ts-expect-error: verbs are spelled as in JavaScript
const verb: Verb = "consume_up_to";
const decision: Decision = bucket.peek(0);
// @ts-expect-error: `allowed` has to be checked first
decision.retryAt;
// @ts-expect-error: a decision is an object, and so always truthy
if (decision === true) bucket.consume(0);
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
limiter.consume(0, 1);
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
new SharedLimiter("name", limit).consume().allowed;
// @ts-expect-error: a bucket has no queue
limitFetch(bucket);
// @ts-expect-error: a bucket cannot be watched
watch(bucket);
export function Button() {
  // @ts-expect-error: the hook takes a limiter, not a limit
  return useRateLimit(limit);
}

// @ts-expect-error: a client needs a token
new Client({ url: "https://tollgate.example.com" });
const client = new Client({ url: "https://tollgate.example.com", token: "token" });
// @ts-expect-error: a budget belongs to a key
client.consume({ policy: "api" });
// @ts-expect-error: names are those of the HTTP API
client.consume({ policy: "api", key: "alice", maxWaitMs: 10 });
// @ts-expect-error: only a reservation can be settled
client.settle({ policy: "api", key: "alice" });
client.consume({ policy: "api", key: "alice" }).then((answer) => {
  // @ts-expect-error: a problem has no `remaining`
  return answer.remaining;
});
// @ts-expect-error: a twin follows one key
new Twin(client, { policy: "api" });

// @ts-expect-error: the module is required
init(undefined);
// @ts-expect-error: an error has one of the codes
new TollgateError("some_code", "message");

export { Queue, verb };
