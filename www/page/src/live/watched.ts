// A key of the service as it is followed from here: what the service says of it, what others take meanwhile, and what the package's twin
// has predicted.
import { Bucket, type Client, type Key, type LimitSnapshot, type Snapshot, Twin } from "tollgate";
import { type Amount, amountOf, fitted } from "../levels/amount.ts";
import { type Event, type Reservation, START, Track } from "../levels/track.ts";
import type { Act } from "../shared/acts.tsx";

/** A request that was made here. Moments are milliseconds since the key is followed. */
export interface Asked {
  readonly at: number;
  readonly verb: Act;
  readonly cost: Amount;
  /** What the twin expected of a consumption; nothing before the first answer. */
  readonly predicted?: { readonly allowed: boolean; readonly remaining: number };
  /** What the service said: nothing if it could not decide. */
  readonly allowed?: boolean;
  readonly remaining?: number;
  readonly text: string;
  readonly roundTripMs: number;
}

/** Whose budget: with a grant, the key can be that of the grant. */
export interface Followed {
  readonly policy: string;
  readonly key?: Key;
}

export class Watched {
  readonly asked: Asked[] = [];
  /** Begins anew when the numbers of the policy change. */
  track: Track | undefined;
  /** Why the service did not answer last; empty if it did. */
  problem = "";
  /** Of the quickest answer: what it took, and how far the service's clock is ahead of this one. */
  quickest = { roundTripMs: Infinity, aheadMs: 0 };
  readonly #client: Client;
  readonly #of: Followed;
  readonly #twin: Twin;
  readonly #began: number;
  #numbers = "";
  /** What the service said last, by its clock: a moment by another one may be a millisecond off, which is a token now and then. */
  #buckets: readonly Bucket[] = [];
  #turn: Promise<unknown> = Promise.resolve();
  #awaited = 0;
  /** Reservations that were made here, by their ids, the oldest first. */
  readonly #open = new Map<string, Reservation>();

  constructor(client: Client, followed: Followed) {
    this.#client = client;
    this.#of = followed;
    this.#twin = new Twin(client, followed);
    this.#began = this.#twin.clock.now();
  }

  /** Milliseconds since the key is followed. */
  now(): number {
    return this.#twin.clock.now() - this.#began;
  }

  /** What the twin says is left now. */
  predicted(): number {
    return this.#twin.remaining();
  }

  /** Whether a reservation that was made here can be closed. */
  canSettle(): boolean {
    return this.#oldest() !== undefined;
  }

  /** Asks how the key stands, unless an answer is awaited already. */
  async look(): Promise<void> {
    if (this.#awaited === 0) await this.#inTurn(() => this.#look());
  }

  /** Asks something of the service, also where the twin would not, so that one can compare. Settle and cancel are for the oldest reservation. */
  ask(verb: Act, amount: Amount): Promise<Asked> {
    return this.#inTurn(() => this.#ask(verb, amount));
  }

  /** One after the other, so that an answer's state has what was asked before it, and nothing that was asked later. */
  #inTurn<Result>(act: () => Promise<Result>): Promise<Result> {
    this.#awaited += 1;
    const result = this.#turn.then(act).finally(() => {
      this.#awaited -= 1;
    });
    this.#turn = result;
    return result;
  }

  async #look(): Promise<void> {
    await this.#answered(() => this.#twin.sync());
  }

  async #ask(verb: Act, amount: Amount): Promise<Asked> {
    const cost = this.track ? fitted(amount, this.track.limits) : amount;
    const isKnown = verb === "consume" && this.track !== undefined;
    const isExpected = !isKnown || this.#twin.peek(cost).allowed;
    let left = 0;
    const sent = this.now();
    const send = () => {
      const answer = this.#send(verb, cost, isExpected);
      left = this.#twin.remaining(); // it has debited what it has sent
      return answer;
    };
    const answer = await this.#answered<Told>(send, verb, cost);
    const { allowed, remaining } = answer ?? {};
    const text = this.problem || (answer?.degraded ? `let pass, ${answer.degraded}` : allowed ? "granted" : "refused");
    const asked: Asked = {
      at: sent,
      verb,
      cost,
      ...(isKnown && { predicted: { allowed: isExpected, remaining: left } }),
      ...(allowed !== undefined && { allowed }),
      ...(remaining !== undefined && { remaining }),
      text,
      roundTripMs: this.now() - sent,
    };
    this.asked.push(asked);
    if (allowed && !(isKnown && isExpected)) await this.#look(); // the twin has not heard of it
    return asked;
  }

  #send(verb: Act, cost: Amount, isExpected: boolean): Promise<Told> {
    const request = { ...this.#of, cost, snapshot: true };
    const [reservation = ""] = this.#oldest() ?? [];
    switch (verb) {
      case "consume":
        return isExpected ? this.#twin.consume(cost) : this.#client.consume(request);
      case "reserve":
        return this.#client.consume({ ...request, mode: "reserve" });
      case "settle":
        return this.#client.settle({ ...request, reservation });
      case "cancel":
        return this.#client.cancel({ ...this.#of, snapshot: true, reservation });
      case "refund":
        return this.#client.refund(request);
    }
  }

  async #answered<Answer extends Told>(
    send: () => Promise<Answer>,
    verb?: Act,
    cost: Amount = 0,
  ): Promise<Answer | undefined> {
    const sent = this.now();
    try {
      const answer = await send();
      this.problem = answer.detail !== undefined && answer.status !== 429 ? `${answer.status}: ${answer.detail}` : "";
      if (answer.snapshot && answer.now !== undefined)
        this.#observe(answer, answer.snapshot, answer.now, sent, verb, cost);
      return answer;
    } catch (error) {
      this.problem = String(error instanceof Error ? error.message : error);
      return undefined;
    }
  }

  /** Adds what has changed since the last answer: what was asked here, and the rest as what others have done. */
  #observe(
    answer: Told,
    snapshot: readonly LimitSnapshot[],
    now: number,
    sent: number,
    verb: Act | undefined,
    cost: Amount,
  ) {
    const roundTripMs = this.now() - sent;
    if (roundTripMs < this.quickest.roundTripMs)
      this.quickest = { roundTripMs, aheadMs: now - this.#began - sent - roundTripMs / 2 };
    const here = (moment: number) => Math.round(moment - this.quickest.aheadMs - this.#began);
    const states = snapshot.map(({ tokens, drops, at }): Snapshot => ({ tokens, drops, at: START + here(at) }));
    const closed = verb === "settle" || verb === "cancel" ? this.#oldest() : undefined;
    const isDone = verb !== undefined && answer.allowed && answer.status === 200;
    const asked = snapshot.map(({ name }) => (isDone ? taken(verb, cost, name, closed?.[1]) : 0));
    const numbers = JSON.stringify(snapshot.map(({ tokens, drops, at, ...numbers }) => numbers));
    if (numbers !== this.#numbers) {
      this.#numbers = numbers;
      const before = (states: readonly Snapshot[]) =>
        states.map((state, i) => ({ ...state, tokens: state.tokens + asked[i]! }));
      const limitsOf = (states: readonly Snapshot[]) =>
        snapshot.map(({ name, kind, rate, period_ms: periodMs, capacity, max_debt: maxDebt }, i) => ({
          ...(name !== undefined && { name }),
          kind,
          rate,
          periodMs,
          capacity,
          maxDebt,
          // What there was at the beginning, and when windows open for this key.
          initial: Math.max(0, states[i]!.tokens + asked[i]!),
          ...(kind === "fixed_window" && { offsetMs: ((states[i]!.at % periodMs) + periodMs) % periodMs }),
        }));
      this.track = new Track(this.#of.policy, limitsOf(states), before(states));
      this.#buckets = limitsOf(snapshot).map((limit, i) => {
        const bucket = new Bucket(now, limit);
        bucket.restore(before(snapshot)[i]!);
        return bucket;
      });
    }
    const track = this.track!;
    const at = Math.max(0, here(now), track.events.at(-1)?.at ?? 0);
    // What was asked here is done to what was known; what differs from that is of others.
    const tokens = (bucket: Bucket) => bucket.save(now).tokens;
    const moved = this.#buckets.map((bucket, i) => {
      const known = tokens(bucket);
      bucket.decide(now, { verb: asked[i]! > 0 ? "charge" : "refund", cost: Math.abs(asked[i]!) });
      const expected = tokens(bucket);
      bucket.restore(snapshot[i]!);
      return { own: known - expected, others: expected - tokens(bucket) };
    });
    const others = moved.map(({ others }) => others);
    const granted = {
      allowed: true,
      tokens: 0,
      remaining: answer.remaining ?? this.predicted(),
      retryAfterMs: 0,
    } as const;
    if (others.some((tokens) => tokens !== 0)) {
      const isBack = others.every((tokens) => tokens <= 0);
      const moved = Object.fromEntries(track.limits.map(({ name = "" }, i) => [name, Math.abs(others[i]!)]));
      const decision = { ...granted, readyAt: START + at };
      this.#add(track, at, isBack ? "refund" : "consume", fitted(moved, track.limits), others, states, decision);
    }
    if (!verb || answer.allowed === undefined) return;
    const { remaining = 0, retry_after_ms: retryAfterMs = Infinity } = answer;
    const readyAt = Math.max(at, here(answer.ready_at ?? now));
    const decision: Event["decision"] = answer.allowed
      ? { ...granted, readyAt: START + readyAt }
      : { allowed: false, retryAt: START + at + retryAfterMs, remaining, retryAfterMs };
    const own = moved.map(({ own }) => own);
    this.#add(track, at, verb, cost, own, states, decision);
    if (closed) this.#end(closed, { at, how: verb === "settle" ? "settled" : "cancelled" });
    if (answer.reservation !== undefined && verb === "reserve") {
      const made = { at, readyAt, expiresAt: here(answer.expires_at ?? now), cost };
      this.#open.set(answer.reservation, made);
      track.reservations.push(made);
    }
  }

  /** The oldest reservation that was made here and can still be closed, with its id. */
  #oldest(): [id: string, reservation: Reservation] | undefined {
    for (const open of this.#open) {
      const { expiresAt } = open[1];
      if (this.now() < expiresAt) return open;
      this.#end(open, { at: expiresAt, how: "expired" });
    }
    return undefined;
  }

  #end([id, reservation]: [id: string, reservation: Reservation], end: NonNullable<Reservation["end"]>) {
    this.#open.delete(id);
    const { reservations = [] } = this.track ?? {};
    const index = reservations.indexOf(reservation);
    if (index >= 0) reservations[index] = { ...reservation, end };
  }

  #add(
    track: Track,
    at: number,
    verb: Act,
    cost: Amount,
    taken: readonly number[],
    states: readonly Snapshot[],
    decision: Event["decision"],
  ) {
    const last = track.events.at(-1);
    track.events.push({
      at,
      verb,
      cost,
      decision,
      states,
      admitted: taken.map((tokens, i) => (last?.admitted[i] ?? 0) + tokens),
      granted: (last?.granted ?? 0) + Number(decision.allowed),
      refused: (last?.refused ?? 0) + Number(!decision.allowed),
    });
  }
}

/** How many tokens of a limit something takes, or below zero, gives back. */
function taken(verb: Act, cost: Amount, name: string | undefined, closed: Reservation | undefined): number {
  const [asked, reserved] = [amountOf(cost, name), amountOf(closed?.cost ?? 0, name)];
  return { consume: asked, reserve: asked, settle: asked - reserved, cancel: -reserved, refund: -asked }[verb];
}

/** What answers of different kinds have that is used here. */
interface Told {
  readonly status: number;
  readonly allowed?: boolean | undefined;
  readonly now?: number | undefined;
  readonly remaining?: number | undefined;
  readonly retry_after_ms?: number | undefined;
  readonly ready_at?: number | undefined;
  readonly reservation?: string | undefined;
  readonly expires_at?: number | undefined;
  readonly degraded?: string | undefined;
  readonly detail?: string | undefined;
  readonly snapshot?: readonly LimitSnapshot[] | undefined;
}
