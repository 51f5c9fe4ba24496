// Predicts a server's answers.
import type { Decision, Refusal, Snapshot } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import type {
  BudgetRequest,
  CallOptions,
  Client,
  Degraded,
  Granted,
  Inspection,
  LimitSnapshot,
  Problem,
  Refused,
} from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { Emitter } from "./events.js";

/** Which budget a {@link Twin} follows, and for how long it trusts itself. */
export interface TwinOptions {
  readonly policy: string;
  readonly key: string;
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
export class Twin extends Emitter<void> {
  readonly clock: Clock;
  readonly #client: Client;
  readonly #request: BudgetRequest;
  readonly #trustMs: number;
  /** Requests, in the order sent, that are not yet in the state that the server reported last. */
  readonly #inFlight = new Set<Call>();
  /** The server's budget, as if the server used the local clock and received each request when it was sent. */
  #budget: Budget<string> | undefined;
  /** The state that the server reported last, and its moment, both by the local clock. */
  #reported: readonly Snapshot[] = [];
  #reportedAt = -Infinity;
  #sentAt = -Infinity;
  /** The server's time on arrival minus the local time on sending, at its smallest. */
  #aheadMs = Infinity;

  constructor(client: Client, { policy, key, trustMs = 60_000, clock = systemClock }: TwinOptions) {
    super();
    this.#client = client;
    this.#request = { policy, key, snapshot: true };
    this.#trustMs = trustMs;
    this.clock = clock;
  }

  /** Fetches the state of the budget from the server. */
  sync(options?: CallOptions): Promise<Inspection | Problem> {
    return this.#send(0, () => this.#client.inspect(this.#request, options));
  }

  /**
   * Returns the answer that the server is expected to give. Granted, where the twin does not know: before the first
   * response, `trustMs` after the last request, and for a cost that does not fit the limits it knows.
   */
  peek(cost: Cost<string> = 1): Decision {
    const sentAt = this.clock.now();
    return (
      (sentAt - this.#sentAt < this.#trustMs && this.#decide({ cost, sentAt }, "peek")) || {
        allowed: true,
        tokens: 0,
        readyAt: sentAt,
        remaining: this.remaining(),
        retryAfterMs: 0,
      }
    );
  }

  /** How many whole tokens there are, as far as the twin knows. */
  remaining(): number {
    return this.#budget?.remaining(this.clock.now()) ?? 0;
  }

  /** When there is one more, as far as the twin knows. */
  nextTokenAt(): number {
    return this.#budget?.nextTokenAt(this.clock.now()) ?? Infinity;
  }

  /** When the budget is full, as far as the twin knows. */
  fullAt(): number {
    return this.#budget?.fullAt(this.clock.now()) ?? Infinity;
  }

  /**
   * Asks the server for `cost` tokens. If the server is expected to refuse, returns that answer without asking. With an
   * idempotency key it always asks, because the server may have granted the same request before.
   */
  async consume(
    cost: Cost<string> = 1,
    options?: CallOptions,
  ): Promise<Granted | Degraded | Refused | Problem | Predicted> {
    const decision = this.peek(cost);
    if (!decision.allowed && !options?.idempotencyKey) {
      return { ...decision, status: 429, retry_after_ms: decision.retryAfterMs, predicted: true };
    }
    return this.#send(cost, () => this.#client.consume({ ...this.#request, cost }, options));
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
        const limits = snapshot.map(({ period_ms, max_debt, at, ...limit }) => ({
          ...limit,
          periodMs: period_ms,
          maxDebt: max_debt,
          at: at - this.#aheadMs,
        }));
        this.#reported = limits;
        this.#budget = new Budget(receivedAt, limits);
      }
    } else if (status === 200 || status >= 500) return; // perhaps taken: debited until the server reports its state
    inFlight.delete(call);
    this.#budget?.restore(this.#reported);
    for (const other of inFlight) this.#decide(other);
    this.emit();
  }

  #decide({ cost, sentAt }: Call, method: "decide" | "peek" = "decide"): Decision | undefined {
    try {
      return this.#budget?.[method](sentAt, { cost });
    } catch {
      return undefined; // the cost is not one for these limits: the policy may have others by now
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
