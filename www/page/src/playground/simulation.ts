// A policy that is asked: the decisions of the package, in virtual time. It can be played again from any moment of the past.
import { bisector, sort } from "d3-array";
import { Budget } from "tollgate";
import { type Amount, amountOf, costOf, fitted } from "../levels/amount.ts";
import { type Event, mayWait, namesCost, type Reservation, START, Track } from "../levels/track.ts";
import type { Policy } from "./policy.ts";
import type { Ask } from "./trace.ts";

export class Simulation extends Track {
  readonly policy: Policy;
  readonly #budget: Budget<string>;
  /** So many reservations, from the first on, are known to have ended. */
  #ended = 0;
  /** The places of reservations, by when they expire, of which so many from the first on are dealt with. */
  #expiring: number[] = [];
  #expired = 0;

  constructor(policy: Policy) {
    super(policy.name, policy.limits);
    this.policy = policy;
    this.#budget = new Budget<string>(START, policy.limits);
  }

  /** Answers what is asked, not before anything that was asked already. */
  ask({ at, verb, cost: asked }: Ask): Event | undefined {
    this.expire(at);
    const named = namesCost(verb) ? asked : 0;
    const cost = typeof named === "number" ? named : fitted(named, this.limits); // it may have been meant for another policy
    if (verb === "consume" || mayWait(verb)) {
      const event = this.#decide(at, verb, verb, cost);
      if (verb === "reserve" && event.decision.allowed) {
        const readyAt = event.decision.readyAt - START;
        const expiresAt = readyAt + this.policy.reservationTtlMs;
        this.reservations.push({ at, readyAt, expiresAt, cost });
        const place = bisector(this.#expiresAt).right(this.#expiring, expiresAt, this.#expired);
        this.#expiring.splice(place, 0, this.reservations.length - 1);
      }
      return event;
    }
    const open = this.reservations[this.#oldest()];
    const isClosed = verb === "settle" || verb === "cancel";
    if (isClosed && !open) return undefined; // there is nothing that could be meant
    const tokens = this.limits.map(({ name }, i) => {
      const asked = amountOf(cost, name);
      if (!isClosed) return this.#moved(i, at, verb, asked);
      const reserved = amountOf(open!.cost, name);
      const moved = this.#moved(i, at, asked > reserved ? "charge" : "refund", Math.abs(asked - reserved));
      return verb === "cancel" ? moved : reserved + Math.sign(asked - reserved) * moved;
    });
    const event = isClosed ? this.#close(at, verb, cost, open!) : this.#decide(at, verb, verb, cost);
    const told = { ...event, tokens };
    this.events[this.events.length - 1] = told;
    return told;
  }

  /** Ends the reservations that were not settled in time. */
  expire(now: number) {
    for (; this.#expired < this.#expiring.length; this.#expired += 1) {
      const index = this.#expiring[this.#expired]!;
      const { end, expiresAt, cost } = this.reservations[index]!;
      if (expiresAt > now) return;
      if (end) continue;
      this.#end(index, expiresAt, "expired");
      // Nothing was decided since: it is called before each decision.
      if (this.policy.refundsUnsettled) this.#decide(expiresAt, "expired", "refund", cost);
    }
  }

  /** Forgets all that was decided later than this moment. */
  rewind(to: number) {
    const kept = this.count(to);
    const expiredAt = this.#expired > 0 ? this.#expiresAt(this.#expiring[this.#expired - 1]!) : 0;
    if (kept === this.events.length && expiredAt <= to) return;
    this.events.length = kept;
    this.#budget.restore([...(this.events.at(-1)?.states ?? this.first)]);
    this.reservations = this.reservations
      .filter(({ at }) => at <= to)
      .map(({ end, ...open }) => (end && end.at <= to ? { ...open, end } : open));
    this.#ended = 0;
    this.#expiring = sort(this.reservations.keys(), this.#expiresAt);
    this.#expired = 0;
  }

  /** Whether a reservation is open at this moment. */
  open(at: number): boolean {
    return this.reservations.some(({ at: made, end }) => made <= at && !(end && end.at <= at));
  }

  /** How a limit stands right after a decision, and what it alone has said. */
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
    // Where each limit may have a start of its own, it is asked again as before.
    const isAdvance = decision.allowed && mayWait(verb);
    if (isAdvance) bucket.decide(now, { verb: "refund", cost: asked.cost });
    const alone = decision.allowed && !isAdvance ? decision : bucket.peek(now, asked);
    bucket.restore(states[limit]!);
    // The next token for a caller who takes all that there are.
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
    while (this.reservations[this.#ended]?.end) this.#ended += 1;
    return this.#ended;
  }

  /** Closes a reservation, at its real cost or at none. */
  #close(at: number, verb: "settle" | "cancel", cost: Amount, open: Reservation): Event {
    this.#end(this.#oldest(), at, verb === "settle" ? "settled" : "cancelled");
    const more = this.policy.limits.map(({ name }) => amountOf(cost, name) - amountOf(open.cost, name));
    const part = (sign: number) =>
      costOf(
        this.limits,
        more.map((tokens) => Math.max(0, sign * tokens)),
      );
    if (more.some((tokens) => tokens > 0)) this.#decide(at, verb, "charge", part(1), cost);
    return this.#decide(at, verb, "refund", part(-1), cost);
  }

  /** How many tokens of a limit would move now: whole ones, while what is admitted may have the fraction of one more. */
  #moved(limit: number, at: number, verb: "charge" | "refund" | "reset", cost: number): number {
    const bucket = this.viewed[limit]!;
    bucket.restore((this.events.at(-1)?.states ?? this.first)[limit]!);
    const decision = bucket.decide(START + at, { verb, cost });
    return decision.allowed ? decision.tokens : 0;
  }

  #end(index: number, at: number, how: NonNullable<Reservation["end"]>["how"]) {
    this.reservations[index] = { ...this.reservations[index]!, end: { at, how } };
  }

  #decide(
    at: number,
    verb: Event["verb"],
    asked: Exclude<Ask["verb"], "settle" | "cancel">,
    tokens: Amount,
    cost = tokens,
  ): Event {
    const now = START + at;
    const before = this.#budget.save(now);
    const decision = this.#budget.decide(now, { verb: asked, cost: tokens });
    const states = this.#budget.save(now);
    const last = this.events.at(-1);
    const admitted = states.map(({ tokens }, i) => (last?.admitted[i] ?? 0) + before[i]!.tokens - tokens);
    return this.add({ at, verb, cost, decision, states, admitted });
  }
}
