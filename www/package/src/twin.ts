// A server's budget, foreseen.
import type { Decision, Refusal, Snapshot } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import type {
  CallOptions,
  Client,
  Degraded,
  Granted,
  Inspection,
  LimitSnapshot,
  Problem,
  Refused,
  Request,
} from "./client.js";
import { systemClock, type Clock } from "./clock.js";
import { Events } from "./events.js";

/** Whose budget a {@link Twin} follows, and how far it trusts itself. */
export interface TwinOptions {
  readonly policy: string;
  readonly key: string;
  /** How long nothing is asked, in milliseconds, that would be refused as far as is known: others may have given back meanwhile. A minute, if left out. */
  readonly trustMs?: number;
  /** The time to go by. */
  readonly clock?: Clock;
}

/**
 * Follows the budget of one key on a server, by the same arithmetic, so that nobody asks what is known already. Each
 * answer brings the exact state and the server's time; in between, what is asked is debited here at once. The server
 * decides: whoever the twin lets pass may still be refused there, if others used the budget.
 *
 * Moments that the twin gives are of the clock here.
 *
 * ```js
 * const twin = new Twin(client, { policy: "api", key: "alice" });
 * await twin.sync();
 * const answer = await twin.consume(); // asks the server, or, where that would be in vain, does not
 * if (answer.status === 429) show(`again in ${answer.retry_after_ms} ms`);
 * ```
 */
export class Twin extends Events<void> {
  readonly clock: Clock;
  readonly #client: Client;
  readonly #request: Request;
  readonly #trustMs: number;
  /** What was asked, in this order, and is neither answered nor in what the server said last. */
  readonly #underWay = new Set<Asked>();
  /** What the server has, as if it went by the clock here and got each request in the moment it is sent. */
  #budget: Budget | undefined;
  /** What it said last, and the moment that it spoke of, both as if it went by the clock here. */
  #said: readonly Snapshot[] = [];
  #saidAt = -Infinity;
  #askedAt = -Infinity;
  /** How far the server's clock is ahead of ours when a request arrives, at the least. */
  #aheadMs = Infinity;

  constructor(client: Client, { policy, key, trustMs = 60_000, clock = systemClock }: TwinOptions) {
    super();
    this.#client = client;
    this.#request = { policy, key, snapshot: true };
    this.#trustMs = trustMs;
    this.clock = clock;
  }

  /** Asks the server how the budget stands. */
  sync(options?: CallOptions): Promise<Inspection | Problem> {
    return this.#ask(0, () => this.#client.inspect(this.#request, options));
  }

  /**
   * What the server would answer, as far as is known. Yes, where nothing is: before it said anything, when it was not
   * asked for long, and for a cost that does not fit the limits it had then.
   */
  peek(cost: Cost = 1): Decision {
    const sentAt = this.clock.now();
    return (
      (sentAt - this.#askedAt < this.#trustMs && this.#decide({ cost, sentAt }, false)) || {
        allowed: true,
        tokens: 0,
        readyAt: sentAt,
      }
    );
  }

  /** How many whole tokens there are, as far as is known. */
  remaining(): number {
    return this.#budget?.remaining(this.clock.now()) ?? 0;
  }

  /** When the budget is full, as far as is known. */
  fullAt(): number {
    return this.#budget?.fullAt(this.clock.now()) ?? Infinity;
  }

  /**
   * Asks the server for `cost` tokens, unless it would refuse them: then that is the answer, and nobody was asked. With
   * an idempotency key it always is, because it may have granted that before.
   */
  async consume(cost: Cost = 1, options?: CallOptions): Promise<Granted | Degraded | Refused | Problem | Predicted> {
    const decision = this.peek(cost);
    if (!decision.allowed && !options?.idempotencyKey) {
      return { ...decision, status: 429, retry_after_ms: decision.retryAt - this.clock.now(), predicted: true };
    }
    return this.#ask(cost, () => this.#client.consume({ ...this.#request, cost }, options));
  }

  async #ask<Answer extends Said>(cost: Cost, ask: () => Promise<Answer>): Promise<Answer> {
    const asked = { cost, sentAt: (this.#askedAt = this.clock.now()) };
    this.#underWay.add(asked);
    this.#decide(asked, true);
    this.emit();
    try {
      const answer = await ask();
      this.#learn(answer, asked);
      return answer;
    } finally {
      this.#underWay.delete(asked);
    }
  }

  #learn({ status, now, snapshot }: Said, asked: Asked): void {
    const underWay = this.#underWay;
    if (snapshot) {
      const heardAt = this.clock.now();
      const aheadMs = now! - asked.sentAt;
      // The quickest request says it best; unless the server's clock is now ahead by more, even if the answer took no time.
      if (aheadMs < this.#aheadMs || now! - heardAt > this.#aheadMs) this.#aheadMs = aheadMs;
      const saidAt = now! - this.#aheadMs;
      let isIn = underWay.has(asked);
      if (isIn || saidAt > this.#saidAt) {
        // answers may overtake each other
        this.#saidAt = saidAt;
        // What was sent before is in it, and so is perhaps what may have overtaken it.
        for (const other of underWay) {
          if (isIn || other.sentAt < saidAt) underWay.delete(other);
          if (other === asked) isIn = false;
        }
        const limits = snapshot.map(({ period_ms, max_debt, at, ...limit }) => ({
          ...limit,
          periodMs: period_ms,
          maxDebt: max_debt,
          at: at - this.#aheadMs,
        }));
        this.#said = limits;
        this.#budget = new Budget(heardAt, limits);
      }
    } else if (status === 200 || status >= 500) return; // It may have taken the tokens or not: they stay debited until it says.
    underWay.delete(asked);
    this.#budget?.restore(this.#said);
    underWay.forEach((other) => this.#decide(other, true));
    this.emit();
  }

  #decide({ cost, sentAt }: Asked, keep: boolean): Decision | undefined {
    try {
      return this.#budget?.decide(sentAt, cost, "consume", 0, keep);
    } catch {
      return undefined; // the policy may have other limits by now
    }
  }
}

/** A request. */
interface Asked {
  readonly cost: Cost;
  readonly sentAt: number;
}

/** What of an answer teaches something. */
interface Said {
  readonly status: number;
  readonly now?: number | undefined;
  readonly snapshot?: readonly LimitSnapshot[] | undefined;
}

/** A refusal that is known without asking. Moments are of the clock here. */
export interface Predicted extends Refusal {
  readonly status: 429;
  readonly retry_after_ms: number;
  readonly predicted: true;
}
