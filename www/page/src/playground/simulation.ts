// A simulated policy: the package's decisions, in virtual time.
import { bisector } from "d3-array";
import { Budget, type Snapshot } from "tollgate";
import { type Amount, amountOf, fitted } from "../levels/amount.ts";
import { type Event, mayWait, namesCost, type Reservation, START, Track } from "../levels/track.ts";
import { Hindsight } from "./hindsight.ts";
import type { Policy } from "./policy.ts";
import type { Ask } from "./trace.ts";

export class Simulation extends Track {
  readonly policy: Policy;
  readonly #budget: Budget<string>;
  /** One for each limit, while a reservation is open. */
  #hindsight: readonly Hindsight[] = [];
  /** How many reservations are open. */
  #open = 0;
  /** How many reservations, from the first on, are known to have ended. */
  #past = 0;
  /** The places of reservations by expiry, and how many from the first on are done. */
  #expiring: number[] = [];
  #expired = 0;

  constructor(policy: Policy) {
    super(policy.name, policy.limits);
    this.policy = policy;
    this.#budget = new Budget<string>(START, policy.limits);
  }

  /** Answers a request, no earlier than any previous one. */
  ask({ at, verb, cost: asked }: Ask): Event | undefined {
    this.expire(at);
    const named = namesCost(verb) ? asked : 0;
    const cost = typeof named === "number" ? named : fitted(named, this.limits); // it may have been meant for another policy
    if (verb === "consume" || mayWait(verb)) {
      const event = this.#decide(at, verb, cost);
      if (verb === "reserve" && event.decision.allowed) {
        const readyAt = event.decision.readyAt - START;
        const expiresAt = readyAt + this.policy.reservationTtlMs;
        this.#opened({ at, readyAt, expiresAt, cost }, event);
        const place = bisector(this.#expiresAt).right(this.#expiring, expiresAt, this.#expired);
        this.#expiring.splice(place, 0, this.reservations.length - 1);
      }
      return event;
    }
    if (verb === "settle" || verb === "cancel") {
      const open = this.#oldest();
      return this.reservations[open] && this.#close(at, verb, open, cost); // or there is nothing that could be meant
    }
    const tokens = this.limits.map(({ name }, i) => this.#moved(i, at, verb, amountOf(cost, name)));
    return this.#decide(at, verb, cost, { tokens });
  }

  /** Ends the reservations that were not settled in time. */
  expire(now: number) {
    for (; this.#expired < this.#expiring.length; this.#expired += 1) {
      const index = this.#expiring[this.#expired]!;
      const { end, expiresAt, cost } = this.reservations[index]!;
      if (expiresAt > now) return;
      if (end) continue;
      // Nothing has been decided since: it is called before each decision.
      if (this.policy.refundsUnsettled) this.#close(expiresAt, "expired", index, cost);
      else this.#ended(index, expiresAt, "expired");
    }
  }

  /** Whether a reservation is open at this moment. */
  open(at: number): boolean {
    return this.reservations.some(({ at: made, end }) => made <= at && !(end && end.at <= at));
  }

  /** A limit's state right after a decision, and its own verdict. */
  standing(limit: number, { at, verb, cost, states, decision }: Event) {
    const bucket = this.viewed[limit]!;
    const now = START + at;
    bucket.restore(states[limit]!);
    const remaining = bucket.remaining(now);
    const standing = { remaining, owed: bucket.owed(now), fullAt: bucket.fullAt(now) };
    const amount = amountOf(cost, this.policy.limits[limit]!.name);
    // A cost of zero beside one of another limit has no part in the decision: see `Budget`.
    const hasNoSay = amount === 0 && this.policy.limits.some(({ name }) => amountOf(cost, name) > 0);
    const isRefund = hasNoSay || verb === "settle" || verb === "cancel" || verb === "expired";
    const asked = { verb: isRefund ? "refund" : verb, cost: amount } as const;
    // If each limit may have its own start, it is asked again as before.
    const isAdvance = decision.allowed && mayWait(verb);
    if (isAdvance) bucket.decide(now, { verb: "refund", cost: asked.cost });
    const alone = decision.allowed && !isAdvance ? decision : bucket.peek(now, asked);
    bucket.restore(states[limit]!);
    // The next token for a caller that takes all of them.
    bucket.tryConsume(now, remaining);
    const next = bucket.peek(now);
    bucket.decide(now, { verb: "reset" });
    const all = bucket.peek(now, { ...asked, cost: Number.MAX_SAFE_INTEGER });
    return {
      ...standing,
      alone,
      tokenAt: next.allowed ? now : next.retryAt,
      /** The largest cost that it can ever grant. */
      largest: (all.allowed ? undefined : all.maxCost) ?? Infinity,
    };
  }

  readonly #expiresAt = (index: number) => this.reservations[index]!.expiresAt;

  /** The place of the oldest open reservation, or the end of the list. */
  #oldest(): number {
    while (this.reservations[this.#past]?.end) this.#past += 1;
    return this.#past;
  }

  #opened(reservation: Reservation, { at, states }: Event) {
    if (this.#open === 0)
      this.#hindsight = this.viewed.map((bucket, i) => new Hindsight(bucket, this.limits[i]!, states[i]!));
    for (const limit of this.#hindsight) limit.open(this.reservations.length, START + at);
    this.reservations.push(reservation);
    this.#open += 1;
  }

  #ended(index: number, at: number, how: NonNullable<Reservation["end"]>["how"]) {
    this.reservations[index] = { ...this.reservations[index]!, end: { at, how } };
    this.#open -= 1;
    if (this.#open === 0) this.#hindsight = [];
  }

  /** Closes a reservation at its real cost, or at none. All is then as if it had cost that from the start. */
  #close(at: number, verb: "settle" | "cancel" | "expired", index: number, cost: Amount): Event {
    const now = START + at;
    const before = this.#budget.save(now);
    const reserved = this.reservations[index]!.cost;
    const closed = this.#hindsight.map((limit, i) => {
      const { name } = this.limits[i]!;
      return limit.close(index, amountOf(reserved, name), verb === "settle" ? amountOf(cost, name) : 0, now);
    });
    this.#ended(index, at, verb === "settle" ? "settled" : verb === "cancel" ? "cancelled" : verb);
    const tokens = closed.map(({ cost, state }, i) => (verb === "settle" ? cost : whole(state, before[i]!)));
    this.#budget.restore(closed.map(({ state }) => state));
    const decision = this.#budget.decide(now, { verb: "refund", cost: 0 });
    return this.#add({ at, verb, cost, decision, ...(verb !== "expired" && { tokens }) }, before);
  }

  /** How many tokens of a limit would move now: whole ones, while what is admitted may have the fraction of one more. */
  #moved(limit: number, at: number, verb: "charge" | "refund" | "reset", cost: number): number {
    const bucket = this.viewed[limit]!;
    bucket.restore((this.events.at(-1)?.states ?? this.first)[limit]!);
    const decision = bucket.decide(START + at, { verb, cost });
    return decision.allowed ? decision.tokens : 0;
  }

  #decide(
    at: number,
    verb: Exclude<Ask["verb"], "settle" | "cancel">,
    cost: Amount,
    told: Pick<Event, "tokens"> = {},
  ): Event {
    const now = START + at;
    const before = this.#budget.save(now);
    const decision = this.#budget.decide(now, { verb, cost });
    const event = this.#add({ at, verb, cost, decision, ...told }, before);
    for (const [i, limit] of this.#hindsight.entries())
      limit.follow(verb, amountOf(cost, this.limits[i]!.name), before[i]!, event.states[i]!, now);
    return event;
  }

  #add(decided: Omit<Event, "states" | "admitted" | "granted" | "refused">, before: readonly Snapshot[]): Event {
    const states = this.#budget.save(START + decided.at);
    const last = this.events.at(-1);
    const admitted = states.map(({ tokens }, i) => (last?.admitted[i] ?? 0) + before[i]!.tokens - tokens);
    return this.add({ ...decided, states, admitted });
  }
}

/** How many whole tokens one state has more than another. */
const whole = (one: Snapshot, other: Snapshot) => one.tokens - other.tokens - Number(one.drops < other.drops);
