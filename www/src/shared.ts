// One budget for all tabs of an origin, which outlasts them.
import { Bucket, type Decision, type Limit, type Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { systemClock } from "./clock.js";
import { inLine, transact, warn } from "./kept.js";
import { Limiter } from "./limiter.js";
import { Line, possible, tooLong, type AcquireOptions, type LimiterOptions } from "./line.js";

/**
 * A {@link Limiter} whose budget all tabs of an origin share, by its name, and which is kept in IndexedDB, so that a reload
 * forgets nothing. Each decision is a transaction there, so what takes is a promise; what only looks tells what was
 * true when any tab last took. `acquire` waits in one line with all other tabs (a Web Lock), and in this tab by priority.
 * A tab that crashes leaves the line, and blocks nobody.
 *
 * Where one of these is missing, as in some private windows and on servers, it is a limiter of this tab alone, and says
 * so once on the console. When the limits' numbers change, each keeps its tokens, by its name.
 *
 * ```js
 * const limiter = new SharedLimiter("search", { rate: 10, periodMs: 60_000 });
 * if ((await limiter.consume()).allowed) send();
 * ```
 */
export class SharedLimiter extends Line {
  /** Resolves when what was kept has been read. */
  readonly ready: Promise<void>;
  readonly #name: string;
  /** What is known here. It decides while a transaction is open, and alone where there are none. */
  readonly #mirror: Limiter;
  readonly #channel = globalThis.BroadcastChannel && new BroadcastChannel("tollgate");
  /** How far the clock of some other tab is ahead. */
  readonly #ahead: { ms: number };
  /** When whoever is first in line will be admitted; what is there until then is kept for them. 0 if nobody waits. */
  #claimedUntil = 0;
  #pausedUntil = 0;
  #isServing = false;
  #isWatching = false;
  #wake = () => {};

  constructor(name: string, limits: Limit | readonly Limit[], { clock = systemClock, ...options }: LimiterOptions = {}) {
    const ahead = { ms: 0 };
    super({ ...options, clock: { now: () => clock.now() + ahead.ms, at: (moment, wake) => clock.at(moment - ahead.ms, wake) } });
    this.#ahead = ahead;
    this.#name = name;
    this.#mirror = new Limiter(limits, this);
    this.#mirror.on((event) => this.emit(event));
    (this.#channel as { unref?(): void } | undefined)?.unref?.(); // in Node it would keep the process
    // What is read first may be of yesterday's clock; of what comes later some tab is sure.
    this.ready = this.#alone(() => {}).then(() => {
      this.#channel?.addEventListener("message", ({ data: [name, state] }: MessageEvent<[string, State]>) => {
        if (name !== this.#name) return;
        this.#follow(state);
        this.#adopt(state);
        this.#wake();
      });
    });
  }

  /** Takes `cost` tokens now, or none. While somebody waits in line it is refused. */
  consume(cost?: Cost): Promise<Decision> {
    return this.#ask(() => this.#mirror.consume(cost));
  }

  /** What {@link consume} would answer, as far as is known in this tab. */
  peek(cost?: Cost): Decision {
    return this.#claim() ?? this.#mirror.peek(cost);
  }

  /** Takes `cost` tokens in advance, to be used at `readyAt`. See {@link Limiter.reserve}. */
  reserve(cost?: Cost, maxWaitMs?: number): Promise<Decision> {
    return this.#ask(() => this.#mirror.reserve(cost, maxWaitMs));
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost?: Cost): Promise<void> {
    return this.#change(() => this.#mirror.charge(cost));
  }

  /** Gives `cost` tokens back, up to the capacity. */
  refund(cost?: Cost): Promise<void> {
    return this.#change(() => this.#mirror.refund(cost));
  }

  /** Makes all limits full. */
  reset(): Promise<void> {
    return this.#change(() => this.#mirror.reset());
  }

  /** Admits nobody in any tab before `moment`. Never earlier than it was told before. */
  pause(moment: number): Promise<void> {
    return this.#change(() => (this.#pausedUntil = Math.max(this.#pausedUntil, moment)));
  }

  /** How many whole tokens there are, as far as is known in this tab. */
  remaining(): number {
    return this.#mirror.remaining();
  }

  /** When all limits are full, as far as is known in this tab. */
  fullAt(): number {
    return this.#mirror.fullAt();
  }

  /**
   * Waits in line for `cost` tokens and takes them. See {@link Limiter.acquire}. That `maxWaitMs` cannot be met is said at once
   * to whoever is first in line; to others when the time is over, since nobody knows what other tabs will ask.
   */
  async acquire({ signal, ...options }: AcquireOptions = {}): Promise<Decision> {
    await this.ready;
    const { cost, maxWaitMs = Infinity } = options;
    possible(this.#mirror.peek(cost));
    const now = this.clock.now();
    const ending = new AbortController();
    const cancel = maxWaitMs < Infinity ? this.clock.at(now + maxWaitMs + 1, () => ending.abort(tooLong(this.#claimedUntil))) : () => {};
    return this.join({ ...options, signal: signal ? AbortSignal.any([signal, ending.signal]) : ending.signal }).finally(cancel);
  }

  async #ask(ask: () => Decision): Promise<Decision> {
    // Where the line is free, whoever claimed has crashed.
    if (this.#claimedUntil > 0) await inLine(this.#name, () => this.#unclaim(), { mode: "shared", ifAvailable: true });
    return this.#alone(() => this.#claim() ?? ask());
  }

  async #change(change: () => void): Promise<void> {
    await this.#alone(change);
    this.#wake();
  }

  #claim(): Decision | undefined {
    return this.#claimedUntil > 0 ? { allowed: false, retryAt: Math.max(this.#claimedUntil, this.clock.now() + 1) } : undefined;
  }

  #unclaim(): Promise<void> {
    return this.#alone(() => void (this.#claimedUntil = 0));
  }

  /** Calls `op` on the newest state, alone among all tabs, keeps what it changed and tells the others. */
  async #alone<Result>(op: () => Result): Promise<Result> {
    let outcome: (() => Result) | undefined;
    let news: State | undefined;
    const turn = (kept?: State) => {
      if (kept) this.#adopt(kept);
      try {
        const result = op();
        outcome = () => result;
      } catch (error) {
        outcome = () => {
          throw error;
        };
      }
      this.#mirror.pause(this.#pausedUntil);
      const state: State = [this.#mirror.limits, this.#mirror.save(), this.#claimedUntil, this.#pausedUntil];
      return JSON.stringify(state) === JSON.stringify(kept) ? undefined : (news = state);
    };
    await transact(this.#name, turn).catch(warn);
    if (!outcome) turn();
    if (news) this.#channel?.postMessage([this.#name, news]);
    return outcome!();
  }

  /** Takes over what another tab has left. */
  #adopt([limits, snapshots, claimedUntil, pausedUntil]: State): void {
    const isSame = JSON.stringify(limits) === JSON.stringify(this.#mirror.limits);
    this.#claimedUntil = claimedUntil;
    this.#pausedUntil = pausedUntil;
    this.#mirror.restore(isSame ? snapshots : carried(limits, snapshots, this.#mirror.limits, this.clock.now()));
    this.#mirror.pause(pausedUntil);
    if (claimedUntil === 0 || this.#isServing || this.#isWatching) return;
    // When the line is free, nobody claims anything: that ends a claim whose tab has crashed.
    this.#isWatching = true;
    void inLine(this.#name, () => this.#unclaim(), { mode: "shared" }).finally(() => (this.#isWatching = false));
  }

  /** Goes by the clock of the tab that is furthest ahead, or what came back would come back again here. */
  #follow([, snapshots]: State): void {
    this.#ahead.ms += Math.max(0, ...snapshots.map(({ at }) => at - this.clock.now()));
  }

  protected async serve(): Promise<void> {
    this.#wake(); // there may be somebody more urgent
    if (this.#isServing) return;
    this.#isServing = true;
    while (this.waiting > 0) await inLine(this.#name, () => this.#serveOne());
    this.#isServing = false;
  }

  /** Admits whoever is first, when that is possible. Only one, so that other tabs have their turn. */
  async #serveOne(): Promise<void> {
    for (let first; (first = this.line[0]); ) {
      const { cost, deadline } = first;
      const decision = await this.#alone(() => {
        const decision = this.#mirror.consume(cost);
        this.#claimedUntil = decision.allowed ? 0 : decision.retryAt;
        return decision;
      });
      if (!this.line.includes(first)) {
        if (decision.allowed) await this.refund(cost); // it gave up meanwhile
      } else if (decision.allowed) {
        return void first.admit(decision);
      } else if (decision.retryAt > deadline) {
        first.drop(tooLong(decision.retryAt));
      } else if (this.line[0] === first) {
        await new Promise<void>((resolve) => {
          const cancel = decision.retryAt < Infinity ? this.clock.at(decision.retryAt, resolve) : () => {};
          this.#wake = () => (cancel(), resolve());
        });
      }
    }
    await this.#unclaim();
  }

}

/** What is kept. */
type State = readonly [limits: readonly Limit[], snapshots: readonly Snapshot[], claimedUntil: number, pausedUntil: number];

/** The states of `limits` when those of `old` become theirs: each has the tokens of the one with its name and kind, or is new. */
function carried(old: readonly Limit[], snapshots: readonly Snapshot[], limits: readonly Limit[], now: number): Snapshot[] {
  return limits.map((limit) => {
    const bucket = new Bucket(now, limit);
    const i = old.findIndex(({ name, kind }) => name === limit.name && kind === limit.kind);
    if (i >= 0) {
      const was = new Bucket(now, old[i]!);
      was.restore(snapshots[i]!);
      bucket.decide(now, 0, "reset");
      bucket.decide(now, Math.max(0, bucket.remaining(now) - was.remaining(now)) + was.owed(now), "charge");
    }
    return bucket.save(now);
  });
}
