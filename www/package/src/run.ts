// Work that waits until a reservation is granted, such as one of a slot.
import type { Cost } from "./budget.js";
import type { BudgetCost, BudgetRequest, CallOptions, Client, PolicyNames, Refused } from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole } from "./errors.js";
import { answerOf, orThrow } from "./not-granted.js";
import { waitTooLong } from "./queue.js";

/** What to reserve while the work runs, and how long to wait for it. */
export type RunRequest<P extends PolicyNames = string> = BudgetCost<P> & {
  /** The longest acceptable wait. Default: `Infinity`. */
  readonly maxWaitMs?: number;
  /** An abort ends the wait, not the work. */
  readonly signal?: AbortSignal;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
};

/** The calls that wait for one budget, or run. */
interface Line {
  size: number;
  /** How many have ended. */
  ended: number;
  /** The turn of the last one is over. */
  last: Promise<void>;
  /** Lets the first one that waits request again. */
  wake(): void;
}

/**
 * Calls `work` as soon as the server grants its reservation, and closes that when the work is over: see {@link Client.spend}. Returns what
 * the work returns. With slots, no more run at once than there are slots.
 *
 * A refused reservation is requested again at the moment that the server has named, at which enough slots are free unless reservations are
 * extended, and when work of this client ends that had the same budget. The calls of one client are served first come, first served; among
 * clients there is no line.
 *
 * Rejects with what the work throws, the signal's reason, a `TollgateError` with the code `wait_too_long`, or a `NotGrantedError` for an
 * answer that no wait mends.
 *
 * ```js
 * const image = await run(client, { policy: "renders", key: "alice" }, () => render(scene));
 * ```
 */
export async function run<P extends PolicyNames, Result>(
  client: Pick<Client<P>, "spend">,
  { maxWaitMs = Infinity, signal, clock = systemClock, ...budget }: RunRequest<P>,
  work: (report: (cost: Cost<string>) => void) => Result,
): Promise<Awaited<Result>> {
  const deadline = clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity);
  const all = lines.get(client) ?? new Map<string, Line>();
  lines.set(client, all);
  const name = JSON.stringify([budget.policy, budget.key]);
  const line = all.get(name) ?? { size: 0, ended: 0, last: Promise.resolve(), wake: () => {} };
  all.set(name, line);
  line.size++;
  const before = line.last;
  let leave = () => {};
  const left = new Promise<void>((resolve) => {
    leave = resolve;
  });
  line.last = before.then(() => left);
  let [hasBegun, isKeyed] = [false, true];
  try {
    if (!(await wait(deadline, (wake) => void before.then(wake)))) throw waitTooLong(deadline + 1);
    for (;;) {
      const leftMs = Math.min(Math.max(0, deadline - clock.now()), LONGEST_TIMER_MS);
      const request = { ...budget, max_wait_ms: leftMs } as unknown as BudgetRequest<P>;
      const begin = (report: unknown) => {
        hasBegun = true;
        leave();
        return work(report as (cost: Cost<string>) => void);
      };
      const options: CallOptions = {
        ...(isKeyed && { idempotencyKey: crypto.randomUUID() }),
        ...(signal && { signal }),
      };
      const { ended } = line;
      const answer = await client.spend(request, begin, options).catch((error) => {
        if (hasBegun) throw error; // even if the work has thrown such an answer
        return answerOf(error);
      });
      if (answer.status === 200) return answer.result;
      if (answer.status === 409 && answer.type.endsWith(":too-many-idempotency-keys") && isKeyed) {
        isKeyed = false; // an answer that is lost may take a slot until it expires
        continue;
      }
      const { retry_after_ms: retryAfterMs } = answer as Refused;
      if (answer.status !== 429 || retryAfterMs === undefined) orThrow(answer);
      const retryAt = clock.now() + retryAfterMs!;
      if (line.ended > ended) continue;
      if (clock.now() >= deadline) throw waitTooLong(retryAt);
      await wait(Math.min(retryAt, deadline), (wake) => {
        line.wake = wake;
      });
    }
  } finally {
    leave();
    line.ended++;
    line.wake();
    if (--line.size === 0) all.delete(name);
  }

  /** Waits until that moment, or until it is woken: then it returns `true`. */
  async function wait(moment: number, listen: (wake: () => void) => void): Promise<boolean> {
    signal?.throwIfAborted();
    let [cancel, abort] = [() => {}, () => {}];
    try {
      return await new Promise<boolean>((resolve, reject) => {
        abort = () => reject(signal!.reason);
        signal?.addEventListener("abort", abort);
        if (moment < Infinity) cancel = clock.at(moment, () => resolve(false));
        listen(() => resolve(true));
      });
    } finally {
      cancel();
      signal?.removeEventListener("abort", abort);
    }
  }
}

/** By client and budget. */
const lines = new WeakMap<object, Map<string, Line>>();

/** The longest wait that the server accepts is that of a timer here. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
