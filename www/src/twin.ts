// A server's budget, foreseen.
import type { Decision, Refusal } from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import type { CallOptions, Client, Granted, Inspection, LimitSnapshot, Problem, Refused } from "./client.js";
import { systemClock, type Clock } from "./clock.js";
import { Events } from "./events.js";

/** Whose budget a {@link Twin} follows, and how far it trusts itself. */
export interface TwinOptions {
  readonly policy: string;
  readonly key: string;
  /** How long what is known of the server is believed to be all there is to know, in milliseconds: others may have given back meanwhile. A minute, if left out. */
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
  readonly #request: { readonly policy: string; readonly key: string };
  readonly #trustMs: number;
  /** What was asked, and is not answered yet. */
  readonly #underWay = new Set<{ readonly cost: Cost }>();
  /** What the server has, as if it went by the clock here and got each request in the moment it is sent. */
  #budget: Budget | undefined;
  /** When the server said so, by its clock. */
  #saidAt = -Infinity;
  /** When that was heard, by ours. */
  #heardAt = -Infinity;
  /** How far the server's clock will be ahead of ours when a request arrives that is sent now. */
  #aheadMs = 0;
  #roundTripMs = Infinity;

  constructor(client: Client, { policy, key, trustMs = 60_000, clock = systemClock }: TwinOptions) {
    super();
    this.#client = client;
    this.#request = { policy, key };
    this.#trustMs = trustMs;
    this.clock = clock;
  }

  /** Asks the server how the budget stands. */
  async sync(options?: CallOptions): Promise<Inspection | Problem> {
    const sentAt = this.clock.now();
    const answer = await this.#client.inspect({ ...this.#request, snapshot: true }, options);
    this.#learn(answer, sentAt);
    return answer;
  }

  /** What the server would answer, as far as is known. Yes, before anything is known, and when that was too long ago. */
  peek(cost: Cost = 1): Decision {
    const now = this.clock.now();
    const isKnown = this.#budget && now - this.#heardAt < this.#trustMs;
    return isKnown ? this.#budget!.decide(now, cost, "consume", 0, false) : { allowed: true, tokens: 0, readyAt: now };
  }

  /** How many whole tokens there are, as far as is known. */
  remaining(): number {
    return this.#budget?.remaining(this.clock.now()) ?? 0;
  }

  /** When the budget is full, as far as is known. */
  fullAt(): number {
    return this.#budget?.fullAt(this.clock.now()) ?? Infinity;
  }

  /** Asks the server for `cost` tokens, unless it would refuse them: then that is the answer, and nobody was asked. */
  async consume(cost: Cost = 1, options?: CallOptions): Promise<Granted | Refused | Problem | Predicted> {
    const decision = this.peek(cost);
    const sentAt = this.clock.now();
    if (!decision.allowed) return { ...decision, status: 429, retry_after_ms: decision.retryAt - sentAt, predicted: true };
    const asked = { cost };
    this.#underWay.add(asked);
    this.#debit(asked);
    this.emit();
    // If it fails, the server may have taken the tokens or not. So they stay debited here until it says.
    const answer = await this.#client.consume({ ...this.#request, cost, snapshot: true }, options).finally(() => this.#underWay.delete(asked));
    this.#learn(answer, sentAt);
    return answer;
  }

  #learn({ now, snapshot }: { readonly now?: number | undefined; readonly snapshot?: readonly LimitSnapshot[] | undefined }, sentAt: number): void {
    if (now === undefined) return;
    const heardAt = this.clock.now();
    const roundTripMs = heardAt - sentAt;
    // The smallest round trip says best how long a request is on its way; unless what it said cannot be true any more,
    // because a request was there sooner, or the server's clock is further ahead than any request takes.
    if (roundTripMs <= this.#roundTripMs || now - sentAt < this.#aheadMs || now - heardAt > this.#aheadMs) {
      this.#roundTripMs = roundTripMs;
      this.#aheadMs = now - sentAt;
    }
    if (!snapshot || now < this.#saidAt) return; // answers may overtake each other
    this.#saidAt = now;
    this.#heardAt = heardAt;
    const limits = snapshot.map(({ period_ms, max_debt, at, ...limit }) => ({ ...limit, periodMs: period_ms, maxDebt: max_debt, at: at - this.#aheadMs }));
    this.#budget = new Budget(heardAt, limits);
    this.#budget.restore(limits);
    this.#underWay.forEach((asked) => this.#debit(asked));
    this.emit();
  }

  #debit({ cost }: { readonly cost: Cost }): void {
    this.#budget?.decide(this.clock.now(), cost, "charge");
  }
}

/** A refusal that is known without asking. Moments are of the clock here. */
export interface Predicted extends Refusal {
  readonly status: 429;
  readonly retry_after_ms: number;
  readonly predicted: true;
}
