// Predicts a server's answers.
import { type Decision, LAST_MOMENT, type Refusal, type Snapshot } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import type {
  BudgetRequest,
  CallOptions,
  Client,
  Degraded,
  Granted,
  Inspection,
  Key,
  LimitNames,
  LimitSnapshot,
  PolicyName,
  PolicyNames,
  Problem,
  Refused,
} from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import { Emitter } from "./events.js";
import { answerOf } from "./not-granted.js";
import { type AcquireOptions, waitTooLong } from "./queue.js";

/** Which budget a {@link Twin} follows, and for how long it trusts itself. */
export interface TwinOptions<Name extends string = string> {
  readonly policy: Name;
  /** Required, unless the client's credential is a grant, which has its own key, or the policy has one budget for all. */
  readonly key?: Key;
  /**
   * How many milliseconds after its last request the twin still withholds what it expects to be refused. Then it asks,
   * because others may have given tokens back. Default: a minute.
   */
  readonly trustMs?: number;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
}

/**
 * Follows the budget of one key on a server by the same arithmetic, so that a request that would be refused need not be
 * sent. Each response brings the exact state and the server's time; in between, the twin debits each request as it is
 * sent. The server decides: if others use the same budget, it may refuse what the twin lets through.
 *
 * Moments that the twin returns are by the local clock.
 *
 * ```js
 * const twin = new Twin(client, { policy: "api", key: "alice" });
 * await twin.sync();
 * const answer = await twin.consume(); // asks the server, unless it is known to refuse
 * if (answer.status === 429) show(`again in ${answer.retry_after_ms} ms`);
 * ```
 */
export class Twin<P extends PolicyNames = string, Name extends PolicyName<P> = PolicyName<P>> extends Emitter<void> {
  readonly clock: Clock;
  readonly #client: Client;
  readonly #request: BudgetRequest;
  readonly #trustMs: number;
  /** Requests, in the order sent, that are not yet in the state that the server reported last. */
  readonly #inFlight = new Set<Call>();
  /** Resolves when every `acquire` call so far has been sent or has left. */
  #turn: Promise<unknown> = Promise.resolve();
  #pausedUntil = -Infinity;
  /** The server's budget, as if the server used the local clock and received each request when it was sent. */
  #budget: Budget<string> | undefined;
  /** The limits of that budget, as text. */
  #limits = "";
  /** The state that the server reported last, and its moment, both by the local clock. */
  #reported: readonly Snapshot[] = [];
  #reportedAt = -Infinity;
  #sentAt = -Infinity;
  /** The server's time on arrival minus the local time on sending, at its smallest. */
  #aheadMs = Infinity;

  constructor(client: Client<P>, { policy, key, trustMs = 60_000, clock = systemClock }: TwinOptions<Name>) {
    super();
    this.#client = client as unknown as Client;
    this.#request = { policy, key, snapshot: true } as BudgetRequest; // undefined members are not sent
    this.#trustMs = trustMs;
    this.clock = clock;
  }

  /** Fetches the state of the budget from the server. */
  sync(options?: CallOptions): Promise<Inspection | Problem> {
    return this.#send(0, () => this.#client.inspect(this.#request, options));
  }

  /**
   * Returns the answer that the server is expected to give. Granted, if the twin does not know: before the first
   * response, `trustMs` after the last request, and for a cost that does not fit the limits it knows. Refused during a
   * pause.
   */
  peek(cost: Cost<LimitNames<P>[Name] & string> = 1): Decision {
    const sentAt = this.clock.now();
    const remaining = this.remaining();
    const retryAt = this.#pausedUntil;
    if (retryAt > sentAt) return { allowed: false, retryAt, retryAfterMs: retryAt - sentAt, remaining };
    return (
      (sentAt - this.#sentAt < this.#trustMs && this.#decide({ cost, sentAt }, "peek")) || {
        allowed: true,
        tokens: 0,
        readyAt: sentAt,
        remaining,
        retryAfterMs: 0,
      }
    );
  }

  /** How many whole tokens are left, as far as the twin knows. */
  remaining(): number {
    return this.#budget?.remaining(this.clock.now()) ?? 0;
  }

  /** When there is one more, as far as the twin knows, or when it will ask the server again in any case. */
  nextTokenAt(): number {
    return Math.min(this.#budget?.nextTokenAt(this.clock.now()) ?? Infinity, this.#asksAgainAt());
  }

  /** When the budget is full, as far as the twin knows. */
  fullAt(): number {
    return this.#budget?.fullAt(this.clock.now()) ?? Infinity;
  }

  /**
   * Asks the server for `cost` tokens. If the server is expected to refuse, returns that answer without asking. It always
   * asks with an idempotency key, because the server may have granted the same request before, and for a cost larger
   * than a capacity, which is an error (400) and not a refusal.
   */
  async consume(
    cost: Cost<LimitNames<P>[Name] & string> = 1,
    options?: CallOptions,
  ): Promise<Granted | Degraded | Refused | Problem | Predicted> {
    const decision = this.peek(cost);
    if (!decision.allowed && !options?.idempotencyKey && !this.#exceedsCapacity(cost)) {
      return { ...decision, status: 429, retry_after_ms: decision.retryAfterMs, predicted: true };
    }
    return this.#send(cost, () => this.#client.consume({ ...this.#request, cost }, options).catch(answerOf));
  }

  /**
   * Waits until the server is expected to grant `cost` tokens, asks it, and waits again if it refuses. First come, first
   * asked; there are no priorities but 0. Rejects with the signal's reason or with a {@link TollgateError}: `wait_too_long`, `not_granted`, or what the
   * client throws.
   */
  async acquire({
    cost = 1,
    signal,
    maxWaitMs = Infinity,
    priority = 0,
  }: AcquireOptions<LimitNames<P>[Name] & string> = {}): Promise<Granted | Degraded> {
    checkWhole("priority", priority, 0, 0);
    const deadline = this.clock.now() + checkWhole("maxWaitMs", maxWaitMs, 0, Infinity);
    signal?.throwIfAborted();
    let isFirst = false;
    const turn = this.#turn.then(() => {
      isFirst = true;
    });
    let leave = () => {};
    this.#turn = new Promise<void>((resolve) => {
      leave = resolve;
    });
    try {
      await this.#sleep(deadline + 1, signal, (wake) => void turn.then(wake) as undefined);
      for (;;) {
        signal?.throwIfAborted();
        if (!isFirst) throw waitTooLong(deadline + 1);
        const decision = this.peek(cost);
        if (!decision.allowed && decision.retryAt < Infinity) {
          if (decision.retryAt > deadline) throw waitTooLong(decision.retryAt);
          await this.#sleep(Math.min(decision.retryAt, this.#asksAgainAt()), signal, (wake) => this.on(wake));
          continue;
        }
        const answered = this.consume(cost, signal ? { signal } : {});
        leave();
        const answer = await answered;
        if (answer.status === 200) return answer;
        const { retry_after_ms = Infinity } = answer as Refused;
        const retryAt = this.clock.now() + retry_after_ms;
        if (retryAt === Infinity) throw new TollgateError("not_granted", `status ${answer.status}`, { cause: answer });
        if (retryAt > deadline) throw waitTooLong(retryAt);
        await this.#sleep(retryAt, signal);
      }
    } finally {
      void turn.then(leave);
    }
  }

  /** Admits nothing before `moment`, for example because a server said so. A later pause is never shortened. */
  pause(moment: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, checkWhole("moment", moment, -LAST_MOMENT, LAST_MOMENT));
    this.emit();
  }

  /** Ends a pause. */
  resume(): void {
    this.#pausedUntil = -Infinity;
    this.emit();
  }

  async #send<Answer extends Report>(cost: Cost<string>, send: () => Promise<Answer>): Promise<Answer> {
    this.#sentAt = this.clock.now();
    const call = { cost, sentAt: this.#sentAt };
    this.#inFlight.add(call);
    this.#decide(call);
    this.emit();
    try {
      const answer = await send();
      this.#learn(answer, call);
      return answer;
    } finally {
      this.#inFlight.delete(call);
    }
  }

  #learn({ status, now, snapshot }: Report, call: Call): void {
    const inFlight = this.#inFlight;
    if (snapshot) {
      const receivedAt = this.clock.now();
      const aheadMs = now! - call.sentAt;
      // The quickest round trip is the best estimate, unless the server's clock is now further ahead than even a reply
      // that took no time would explain.
      if (aheadMs < this.#aheadMs || now! - receivedAt > this.#aheadMs) this.#aheadMs = aheadMs;
      const reportedAt = now! - this.#aheadMs;
      let isIncluded = inFlight.has(call);
      // Responses may overtake each other: an older state teaches nothing.
      if (isIncluded || reportedAt > this.#reportedAt) {
        this.#reportedAt = reportedAt;
        // The state includes what was sent before this call, and may include what was sent later but could have
        // overtaken it.
        for (const other of inFlight) {
          if (isIncluded || other.sentAt < reportedAt) inFlight.delete(other);
          if (other === call) isIncluded = false;
        }
        this.#reported = snapshot.map(({ tokens, drops, at }) => ({ tokens, drops, at: at - this.#aheadMs }));
        const limits = snapshot.map(({ tokens, drops, at, period_ms, max_debt, kind, ...limit }) => ({
          ...limit,
          // Of windows from first use and of a calendar it knows the one that is open; the next answer tells of the next. Of a rolling
          // window it knows when all is back.
          kind: kind === "token_bucket" ? kind : ("fixed_window" as const),
          periodMs: period_ms,
          maxDebt: max_debt,
        }));
        const text = JSON.stringify(limits);
        if (text !== this.#limits) this.#budget = new Budget<string>(receivedAt, limits);
        this.#limits = text;
      }
    } else if (status === 200 || status >= 500) return; // perhaps taken: debited until the server reports its state
    inFlight.delete(call);
    this.#budget?.restore(this.#reported);
    for (const other of inFlight) this.#decide(other);
    this.emit();
  }

  /** When the twin will no longer trust itself; `Infinity` if it does not now. */
  #asksAgainAt(): number {
    const moment = this.#sentAt + this.#trustMs;
    return moment > this.clock.now() ? moment : Infinity;
  }

  #exceedsCapacity(cost: Cost<string>): boolean {
    return !!this.#budget?.limits.some(
      ({ name, capacity }) => (typeof cost === "number" ? cost : cost[name!]!) > capacity!,
    );
  }

  /** Waits until `moment`, until `listen` wakes it, or until an abort. */
  #sleep(
    moment: number,
    signal: AbortSignal | null | undefined,
    listen?: (wake: () => void) => (() => void) | undefined,
  ): Promise<void> {
    let end: () => void;
    return new Promise<void>((resolve) => {
      const wake = () => resolve();
      const off = listen?.(wake);
      const cancel = moment < Infinity ? this.clock.at(moment, wake) : undefined;
      signal?.addEventListener("abort", wake);
      end = () => {
        off?.();
        cancel?.();
        signal?.removeEventListener("abort", wake);
      };
    }).finally(() => end());
  }

  #decide({ cost, sentAt }: Call, method: "decide" | "peek" = "decide"): Decision | undefined {
    try {
      return this.#budget?.[method](sentAt, { cost });
    } catch {
      return undefined; // the cost does not fit these limits: the policy may have others by now
    }
  }
}

/** A request. */
interface Call {
  readonly cost: Cost<string>;
  readonly sentAt: number;
}

/** The members of an answer that the twin learns from. */
interface Report {
  readonly status: number;
  readonly now?: number | undefined;
  readonly snapshot?: readonly LimitSnapshot[] | undefined;
}

/** A refusal that was predicted, without asking the server. Moments are by the local clock. */
export interface Predicted extends Refusal {
  readonly status: 429;
  readonly retry_after_ms: number;
  readonly predicted: true;
  readonly headers?: undefined;
}
