// Wrong uses: each line after a mark does not compile.
import {
  Bucket,
  Budget,
  Client,
  Limiter,
  SharedLimiter,
  TollgateError,
  Twin,
  init,
  limitFetch,
  watch,
  type Decision,
  type Verb,
} from "tollgate";
import { useRateLimit } from "tollgate/react";
// @ts-expect-error: what is not exported is nobody's
import { instance } from "tollgate";
// @ts-expect-error: nor are files that the package does not name
import { Queue } from "tollgate/queue.js";

const limit = { rate: 1, periodMs: 1000 };
// @ts-expect-error: the time comes first
new Bucket(limit);
// @ts-expect-error: a limit has a period
new Bucket(0, { rate: 1 });
// @ts-expect-error: in milliseconds, and under that name
new Bucket(0, { rate: 1, period: "1s" });
// @ts-expect-error: there are two kinds
new Bucket(0, { ...limit, kind: "leaky_bucket" });
const bucket = new Bucket(0, limit);
// @ts-expect-error: time is an argument
bucket.consume();
// @ts-expect-error: and a number
bucket.consume(new Date());
// @ts-expect-error: one bucket has one cost
bucket.consume(0, { day: 1 });
// @ts-expect-error: verbs are spelled as in JavaScript
const verb: Verb = "consume_up_to";
const decision: Decision = bucket.peek(0);
// @ts-expect-error: a decision has to be looked at first
decision.retryAt;
// @ts-expect-error: it is an object, and so always true
if (decision === true) bucket.consume(0);
if (decision.allowed) {
  // @ts-expect-error: who is admitted need not retry
  decision.retryAt;
} else {
  // @ts-expect-error: who is refused has no tokens
  decision.tokens;
  // @ts-expect-error: an answer is not changed
  decision.retryAt = 0;
}
// @ts-expect-error: a state has all its numbers
bucket.restore({ tokens: 1, at: 0 });

// @ts-expect-error: a budget is a list of limits
new Budget(0, { api: limit });
const limiter = new Limiter(limit);
// @ts-expect-error: the limiter has its own clock
limiter.consume(0, 1);
// @ts-expect-error: a line overflows in one of two ways
new Limiter(limit, { overflow: "drop" });
// @ts-expect-error: the wait is in milliseconds, and says so
limiter.acquire({ maxWait: 1000 });
// @ts-expect-error: a throttled function takes what the function takes
limiter.throttle((text: string) => text.length)(1);
// @ts-expect-error: and gives a promise
limiter.throttle(() => "text")().length;
// @ts-expect-error: a shared limiter has a name
new SharedLimiter(limit);
// @ts-expect-error: and answers later
new SharedLimiter("name", limit).consume().allowed;
// @ts-expect-error: a bucket alone has no line to wait in
limitFetch(bucket);
// @ts-expect-error: nor can it be watched
watch(bucket);
// @ts-expect-error: the hook takes a limiter too
useRateLimit(limit);

// @ts-expect-error: nothing is served without credentials
new Client({ url: "https://tollgate.example.com" });
const client = new Client({ url: "https://tollgate.example.com", token: "token" });
// @ts-expect-error: there is no budget without a key
client.consume({ policy: "api" });
// @ts-expect-error: the names are those that go over the wire
client.consume({ policy: "api", key: "alice", maxWaitMs: 10 });
// @ts-expect-error: only a reservation can be settled
client.settle({ policy: "api", key: "alice" });
client.consume({ policy: "api", key: "alice" }).then((answer) => {
  // @ts-expect-error: a problem says nothing of what remains
  return answer.remaining;
});
// @ts-expect-error: a twin follows one key
new Twin(client, { policy: "api" });

// @ts-expect-error: the core has to be there
init(undefined);
// @ts-expect-error: an error has one of the codes
new TollgateError("some_code", "message");

export { Queue, instance, verb };
