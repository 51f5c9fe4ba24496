// A key of the service as followed from here: the service's answers about it, what others take, and what the package's twin
// has predicted.
import {
  Bucket,
  type Client,
  type Clock,
  type Key,
  type LimitSnapshot,
  type Snapshot,
  systemClock,
  Twin,
} from "tollgate";
import { type Amount, amountOf, costOf, fitted } from "../levels/amount.ts";
import { type Event, type Reservation, START, Track } from "../levels/track.ts";
import { outcome } from "../levels/words.ts";
import type { Verb } from "../shared/acts.tsx";
import { length } from "../shared/numbers.ts";
import { reasonOf } from "../shared/reason.ts";

/** A request that was made here. Moments are milliseconds since the first answer. */
export interface Asked {
  readonly at: number;
  readonly verb: Verb;
  readonly cost: Amount;
  /** What the twin expected of a consumption; nothing before the first answer. */
  readonly predicted?: { readonly allowed: boolean; readonly remaining: number };
  /** What the service said: nothing if it could not decide. */
  readonly allowed?: boolean;
  readonly remaining?: number;
  readonly text: string;
  readonly roundTripMs: number;
  /** What it has changed, once a state of the key that includes it is known. */
  event?: Event;
}

/** Whose budget: with a grant, the key may be the grant's. */
export interface Followed {
  readonly policy: string;
  readonly key?: Key;
}

export class Watched {
  readonly asked: Asked[] = [];
  /** Restarts when the numbers of the policy change. */
  track: Track | undefined;
  /** Why the last request got no answer; empty if it did. */
  problem = "";
  /** Why the credential cannot inspect the key, if it cannot: then only the answers to requests made here are followed. */
  blind = "";
  /** Set by an answer that would only repeat: a wrong token or key, or nothing to follow. Then nothing is sent automatically. */
  isOver = false;
  /** The quickest answer: its round trip, and how far the service's clock is ahead of this one. */
  quickest = { roundTripMs: Infinity, aheadMs: 0 };
  readonly #client: Client;
  readonly #of: Followed;
  readonly #twin: Twin;
  /** The request sent by `sync` of the twin: see `#taught`. */
  #next: () => Promise<Told> = () => this.#inspect();
  /** The moment of a prediction that is being made: the clock stands still meanwhile. */
  #held: number | undefined;
  /**
   * The service's time of its first answer. All moments here are by its clock and since then, exactly: by another clock they would be
   * some milliseconds off, which is a token now and then, or a window.
   */
  #origin: number | undefined;
  #numbers = "";
  #turn: Promise<unknown> = Promise.resolve();
  #awaited = 0;
  /** A policy with shards shows its state only in looks. */
  #showsState = true;
  /** Reservations made here, by id, the oldest first. */
  readonly #open = new Map<string, Reservation>();

  constructor(client: Client, followed: Followed, clock: Clock = systemClock) {
    this.#client = client;
    this.#of = followed;
    const sender = {
      consume: (request: Parameters<Client["consume"]>[0]) => client.consume(request).then(withOwnState),
      inspect: () => this.#next().then(withOwnState),
    };
    this.#twin = new Twin(sender as unknown as Client, {
      ...followed,
      // It withholds nothing here, so it predicts from what it knows, however old that is.
      trustMs: Infinity,
      clock: { now: () => this.#held ?? clock.now(), at: (moment, wake) => clock.at(moment, wake) },
    });
  }

  /** Milliseconds since the first answer, by the service's clock as far as known. */
  now(): number {
    if (this.#origin === undefined) return 0;
    const now = this.#twin.clock.now() + this.quickest.aheadMs - this.#origin;
    return Math.max(0, now, this.track?.events.at(-1)?.at ?? 0);
  }

  /** What the twin says is left now. */
  predicted(): number {
    return this.#twin.remaining();
  }

  /** Whether a reservation made here can be closed. */
  canSettle(): boolean {
    return this.#oldest() !== undefined;
  }

  /** Requests the state of the key, unless an answer is awaited already or would only repeat a refusal. */
  async look(): Promise<void> {
    if (this.#awaited === 0 && !this.isOver) await this.#inTurn(() => this.#look());
  }

  /** Sends a request to the service even if the twin would not, for comparison. Settle and cancel are for the oldest reservation. */
  ask(verb: Verb, amount: Amount): Promise<Asked> {
    return this.#inTurn(() => this.#ask(verb, amount));
  }

  /** One by one, so that an answer's state includes all earlier requests and no later ones. */
  #inTurn<Result>(act: () => Promise<Result>): Promise<Result> {
    this.#awaited += 1;
    const result = this.#turn.then(act).finally(() => {
      this.#awaited -= 1;
    });
    this.#turn = result.catch(() => {});
    return result;
  }

  async #look(done?: Done): Promise<Event | undefined> {
    if (this.blind) return undefined;
    const answer = await this.#answered(() => this.#taught(() => this.#inspect()));
    const event = answer && this.#observe(answer, done);
    const { status, snapshot } = answer ?? {};
    if (status === 403) [this.blind, this.problem] = [this.problem, ""];
    if (status === 400 || status === 404) this.isOver = true;
    if (status === 200 && !snapshot) {
      this.isOver = true;
      this.problem = `${this.#of.policy} enforces no limit: there is nothing to follow`;
    }
    return event;
  }

  #inspect(): Promise<Told> {
    return this.#client.inspect({ ...this.#of, snapshot: true });
  }

  /** Sends a request through the twin, so that it learns from the answer. */
  #taught(send: () => Promise<Told>): Promise<Told> {
    this.#next = send;
    return this.#twin.sync();
  }

  async #ask(verb: Verb, amount: Amount): Promise<Asked> {
    // What is cancelled is all of it.
    const given = verb === "cancel" ? (this.#oldest()?.[1].cost ?? 0) : amount;
    const cost = this.track ? fitted(given, this.track.limits) : given;
    const isKnown = verb === "consume" && this.#showsState && this.track !== undefined;
    const [at, sent] = [this.now(), this.#twin.clock.now()];
    let predicted: Asked["predicted"];
    // A token may arrive between two readings of the clock, so a prediction and the level it leaves are computed at one moment.
    const first = () => {
      this.#held = this.#twin.clock.now();
      const { allowed } = this.#twin.peek(cost);
      const answer = this.#send(verb, cost, allowed);
      if (isKnown) predicted = { allowed, remaining: this.#twin.remaining() }; // it has debited what it has sent
      this.#held = undefined;
      return answer;
    };
    let answer = await this.#answered(first);
    if (answer?.status === 400 && this.#showsState && verb !== "cancel") {
      // Nothing was done. It might be without a request for the state.
      this.#showsState = false;
      answer = await this.#answered(() => this.#send(verb, cost, false));
      this.#showsState = answer?.status === 400;
    }
    const { allowed, remaining } = answer ?? {};
    const text = this.problem || wordsOf(answer!);
    const asked: Asked = {
      at,
      verb,
      cost,
      ...(predicted && { predicted }),
      ...(allowed !== undefined && { allowed }),
      ...(remaining !== undefined && { remaining }),
      text,
      roundTripMs: this.#twin.clock.now() - sent,
    };
    this.asked.push(asked);
    const done = answer && { verb, cost, answer };
    const event = answer?.snapshot ? this.#observe(answer, done) : allowed !== undefined && (await this.#look(done));
    if (event) asked.event = event;
    return asked;
  }

  #send(verb: Verb, cost: Amount, isExpected: boolean): Promise<Told> {
    if (verb === "consume" && isExpected && this.#showsState) return this.#twin.consume(cost);
    const request = { ...this.#of, ...(this.#showsState && { snapshot: true }) };
    const [reservation = ""] = this.#oldest() ?? [];
    return this.#taught(() => {
      switch (verb) {
        case "consume":
          return this.#client.consume({ ...request, cost });
        case "reserve":
          return this.#client.consume({ ...request, cost, mode: "reserve" });
        case "settle":
          return this.#client.settle({ ...request, cost, reservation });
        case "cancel":
          return this.#client.cancel({ ...request, reservation });
        case "refund":
          return this.#client.refund({ ...request, cost });
      }
    });
  }

  async #answered(send: () => Promise<Told>): Promise<Told | undefined> {
    const { clock } = this.#twin;
    const sent = clock.now();
    try {
      const answer = await send();
      const roundTripMs = clock.now() - sent;
      this.problem = answer.detail !== undefined && answer.status !== 429 ? `${answer.status}: ${answer.detail}` : "";
      if (answer.status === 401) this.isOver = true;
      if (answer.now !== undefined) {
        this.#origin ??= answer.now;
        const aheadMs = answer.now - sent - roundTripMs / 2;
        // If the answer's time is impossible by what is known, a clock has been set or has stood still.
        const isOff = Math.abs(aheadMs - this.quickest.aheadMs) > roundTripMs / 2 + 1;
        if (roundTripMs < this.quickest.roundTripMs || isOff) this.quickest = { roundTripMs, aheadMs };
      }
      return answer;
    } catch (error) {
      this.problem = reasonOf(error);
      return undefined;
    }
  }

  /** Adds the changes since the last state: those made here, which it returns, and the rest as made by others. */
  #observe({ snapshot, now }: Told, done: Done | undefined): Event | undefined {
    if (!snapshot || now === undefined) return undefined;
    const here = (moment: number) => moment - this.#origin!;
    const at = here(now);
    const states = snapshot.map(({ tokens, drops, at }): Snapshot => ({ tokens, drops, at: START + here(at) }));
    const closed = done && (done.verb === "settle" || done.verb === "cancel") ? this.#oldest() : undefined;
    const isDone = done?.answer.allowed && done.answer.status === 200;
    const numbers = JSON.stringify(snapshot.map(({ tokens, drops, at, ...numbers }) => numbers));
    if (numbers !== this.#numbers) {
      this.#numbers = numbers;
      const limits = snapshot.map(({ name, kind, rate, period_ms: periodMs, capacity, max_debt: maxDebt }, i) => ({
        ...(name !== undefined && { name }),
        // A window from first use, as far as it is known.
        kind: kind === "token_bucket" ? kind : ("fixed_window" as const),
        rate,
        periodMs,
        capacity,
        maxDebt,
        // When windows open for this key.
        ...(kind !== "token_bucket" && { offsetMs: ((states[i]!.at % periodMs) + periodMs) % periodMs }),
      }));
      // A state dates from when tokens were last taken: what has been refilled since was available at the beginning, too.
      const first = limits.map((limit, i) => {
        const bucket = new Bucket(START, limit);
        bucket.restore(states[i]!);
        const state = bucket.save(START + at);
        const more = isDone ? moved(done, snapshot[i]!.name, closed?.[1]) : 0;
        return { ...state, tokens: Math.min(limit.capacity, state.tokens + more) };
      });
      const begun = limits.map((limit, i) => ({ ...limit, initial: Math.max(0, first[i]!.tokens) }));
      this.track = new Track(this.#of.policy, begun, first);
    }
    const track = this.track!;
    const before = track.events.at(-1)?.states ?? track.first;
    const asked = track.limits.map(({ name }) => (isDone ? taken(done, name, closed?.[1]) : 0));
    // Changes made here are applied to the known state; any difference is due to others.
    const changes = track.viewed.map((bucket, i) => {
      const tokens = () => bucket.save(START + at).tokens;
      bucket.restore(before[i]!);
      const known = tokens();
      // A key without limits gives what it has.
      const most = done?.answer.unlimited ? Math.min(asked[i]!, Math.max(0, known)) : asked[i]!;
      bucket.decide(START + at, { verb: most > 0 ? "charge" : "refund", cost: Math.abs(most) });
      const expected = known - tokens();
      bucket.restore(states[i]!);
      const moved = known - tokens();
      // A closed reservation counts from its start. That may move fewer tokens, and the answer does not say how many.
      const own = closed ? Math.max(Math.min(0, most), Math.min(moved, Math.max(0, most))) : expected;
      return { own, others: moved - own };
    });
    const told: Partial<Told> = done?.answer ?? {};
    const { remaining = this.predicted() } = told;
    const granted = { allowed: true, tokens: 0, readyAt: START + at, remaining, retryAfterMs: 0 } as const;
    for (const [verb, sign] of [
      ["consume", 1],
      ["refund", -1],
    ] as const) {
      const amounts = changes.map(({ others }) => Math.max(0, sign * others));
      if (amounts.every((tokens) => tokens === 0)) continue;
      const own = amounts.map((tokens) => sign * tokens);
      this.#add(track, at, verb, costOf(track.limits, amounts), own, states, granted);
    }
    if (!done || told.allowed === undefined) return undefined;
    const { retry_after_ms: retryAfterMs = Infinity } = told;
    const readyAt = Math.max(at, here(told.ready_at ?? now));
    const decision: Event["decision"] = told.allowed
      ? { ...granted, readyAt: START + readyAt }
      : { allowed: false, retryAt: START + at + retryAfterMs, remaining, retryAfterMs };
    const own = changes.map(({ own }) => own);
    const event = this.#add(track, at, done.verb, done.cost, own, states, decision);
    if (closed && told.allowed) this.#end(closed, { at, how: done.verb === "settle" ? "settled" : "cancelled" });
    if (told.reservation !== undefined && done.verb === "reserve") {
      const made = { at, readyAt, expiresAt: here(told.expires_at ?? now), cost: done.cost };
      this.#open.set(told.reservation, made);
      track.reservations.push(made);
    }
    return event;
  }

  /** The oldest reservation made here that can still be closed, with its id. */
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
    verb: Verb,
    cost: Amount,
    taken: readonly number[],
    states: readonly Snapshot[],
    decision: Event["decision"],
  ): Event {
    const last = track.events.at(-1);
    const admitted = taken.map((tokens, i) => (last?.admitted[i] ?? 0) + tokens);
    return track.add({ at, verb, cost, decision, states, admitted });
  }
}

function wordsOf({
  allowed = false,
  degraded,
  banned,
  now = 0,
  ready_at: readyAt = now,
  retry_after_ms: waitMs,
}: Told): string {
  if (degraded) return `let pass, ${degraded}`;
  if (banned) return `refused, this key is blocked${waitMs === undefined ? "" : `, would pass in ${length(waitMs)}`}`;
  return outcome(allowed, allowed ? readyAt - now : (waitMs ?? Infinity));
}

/** A decision about a blocked or unlimited key has a state that explains it, not that of its buckets. */
function withOwnState(answer: Told): Told {
  const isOther = answer.allowed !== undefined && (answer.banned || answer.unlimited);
  return isOther ? { ...answer, snapshot: undefined } : answer;
}

/** A request made here, and its answer. */
interface Done {
  readonly verb: Verb;
  readonly cost: Amount;
  readonly answer: Told;
}

/** How many tokens of a limit a request takes or, if negative, gives back, if there is room. */
function taken({ verb, cost }: Done, name: string | undefined, closed: Reservation | undefined): number {
  const [asked, reserved] = [amountOf(cost, name), amountOf(closed?.cost ?? 0, name)];
  return { consume: asked, reserve: asked, settle: asked - reserved, cancel: -reserved, refund: -asked }[verb];
}

/** How many it has taken, according to the answer. */
function moved(done: Done, name: string | undefined, closed: Reservation | undefined): number {
  const { verb, answer } = done;
  const { tokens } = answer.limits?.find((limit) => limit.name === name) ?? answer;
  if (tokens === undefined || verb === "consume" || verb === "reserve") return taken(done, name, closed);
  return verb === "settle" ? tokens - amountOf(closed?.cost ?? 0, name) : -tokens;
}

/** The members used here of answers of all kinds. */
interface Told {
  readonly status: number;
  readonly allowed?: boolean | undefined;
  readonly now?: number | undefined;
  readonly remaining?: number | undefined;
  readonly tokens?: number | undefined;
  readonly limits?: readonly { readonly name?: string; readonly tokens?: number }[] | undefined;
  readonly retry_after_ms?: number | undefined;
  readonly banned?: boolean | undefined;
  readonly unlimited?: boolean | undefined;
  readonly ready_at?: number | undefined;
  readonly reservation?: string | undefined;
  readonly expires_at?: number | undefined;
  readonly degraded?: string | undefined;
  readonly detail?: string | undefined;
  readonly snapshot?: readonly LimitSnapshot[] | undefined;
}
