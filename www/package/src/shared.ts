// One budget for all tabs of an origin, which outlasts them.
import { Bucket, type Decision, type Limit, type Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { systemClock } from "./clock.js";
import { beAlone, inLine, isAlone, transact } from "./kept.js";
import { Limiter } from "./limiter.js";
import { Line, never, possible, tooLong, type AcquireOptions, type LimiterOptions } from "./line.js";

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
  readonly #channel: BroadcastChannel | undefined;
  /** How far the clock of some other tab is ahead. */
  readonly #ahead: { ms: number };
  /** How often what is kept was written, when it was last read. */
  #version = 0;
  /** When whoever is first in line will be admitted; what is there until then is kept for them. 0 if nobody waits. */
  #claimedUntil = 0;
  #pausedUntil = 0;
  #wake = () => {};

  constructor(name: string, limits: Limit | readonly Limit[], { clock = systemClock, ...others }: LimiterOptions = {}) {
    const ahead = { ms: 0 };
    const options = {
      ...others,
      clock: {
        now: () => clock.now() + ahead.ms,
        at: (moment: number, wake: () => void) => clock.at(moment - ahead.ms, wake),
      },
    };
    super(options);
    this.#ahead = ahead;
    this.#name = name;
    this.#mirror = new Limiter(limits, options);
    this.#mirror.on((event) => this.emit(event));
    const { indexedDB, BroadcastChannel, navigator } = globalThis;
    if (indexedDB && BroadcastChannel && navigator?.locks) {
      this.#channel = new BroadcastChannel(`tollgate:${name}`);
      this.#channel.onmessage = ({ data }: MessageEvent<State>) => {
        if (isAlone) return;
        this.#adopt(data);
        this.#wake();
      };
    } else {
      beAlone("no IndexedDB, Web Locks or BroadcastChannel");
    }
    // What is read first may be of yesterday's clock: it goes on from today's.
    this.ready = this.#turn(() => this.#mirror.restore(this.#mirror.save()));
  }

  /** The limits, as they were given. */
  get limits(): readonly Limit[] {
    return this.#mirror.limits;
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
    return this.#change(() => this.#mirror.pause((this.#pausedUntil = Math.max(this.#pausedUntil, moment))));
  }

  /** How many whole tokens there are, as far as is known in this tab. */
  remaining(): number {
    return this.#mirror.remaining();
  }

  /** When all limits are full, as far as is known in this tab. */
  fullAt(): number {
    return this.#mirror.fullAt();
  }

  /** How many `acquire` calls of this tab wait. */
  override get waiting(): number {
    return super.waiting + this.#mirror.waiting;
  }

  /**
   * Waits in line for `cost` tokens and takes them. See {@link Limiter.acquire}. That `maxWaitMs` cannot be met is said at once
   * to whoever is first in line; to others when the time is over, since nobody knows what other tabs will ask.
   */
  async acquire(options: AcquireOptions = {}): Promise<Decision> {
    await this.ready;
    if (isAlone) return this.#mirror.acquire(options);
    const { cost, maxWaitMs = Infinity } = options;
    possible(this.#mirror.peek(cost));
    const now = this.clock.now();
    const admitted = this.join(options);
    void inLine(this.#name, {}, () => this.#admitOne());
    const cancel = this.clock.at(now + maxWaitMs + 1, () => {
      for (const late of this.line.filter(({ deadline }) => deadline < this.clock.now()))
        late.drop(tooLong(this.#claimedUntil));
      this.#wake();
    });
    return admitted.finally(cancel);
  }

  /** Somebody joined, or gave up: another may be first now. */
  protected serve(): void {
    this.#wake();
  }

  async #ask(ask: () => Decision): Promise<Decision> {
    await this.ready;
    return inLine(this.#name, { mode: "shared", ifAvailable: true }, (isFree) =>
      this.#turn(() => {
        if (isFree) this.#claimedUntil = 0; // whoever claimed has crashed
        return this.#claim() ?? ask();
      }),
    );
  }

  async #change(change: () => void): Promise<void> {
    await this.#turn(change);
    this.#wake();
  }

  #claim(): Decision | undefined {
    return this.#claimedUntil > 0
      ? { allowed: false, retryAt: Math.max(this.#claimedUntil, this.clock.now() + 1) }
      : undefined;
  }

  /** Calls `op` on the newest state, alone among all tabs, keeps what it leaves and tells the others, unless it is a refusal. */
  async #turn<Result>(op: () => Result): Promise<Result> {
    let outcome: Promise<Result> | undefined;
    let isNews: boolean;
    let state: State;
    const turn = (kept?: State): State => {
      if (kept) this.#adopt(kept);
      let result: Result | undefined;
      outcome = new Promise((resolve) => resolve((result = op())));
      outcome.catch(() => {}); // it is for who called
      isNews = (result as Decision | undefined)?.allowed !== false;
      return (state = [
        ++this.#version,
        this.#mirror.limits,
        this.#mirror.save(),
        this.#claimedUntil,
        this.#pausedUntil,
      ]);
    };
    await transact(this.#name, turn);
    if (!outcome) turn();
    if (isNews! && !isAlone) this.#channel!.postMessage(state!);
    return outcome!;
  }

  /** Takes over what another tab has left. */
  #adopt([version, limits, snapshots, claimedUntil, pausedUntil]: State): void {
    if (version <= this.#version) return; // messages may be late
    // By the clock of the tab that is furthest ahead, or what came back would come back again here.
    if (this.#version > 0) this.#ahead.ms += Math.max(0, ...snapshots.map(({ at }) => at - this.clock.now()));
    this.#version = version;
    // When the line is free, nobody claims anything: that ends a claim whose tab has crashed.
    if (claimedUntil > 0 && this.#claimedUntil === 0) {
      void inLine(this.#name, { mode: "shared" }, async () => {
        this.#claimedUntil = 0;
        this.emit({ type: "change" });
      });
    }
    this.#claimedUntil = claimedUntil;
    this.#mirror.restore(
      JSON.stringify(limits) === JSON.stringify(this.#mirror.limits)
        ? snapshots
        : carried(limits, snapshots, this.#mirror.limits, this.clock.now()),
    );
    this.#mirror.pause((this.#pausedUntil = pausedUntil));
  }

  /** Admits whoever is first in line here, as soon as that is possible. Only one: each has its own place among all tabs. */
  async #admitOne(): Promise<void> {
    while (this.waiting || this.#claimedUntil) {
      const woken = new Promise<void>((resolve) => (this.#wake = resolve));
      await this.#turn(() => {
        this.#claimedUntil = 0;
        for (let first; !this.#claimedUntil && (first = this.line[0]); ) {
          const decision = this.#mirror.peek(first.cost);
          if (decision.allowed) return void first.admit(this.#mirror.consume(first.cost));
          if (decision.maxCost !== undefined) first.drop(never(decision.maxCost));
          else if (decision.retryAt > first.deadline) first.drop(tooLong(decision.retryAt));
          else this.#claimedUntil = decision.retryAt;
        }
      });
      if (!this.#claimedUntil) return;
      const cancel = this.clock.at(this.#claimedUntil, this.#wake);
      await woken;
      cancel();
    }
  }
}

/** What is kept. */
type State = readonly [
  version: number,
  limits: readonly Limit[],
  snapshots: readonly Snapshot[],
  claimedUntil: number,
  pausedUntil: number,
];

/** The states of `limits` when those of `old` become theirs: each has the tokens of the one with its name, or its place, and kind; or is new. */
function carried(
  old: readonly Limit[],
  snapshots: readonly Snapshot[],
  limits: readonly Limit[],
  now: number,
): Snapshot[] {
  return limits.map((limit, i) => {
    const { name, kind, rate, capacity = rate, maxDebt = 0 } = limit;
    const fresh = new Bucket(now, limit).save(now);
    const from = name ? old.findIndex((other) => other.name === name) : i;
    if (!old[from] || old[from].kind !== kind) return fresh;
    const was = new Bucket(now, old[from]);
    was.restore(snapshots[from]!);
    return { ...fresh, tokens: Math.min(Math.max(was.save(now).tokens, -maxDebt), capacity) };
  });
}
