// A key of the service as it is followed from here: what the service says of it, what others take meanwhile, and what the package's twin
// has predicted.
import { Bucket, type Client, type LimitSnapshot, type Snapshot, Twin } from "tollgate";
import type { Amount } from "../levels/amount.ts";
import { type Event, START, Track } from "../levels/track.ts";

/** A request that was made here. Moments are milliseconds since the key is followed. */
export interface Asked {
  readonly at: number;
  readonly cost: number;
  /** What the twin expected; nothing before the first answer. */
  readonly predicted?: { readonly allowed: boolean; readonly remaining: number };
  /** What the service said: nothing if it could not decide. */
  readonly allowed?: boolean;
  readonly remaining?: number;
  readonly text: string;
  readonly roundTripMs: number;
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
  readonly #of: { readonly policy: string; readonly key: string };
  readonly #twin: Twin;
  readonly #began: number;
  #numbers = "";

  constructor(client: Client, policy: string, key: string) {
    this.#client = client;
    this.#of = { policy, key };
    this.#twin = new Twin(client, this.#of);
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

  /** Asks how the key stands. */
  async look(): Promise<void> {
    await this.#answered(() => this.#twin.sync(), 0);
  }

  /** Takes tokens. The service is asked even where the twin would not, so that one can compare. */
  async ask(cost: number): Promise<Asked> {
    const predicted = this.track && this.#twin.peek(cost);
    const sent = this.now();
    const answer = await this.#answered<Told>(
      () =>
        predicted?.allowed === false
          ? this.#client.consume({ ...this.#of, cost, snapshot: true })
          : this.#twin.consume(cost),
      cost,
    );
    const { allowed, remaining } = answer ?? {};
    const text = this.problem || (answer?.degraded ? `let pass, ${answer.degraded}` : allowed ? "granted" : "refused");
    const asked: Asked = {
      at: sent,
      cost,
      ...(predicted && { predicted }),
      ...(allowed !== undefined && { allowed }),
      ...(remaining !== undefined && { remaining }),
      text,
      roundTripMs: this.now() - sent,
    };
    this.asked.push(asked);
    if (predicted?.allowed === false && allowed) await this.look(); // the twin has not heard of it
    return asked;
  }

  async #answered<Answer extends Told>(send: () => Promise<Answer>, cost: number): Promise<Answer | undefined> {
    const sent = this.now();
    try {
      const answer = await send();
      this.problem = answer.detail !== undefined && answer.status !== 429 ? `${answer.status}: ${answer.detail}` : "";
      if (answer.snapshot && answer.now !== undefined) this.#observe(answer, answer.snapshot, answer.now, sent, cost);
      return answer;
    } catch (error) {
      this.problem = String(error instanceof Error ? error.message : error);
      return undefined;
    }
  }

  /** Adds what has changed since the last answer: what was asked here, and the rest as what others have done. */
  #observe(answer: Told, snapshot: readonly LimitSnapshot[], now: number, sent: number, cost: number) {
    const roundTripMs = this.now() - sent;
    if (roundTripMs < this.quickest.roundTripMs)
      this.quickest = { roundTripMs, aheadMs: now - this.#began - sent - roundTripMs / 2 };
    const here = (moment: number) => Math.round(moment - this.quickest.aheadMs - this.#began);
    const states = snapshot.map(({ tokens, drops, at }): Snapshot => ({ tokens, drops, at: START + here(at) }));
    const numbers = JSON.stringify(snapshot.map(({ tokens, drops, at, ...numbers }) => numbers));
    if (numbers !== this.#numbers) {
      this.#numbers = numbers;
      this.track = new Track(
        this.#of.policy,
        snapshot.map(({ name, kind, rate, period_ms: periodMs, capacity, max_debt: maxDebt }, i) => ({
          ...(name !== undefined && { name }),
          kind,
          rate,
          periodMs,
          capacity,
          maxDebt,
          // What there was at the beginning, and when windows open for this key.
          initial: Math.max(0, states[i]!.tokens + (answer.allowed ? cost : 0)),
          ...(kind === "fixed_window" && { offsetMs: ((states[i]!.at % periodMs) + periodMs) % periodMs }),
        })),
        states.map((state) => ({ ...state, tokens: state.tokens + (answer.allowed ? cost : 0) })),
      );
    }
    const track = this.track!;
    const at = Math.max(0, here(now), track.events.at(-1)?.at ?? 0);
    const own = answer.allowed && answer.status === 200 ? cost : 0;
    const before = track.events.at(-1)?.states ?? track.first;
    const taken = track.limits.map((limit, i) => {
      const bucket = new Bucket(START, limit);
      bucket.restore(before[i]!);
      const [was, is] = [bucket.save(START + at), states[i]!];
      bucket.restore(is);
      return was.tokens - bucket.save(START + at).tokens;
    });
    const others = taken.map((tokens) => tokens - own);
    if (others.some((tokens) => tokens !== 0)) {
      const isBack = others.every((tokens) => tokens <= 0);
      this.#add(track, at, isBack ? "refund" : "consume", others.map(Math.abs), others, states, {
        allowed: true,
        tokens: 0,
        readyAt: START + at,
        remaining: answer.remaining ?? this.predicted(),
        retryAfterMs: 0,
      });
    }
    if (cost === 0 || answer.allowed === undefined) return;
    const { remaining = 0, retry_after_ms: retryAfterMs = Infinity } = answer;
    const decision: Event["decision"] = answer.allowed
      ? { allowed: true, tokens: cost, readyAt: START + at, remaining, retryAfterMs: 0 }
      : { allowed: false, retryAt: START + at + retryAfterMs, remaining, retryAfterMs };
    const each = track.limits.map(() => cost);
    this.#add(track, at, "consume", each, answer.allowed ? each : each.map(() => 0), states, decision);
  }

  #add(
    track: Track,
    at: number,
    verb: "consume" | "refund",
    costs: readonly number[],
    taken: readonly number[],
    states: readonly Snapshot[],
    decision: Event["decision"],
  ) {
    const last = track.events.at(-1);
    const names = track.limits.map(({ name }) => name);
    const cost: Amount =
      names[0] === undefined ? costs[0]! : Object.fromEntries(names.map((name, i) => [name!, costs[i]!]));
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

/** What answers of different kinds have that is used here. */
interface Told {
  readonly status: number;
  readonly allowed?: boolean | undefined;
  readonly now?: number | undefined;
  readonly remaining?: number | undefined;
  readonly retry_after_ms?: number | undefined;
  readonly degraded?: string | undefined;
  readonly detail?: string | undefined;
  readonly snapshot?: readonly LimitSnapshot[] | undefined;
}
