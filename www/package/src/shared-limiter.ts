// One budget for all tabs of an origin, which outlives them.
import { Bucket, type DecideOptions, type Decision, type Grant, type Limit, type Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { systemClock } from "./clock.js";
import { isChange, Limiter, refuse } from "./limiter.js";
import { type AcquireOptions, type LimiterOptions, neverGranted, Queue, throwIfNever, waitTooLong } from "./queue.js";
import { goAlone, isAlone, transact, withLock } from "./tabs.js";

/**
 * A {@link Limiter} whose budget all tabs of an origin share by its name. It is stored in IndexedDB and so survives
 * reloads. Each decision is a transaction there: methods that take return promises, methods that only look return what
 * was true when any tab last took. Calls of `acquire` from all tabs wait in one queue (a Web Lock), and within a tab by
 * priority. A tab that crashes leaves the queue and blocks no other.
 *
 * Where one of these is missing, as in some private windows and on servers, it limits this tab alone and says so once
 * on the console. When the numbers of the limits change, each limit keeps its tokens, matched by name.
 *
 * ```js
 * const limiter = new SharedLimiter("search", { rate: 10, periodMs: 60_000 });
 * if (await limiter.tryConsume()) send();
 * ```
 */
export class SharedLimiter<Name extends string = never> extends Queue<Name> {
  /** Resolves when the stored budget has been read. */
  readonly ready: Promise<void>;
  readonly #name: string;
  /**
   * The newest state that this tab knows. It decides while a transaction is open, and on its own where there are none.
   */
  readonly #mirror: Limiter<Name>;
  readonly #channel: BroadcastChannel | undefined;
  /** How far the furthest clock of another tab is ahead. */
  readonly #ahead: { ms: number };
  /** How many times the stored state had been written when it was last read. */
  #version = 0;
  /** When the first waiter of all tabs will be admitted; until then all tokens are kept for it. 0 if none waits. */
  #claimedUntil = 0;
  #pausedUntil = 0;
  #wake = () => {};

  constructor(
    name: string,
    limits: Limit<Name> | readonly Limit<Name>[],
    { clock = systemClock, ...others }: LimiterOptions = {},
  ) {
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
      goAlone("no IndexedDB, Web Locks or BroadcastChannel");
    }
    // The stored state may come from a clock that was wrong yesterday: continue from today's.
    this.ready = this.#transact(() => this.#mirror.restore(this.#mirror.save()));
  }

  /** A copy of the limits. */
  get limits(): readonly Limit<Name>[] {
    return this.#mirror.limits;
  }

  /**
   * Takes `cost` tokens now and returns true, or takes none and returns false. Refused while any tab waits in the queue.
   */
  async tryConsume(cost: Cost<Name> = 1): Promise<boolean> {
    return (await this.decide({ cost })).allowed;
  }

  /** Does what the verb says, if that is granted, and returns the whole answer. See {@link Limiter.decide}. */
  decide(options: DecideOptions<Name> = {}): Promise<Decision> {
    const decide = () => this.#mirror.decide(options);
    return isChange(options.verb) ? this.#change(decide) : this.#ask(decide);
  }

  /** Returns the answer that {@link decide} would give, as far as this tab knows. */
  peek(cost?: Cost<Name>): Decision {
    return this.#claim() ?? this.#mirror.peek(cost);
  }

  /** Takes `cost` tokens in advance, to be used at `readyAt`. See {@link Limiter.reserve}. */
  reserve(options?: Omit<DecideOptions<Name>, "verb">): Promise<Decision> {
    return this.decide({ ...options, verb: "reserve" });
  }

  /** Debits `cost` tokens that were already used, down to a debt of `maxDebt`. */
  charge(cost?: Cost<Name>): Promise<void> {
    return this.#change(() => this.#mirror.charge(cost));
  }

  /** Gives `cost` tokens back, up to the capacity. */
  refund(cost?: Cost<Name>): Promise<void> {
    return this.#change(() => this.#mirror.refund(cost));
  }

  /** Fills all limits. */
  reset(): Promise<void> {
    return this.#change(() => this.#mirror.reset());
  }

  /** Admits nothing in any tab before `moment`. A later pause is never shortened. */
  pause(moment: number): Promise<void> {
    return this.#change(() => {
      this.#pausedUntil = Math.max(this.#pausedUntil, moment);
      this.#mirror.pause(this.#pausedUntil);
    });
  }

  /** How many whole tokens there are, as far as this tab knows. */
  remaining(): number {
    return this.#mirror.remaining();
  }

  /** When there is one more, as far as this tab knows. */
  nextTokenAt(): number {
    return this.#mirror.nextTokenAt();
  }

  /** When all limits are full, as far as this tab knows. */
  fullAt(): number {
    return this.#mirror.fullAt();
  }

  /** How many `acquire` calls of this tab wait. */
  override get waiting(): number {
    return super.waiting + this.#mirror.waiting;
  }

  /**
   * Waits in the queue for `cost` tokens and takes them. See {@link Limiter.acquire}. A `maxWaitMs` that cannot be met
   * rejects the first waiter of all tabs at once, and others when the time is up: no tab knows what the others wait
   * for.
   */
  async acquire(options: AcquireOptions<Name> = {}): Promise<Grant> {
    await this.ready;
    if (isAlone) return this.#mirror.acquire(options);
    const { cost, maxWaitMs = Infinity } = options;
    throwIfNever(this.#mirror.peek(cost));
    const now = this.clock.now();
    const admitted = this.join(options);
    void withLock(this.#name, {}, () => this.#admitOne());
    const cancel = this.clock.at(now + maxWaitMs + 1, () => {
      for (const late of this.queue.filter(({ deadline }) => deadline < this.clock.now()))
        late.drop(waitTooLong(this.#claimedUntil));
      this.#wake();
    });
    return admitted.finally(cancel);
  }

  /** A waiter joined or left, so another may be first now. */
  protected serve(): void {
    this.#wake();
  }

  async #ask(ask: () => Decision): Promise<Decision> {
    await this.ready;
    return withLock(this.#name, { mode: "shared", ifAvailable: true }, (isFree) =>
      this.#transact(() => {
        if (isFree) this.#claimedUntil = 0; // the tab that claimed has crashed
        return this.#claim() ?? ask();
      }),
    );
  }

  async #change<Result>(change: () => Result): Promise<Result> {
    const result = await this.#transact(change);
    this.#wake();
    return result;
  }

  #claim(): Decision | undefined {
    const now = this.clock.now();
    return this.#claimedUntil > 0 ? refuse(now, Math.max(this.#claimedUntil, now + 1), this.remaining()) : undefined;
  }

  /**
   * Calls `op` on the newest state, in a transaction over all tabs, stores the outcome and, unless it is a refusal,
   * tells the other tabs.
   */
  async #transact<Result>(op: () => Result): Promise<Result> {
    let outcome: Promise<Result> | undefined;
    let isNews: boolean;
    let state: State;
    const change = (stored?: State): State => {
      if (stored) this.#adopt(stored);
      let result: Result | undefined;
      outcome = new Promise((resolve) => {
        result = op();
        resolve(result);
      });
      outcome.catch(() => {}); // the caller handles it
      isNews = (result as Decision | undefined)?.allowed !== false;
      state = [++this.#version, this.#mirror.limits, this.#mirror.save(), this.#claimedUntil, this.#pausedUntil];
      return state;
    };
    await transact(this.#name, change);
    if (!outcome) change();
    if (isNews! && !isAlone) this.#channel!.postMessage(state!);
    return outcome!;
  }

  /** Continues from a state that another tab has stored or sent. */
  #adopt([version, limits, snapshots, claimedUntil, pausedUntil]: State): void {
    if (version <= this.#version) return; // a message may come late
    // Follow the clock that is furthest ahead: by a slower one, tokens that were refilled there would be refilled here
    // again.
    if (this.#version > 0) this.#ahead.ms += Math.max(0, ...snapshots.map(({ at }) => at - this.clock.now()));
    this.#version = version;
    // When the lock is free, no tab claims anything: this ends the claim of a tab that has crashed.
    if (claimedUntil > 0 && this.#claimedUntil === 0) {
      void withLock(this.#name, { mode: "shared" }, async () => {
        this.#claimedUntil = 0;
        this.emit({ type: "change" });
      });
    }
    this.#claimedUntil = claimedUntil;
    this.#mirror.restore(
      JSON.stringify(limits) === JSON.stringify(this.#mirror.limits)
        ? snapshots
        : carryOver(limits, snapshots, this.#mirror.limits, this.clock.now()),
    );
    this.#pausedUntil = pausedUntil;
    this.#mirror.pause(pausedUntil);
  }

  /**
   * Waits until the first waiter of this tab can be admitted, and admits it. Only one: each waits for the lock by
   * itself.
   */
  async #admitOne(): Promise<void> {
    while (this.waiting || this.#claimedUntil) {
      const woken = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await this.#transact(() => {
        this.#claimedUntil = 0;
        for (let first = this.queue[0]; first && !this.#claimedUntil; first = this.queue[0]) {
          const { cost } = first;
          const decision = this.#mirror.peek(cost);
          if (decision.allowed) return void first.admit(this.#mirror.decide({ cost }) as Grant);
          if (decision.maxCost !== undefined) first.drop(neverGranted(decision.maxCost));
          else if (decision.retryAt > first.deadline) first.drop(waitTooLong(decision.retryAt));
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

/** What is stored, and sent to other tabs. */
type State = readonly [
  version: number,
  limits: readonly Limit[],
  snapshots: readonly Snapshot[],
  claimedUntil: number,
  pausedUntil: number,
];

/**
 * The states of `limits` after they replace `old`. Each keeps the tokens of the old limit of the same name (without a
 * name: the same position) and kind, or starts anew.
 */
function carryOver(
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
