// Work that waits until a reservation is granted, such as one of a slot.
import type { Cost } from "./budget.js";
import type { BudgetRequest, Client, PolicyNames, Problem, Refused } from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole } from "./errors.js";
import { orThrow } from "./not-granted.js";
import { waitTooLong } from "./queue.js";

/** What to reserve while the work runs, and how long to wait for it. */
export type RunRequest<P extends PolicyNames = string> = BudgetRequest<P> & {
  /** The longest acceptable wait: one that would be longer is rejected as soon as that is known. Default: `Infinity`. */
  readonly maxWaitMs?: number;
  /** An abort ends the wait, not the work. */
  readonly signal?: AbortSignal;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
};

/**
 * Calls `work` as soon as the server grants its reservation, and closes that when the work is over: see {@link Client.spend}. Returns what
 * the work returns. For slots, it is what runs at most so often at once.
 *
 * A refused reservation is requested again at the moment that the server has named, and at no other: when enough slots are free at the
 * latest. Those who wait for one budget by one client come first come, first served; among clients there is no line.
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
  { maxWaitMs = Infinity, signal, clock = systemClock, ...request }: RunRequest<P>,
  work: (report: (cost: Cost<string>) => void) => Result,
): Promise<Awaited<Result>> {
  const deadline = clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity);
  const budget = JSON.stringify([request.policy, request.key]);
  const line = lines.get(client) ?? new Map<string, Promise<void>>();
  lines.set(client, line);
  const before = line.get(budget);
  let leave = () => {};
  const left = new Promise<void>((resolve) => {
    leave = resolve;
  });
  const place = Promise.all([before, left]).then(() => {
    if (line.get(budget) === place) line.delete(budget);
  });
  line.set(budget, place);
  try {
    if (before) await wait(before, deadline);
    for (;;) {
      const answer = await client.spend(
        request as unknown as BudgetRequest<P>,
        (report) => {
          leave();
          return work(report as (cost: Cost<string>) => void);
        },
        { idempotencyKey: crypto.randomUUID(), ...(signal && { signal }) },
      );
      if (answer.status === 200) return answer.result;
      const { retry_after_ms } = answer as Refused;
      if (answer.status !== 429 || retry_after_ms === undefined) orThrow(answer as Refused | Problem);
      const retryAt = clock.now() + retry_after_ms!;
      if (retryAt > deadline) throw waitTooLong(retryAt);
      await wait(undefined, retryAt);
    }
  } finally {
    leave();
  }

  /** Waits for `turn`, if any, or until that moment, whichever is first; rejects if it is the deadline. */
  async function wait(turn: Promise<void> | undefined, moment: number): Promise<void> {
    signal?.throwIfAborted();
    let end = () => {};
    await new Promise<void>((resolve, reject) => {
      const late = () => (turn ? reject(waitTooLong(moment)) : resolve());
      const cancel = moment < Infinity ? clock.at(moment, late) : () => {};
      const abort = () => reject(signal!.reason);
      signal?.addEventListener("abort", abort);
      turn?.then(resolve);
      end = () => {
        cancel();
        signal?.removeEventListener("abort", abort);
      };
    }).finally(() => end());
  }
}

/** Who waits, for each client and budget: a promise of the last one's turn being over. */
const lines = new WeakMap<object, Map<string, Promise<void>>>();
