// Waits until a server grants.
//
// A budget with enough tokens grants at once, for the price of one `consume`. Otherwise the cost is reserved: debited now, to be
// used when it will have been refilled, so later callers wait longer. Where the policy's `max_debt` leaves no room
// for that, the call asks again when the server says that there will be tokens, or room. Refusals write nothing.
//
// The clocks of server and client differ. An answer has the server's time, which was no later than that when it arrived. So the
// server's clock is ahead of ours by at least `now - arrival`, and by at least the largest of these. A server's moment has
// come when ours reaches it minus this lead: never too early, however long an answer was on its way, even if it
// repeats one that was lost. It is ahead by at most `now - departure` of any request that was carried out: so a lead that is too large,
// because a clock was set, is noticed with the next answer.
import type {
  BudgetCost,
  BudgetRequest,
  Client,
  Degraded,
  Granted,
  Key,
  PolicyNames,
  Problem,
  Refused,
  Reserved,
} from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import { answerOf } from "./not-granted.js";
import { waitTooLong } from "./queue.js";
import type { Plain, Tollgate } from "./worker.js";

/** Which budget to wait for, and how long. */
export type AcquireRequest<P extends PolicyNames = string> = BudgetCost<P> & {
  /** The longest acceptable wait: one that would be longer is rejected as soon as that is known. Default: `Infinity`. */
  readonly maxWaitMs?: number;
  /** An abort gives back what was reserved. */
  readonly signal?: AbortSignal | null;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
};

/**
 * Takes tokens as soon as the server can grant them, and resolves then. Nothing polls.
 *
 * If it must wait, it reserves: the server keeps its turn, and later callers wait longer. A policy without a `max_debt`
 * takes no reservations. Then all waiters ask again at the moment that the server has named, and the first of them gets the
 * tokens.
 *
 * Rejects with the signal's reason or with a {@link TollgateError}: `wait_too_long`, `cost_never_granted`, `not_granted`, whose
 * `cause` is the server's answer, or what the client throws. If there is no answer, or a 503, it asks again, three times at
 * most.
 *
 * ```js
 * await acquire(client, { policy: "llm", key: "alice", cost: 4000, maxWaitMs: 60_000 });
 * ```
 */
export const acquire = wait as unknown as {
  <P extends PolicyNames>(client: Client<P>, request: AcquireRequest<P>): Promise<Granted | Degraded>;
  /** By RPC, for a service binding to the entry point `Tollgate`. */
  (
    service: Pick<Tollgate, "consume" | "settle" | "cancel">,
    request: AcquireRequest & { readonly key: Key },
  ): Promise<Plain<Granted | Degraded>>;
};

async function wait(
  service: Pick<Client, "consume" | "settle" | "cancel">,
  { maxWaitMs = Infinity, signal, clock = systemClock, ...request }: AcquireRequest,
): Promise<Granted | Degraded> {
  const deadline = clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity);
  /** How far the server's clock is ahead of ours, at least. */
  let leadMs = -Infinity;
  /** Whether the last request may have been carried out, for all that is known, and would be found by its key. */
  let isLost = false;

  for (;;) {
    const taken = await ask(request, false);
    if (taken.status === 200) return taken;
    const tokensAt = retryAtOf(taken); // or later than they are there, by the policy's jitter: a reservation may be ready in time
    const leftMs = Math.max(0, deadline - clock.now());
    const reserved = await ask(
      { ...request, mode: "reserve", ...(leftMs < Infinity && { max_wait_ms: leftMs }) },
      true,
    );
    if (reserved.status === 200) {
      const granted = await use(reserved as Reserved);
      if (granted) return granted;
    } else {
      if (tokensAt > deadline && tokensAt < Infinity) throw waitTooLong(tokensAt);
      const retryAt = Math.min(tokensAt, retryAtOf(reserved));
      if (retryAt === Infinity) throw refusal(reserved);
      if (retryAt > deadline) throw waitTooLong(retryAt);
      await sleep(retryAt);
    }
  }

  /**
   * Asks until there is an answer. An abort does not end the wait for a reservation's answer, which must then be cancelled. Only
   * a reservation has an idempotency key from the start, since a key costs a write. Anything else has one as soon as an answer
   * was lost, so that no more than that answer's tokens can be taken for nothing.
   */
  async function ask(request: BudgetRequest, reserves: boolean): Promise<Granted | Degraded | Refused | Problem> {
    const idempotencyKey = crypto.getRandomValues(new Uint32Array(4)).join("-");
    try {
      return await asked(request, reserves, idempotencyKey);
    } catch (reason) {
      // What was reserved by a request whose answer is unknown is found by its key.
      if (reserves && isLost && signal?.aborted) {
        const repeated = await service
          .consume(request, { idempotencyKey })
          .catch(answerOf)
          .catch(() => undefined);
        if (repeated?.status === 200) await cancel(repeated as Reserved);
      }
      throw reason;
    }
  }

  async function asked(
    request: BudgetRequest,
    reserves: boolean,
    idempotencyKey: string,
  ): Promise<Granted | Degraded | Refused | Problem> {
    let isKeyed = reserves;
    isLost = false;
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs *= 2) {
      signal?.throwIfAborted();
      let fault: unknown;
      try {
        const askedAt = clock.now();
        isLost = isKeyed;
        const coming = service.consume(request, isKeyed ? { idempotencyKey } : {}).catch(answerOf);
        const answer = await (reserves ? coming : orAbort(coming));
        isLost &&= answer.status === 503;
        learn(answer, askedAt);
        const hasNoRoom = answer.status === 409 && answer.type.endsWith(":too-many-idempotency-keys");
        if (answer.status !== 503 && !(isKeyed && hasNoRoom)) return answer;
        isKeyed = !hasNoRoom;
        if (hasNoRoom) continue;
        fault = refusal(answer);
      } catch (error) {
        signal?.throwIfAborted();
        isKeyed = true;
        fault = error;
      }
      // Each at its own moment, or all waiters would come back at once.
      const retryAt = clock.now() + Math.ceil(pauseMs * (1 - Math.random() / 2));
      if (pauseMs > LAST_PAUSE_MS || retryAt > deadline || (fault as TollgateError).code === "token_missing")
        throw fault;
      await sleep(retryAt);
    }
  }

  /** What an answer says of the server's clock. One that repeats another is as old as that. */
  function learn(
    answer: { readonly now?: number | undefined; readonly replayed?: boolean | undefined },
    askedAt: number,
  ): void {
    const { now, replayed } = answer;
    if (now === undefined) return;
    const isTooLarge = !replayed && leadMs > now - askedAt;
    leadMs = Math.max(isTooLarge ? -Infinity : leadMs, now - clock.now());
  }

  async function cancel({ reservation }: Reserved): Promise<void> {
    const { cost, snapshot, ...budget } = request;
    await service.cancel({ ...budget, reservation }).catch(() => {}); // then it expires
  }

  /** Closes a reservation as soon as it may be used. Returns nothing if it has expired meanwhile and not all its tokens are left. */
  async function use(reserved: Reserved): Promise<Granted | undefined> {
    const { cost, snapshot, ...budget } = request;
    const reservation = { ...budget, reservation: reserved.reservation };
    try {
      await sleep(reserved.ready_at - leadMs);
    } catch (reason) {
      await cancel(reserved);
      throw reason;
    }
    const askedAt = clock.now();
    const settled = await service.settle(reservation).catch(() => reserved); // then it expires
    if (settled !== reserved) {
      learn(settled, askedAt);
      // Our clock was set meanwhile. What is paid is not waited for longer than it was to be from the start, whatever the server's shows.
      const restMs = Math.min(reserved.ready_at - leadMs - clock.now(), reserved.ready_at - reserved.now);
      if (restMs > 0) await sleep(clock.now() + restMs);
    }
    if (settled.status === 404 || settled.status === 409) return undefined;
    if (settled.status !== 200) return reserved;
    return settled.unpaid ? undefined : settled;
  }

  /** When the same request would be granted, by our clock; `Infinity` if never. Throws if waiting would not help. */
  function retryAtOf(answer: Refused | Problem): number {
    if (answer.status === 429) return answer.retry_at === undefined ? Infinity : answer.retry_at - leadMs;
    // A cost above the capacity can still be reserved, and with 1000 open reservations tokens can still be taken.
    if (answer.max_cost !== undefined || answer.type.endsWith(":too-many-reservations")) return Infinity;
    throw refusal(answer);
  }

  async function sleep(moment: number): Promise<void> {
    signal?.throwIfAborted();
    if (moment <= clock.now()) return;
    let cancel = () => {};
    const woken = new Promise<void>((wake) => {
      cancel = clock.at(moment, wake);
    });
    await orAbort(woken).finally(cancel);
  }

  /** The promise's result, unless the signal aborts first. */
  async function orAbort<T>(coming: Promise<T>): Promise<T> {
    let abort = () => {};
    const aborted = new Promise<never>((_, reject) => {
      abort = () => reject(signal!.reason);
    });
    signal?.addEventListener("abort", abort);
    return Promise.race([coming, aborted]).finally(() => signal?.removeEventListener("abort", abort));
  }
}

function refusal(cause: Refused | Problem): TollgateError {
  const maxCost = (cause as Problem).max_cost;
  const said = `${cause.status}: ${cause.detail}`;
  return maxCost === undefined
    ? new TollgateError("not_granted", said, { cause })
    : new TollgateError("cost_never_granted", said, { cause, maxCost });
}

/** The pauses between the four attempts: about one second, then two, then four. */
const FIRST_PAUSE_MS = 1_000;
const LAST_PAUSE_MS = 4_000;
