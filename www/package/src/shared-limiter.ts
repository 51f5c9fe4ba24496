// One budget for all tabs of an origin, which outlives them.
/// <reference lib="esnext.disposable" preserve="true" />
import { type DecideOptions, type Decision, LAST_MOMENT, type Limit } from "./bucket.js";
import type { Budget, Cost } from "./budget.js";
import { systemClock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import { isChange } from "./limiter.js";
import { type ConcurrencyOptions, type LimiterEvent, type LimiterOptions, Queue } from "./queue.js";
import { GRACE_MS, type Outcome, SharedBudget, type State } from "./shared-budget.js";
import { transact } from "./tabs.js";
import type { Waiter } from "./waiters.js";

/**
 * A {@link Limiter} whose budget all tabs of an origin share by its name. It is stored in IndexedDB and so survives
 * reloads. Each decision is a transaction there: methods that take return promises, methods that only look return what
 * was true when any tab last took. Calls of `acquire` from all tabs wait in one queue, and within a tab by priority.
 *
 * No tab blocks another. One that is closed, crashes or is put into the back/forward cache leaves the queue; one that
 * is suspended loses its place a second after its turn. When the numbers of the limits change, those of the tab opened
 * last count in all tabs, and each limit keeps its tokens, matched by name.
 *
 * While storage is missing or fails, as in some private windows and on servers, it limits this tab alone, warns once
 * on the console, and tries again from time to time: see {@link isShared}.
 *
 * ```js
 * const limiter = new SharedLimiter("search", { rate: 10, periodMs: 60_000 });
 * if (await limiter.tryConsume()) send();
 * ```
 */
export class SharedLimiter<Name extends string = never> extends Queue<Name, Promise<Decision>> {
  readonly #name: string;
  readonly #budget: SharedBudget<Name>;
  /** Closed while away: a message would evict the page from the back/forward cache. */
  #channel: BroadcastChannel | undefined;
  readonly #closing = new AbortController();
  /** The last state that was stored or received, or, while alone, kept. */
  #state!: State;
  #ready: Promise<void> | undefined;
  /** Operations of the next transaction. */
  #calls: Call[] = [];
  /** Those for which there may yet be no room, in the order in which they came. */
  readonly #newcomers = new Set<Waiter<Name>>();
  #isBusy = false;
  /** The newest state that another tab has stored meanwhile. */
  #news: State | undefined;
  #isShared = false;
  #failures = 0;
  /** While alone: the last state that was shared. */
  #before: State | undefined;
  /** While alone: when to try the storage again. */
  #retryAt = -Infinity;
  /** Whether the page is hidden in the back/forward cache, or frozen. */
  #isAway = false;
  /** The lock that this tab holds while it has tickets, and their name; "" if it has none. */
  #lock = "";
  #release = () => {};
  /** The tab whose lock is watched, because its ticket is first. */
  #watched: string | undefined;
  #unwatch = () => {};
  /** Called for each message from another tab. */
  #onMessage = () => {};

  constructor(
    name: string,
    limits: Limit<Name> | readonly Limit<Name>[],
    { clock = systemClock, ...others }: LimiterOptions = {},
  ) {
    if ((others as ConcurrencyOptions).maxConcurrent !== undefined)
      throw new TollgateError("maxConcurrent_unknown", "a SharedLimiter has no maxConcurrent");
    const budget = new SharedBudget<Name>(limits);
    super({
      ...others,
      clock: {
        now: () => clock.now() + budget.aheadMs,
        at: (moment, wake) => clock.at(moment - budget.aheadMs, wake),
      },
    });
    this.isTimed = true;
    this.#name = name;
    this.#budget = budget;
  }

  /** Resolves when the stored budget has been read, or cannot be. */
  get ready(): Promise<void> {
    this.#begin();
    return this.#ready ?? this.#call(() => {}); // rejects: it has been closed before
  }

  /** Begins when it is first used: making a limiter reads no clock. */
  #begin(): void {
    if (this.#state) return;
    this.#state = this.#budget.begin(this.clock.now());
    if (this.closed) return;
    const { indexedDB, BroadcastChannel, navigator, document } = globalThis;
    if (indexedDB && BroadcastChannel && navigator?.locks) {
      this.#openChannel();
      for (const [target, away, back] of [
        [globalThis, "pagehide", "pageshow"],
        [document, "freeze", "resume"],
      ] as const) {
        target?.addEventListener?.(away, () => this.#leave(), this.#closing);
        target?.addEventListener?.(back, () => this.#return(), this.#closing);
      }
    } else {
      this.#goAlone("no IndexedDB, Web Locks or BroadcastChannel");
      this.#retryAt = Infinity;
    }
    this.#ready = this.#call(() => {});
  }

  /** Whether the budget is shared at the moment. If not, storage is missing or has failed, and this tab limits alone. */
  get isShared(): boolean {
    return this.#isShared;
  }

  /** A copy of the limits in force: those of the tab that was opened last. */
  get limits(): readonly Limit<Name>[] {
    return this.#budget.limits as readonly Limit<Name>[];
  }

  /**
   * Takes `cost` tokens now and returns true, or takes none and returns false. Refused while any tab waits in the
   * queue.
   */
  async tryConsume(cost: Cost<Name> = 1): Promise<boolean> {
    return (await this.decide({ cost })).allowed;
  }

  /** Does what the verb says, if that is granted, and returns the whole answer. See {@link Limiter.decide}. */
  async decide(options: DecideOptions<Name> = {}): Promise<Decision> {
    const { cost = 1, verb } = options;
    this.#budget.check(this.now(), options);
    const decision = await this.#call((now) => this.#budget.decide(now, options));
    const type = isChange(verb) ? "change" : decision.allowed ? "allow" : "refuse";
    this.emit({ type, cost, decision } as LimiterEvent<Name>);
    return decision;
  }

  /** Returns the answer that {@link decide} would give, as far as this tab knows. */
  peek(cost: Cost<Name> = 1): Decision {
    const now = this.now();
    this.#budget.check(now, { cost });
    return this.#budget.decide(now, { cost }, "peek");
  }

  /** Admits nothing in any tab before `moment`. A later pause is never shortened. */
  async pause(moment: number): Promise<void> {
    checkWhole("moment", moment, -LAST_MOMENT, LAST_MOMENT);
    await this.#call(() => this.#budget.pause(Math.max(this.#budget.pausedUntil, moment)));
  }

  /** Ends a pause. */
  resume(): Promise<void> {
    return this.#call(() => this.#budget.pause(0));
  }

  /** Leaves the queue and stops listening to other tabs. Calls that wait are rejected as `closed`, and so are later ones. */
  override close(): void {
    this.#closing.abort();
    this.#leave();
    super.close();
  }

  protected get budget(): Budget<string> {
    return this.#budget.budget;
  }

  protected most(cost: Cost<Name>): Decision {
    return this.#budget.check(this.now(), { cost });
  }

  protected override now(): number {
    this.#begin();
    return super.now();
  }

  protected async join(newcomer: Waiter<Name>): Promise<void> {
    this.#newcomers.add(newcomer);
    await this.serve();
    this.#newcomers.delete(newcomer);
    const later = () => [...this.#newcomers].filter((other) => this.queue.has(other)).length;
    if (this.makeRoom(newcomer, later)) this.emit({ type: "queue", cost: newcomer.cost, waiting: this.waiting });
  }

  /** A waiter joined or left, so another may be first now. */
  protected serve(): Promise<unknown> {
    return this.#call(() => {}).catch(() => {}); // only if closed
  }

  /** Calls `op` in the next transaction over all tabs. */
  async #call<Result>(op: (now: number) => Result): Promise<Result> {
    if (this.closed) throw this.closed;
    this.#begin();
    return new Promise((resolve, reject) => {
      this.#calls.push((now) => {
        try {
          const result = op(now);
          return () => resolve(result);
        } catch (error) {
          return () => reject(error);
        }
      });
      void this.#flush();
    });
  }

  /** Makes all calls: those made while a transaction is open, together in the next. */
  async #flush(): Promise<void> {
    if (this.#isBusy) return;
    this.#isBusy = true;
    while (this.#calls.length > 0) {
      await this.#transact(this.#calls.splice(0));
      await this.#watch();
      if (this.waiting === 0 && this.#calls.length === 0) this.#release();
    }
    this.#isBusy = false;
    const news = this.#news;
    this.#news = undefined;
    if (news) this.#receive(news);
    this.#setTimer();
  }

  /** Makes these calls in one transaction. */
  async #transact(calls: readonly Call[]): Promise<void> {
    const budget = this.#budget;
    const { version } = budget;
    let outcomes: Outcome<Name>[] = [];
    let ends: (() => void)[] = [];
    let stored: State | undefined;
    let state: State | undefined;
    let isLast: boolean | undefined;
    let mustAsk = false;
    const change = (tab: string): State | undefined => {
      budget.load(stored ?? this.#state, this.clock.now(), isLast);
      const now = this.clock.now();
      if (stored && this.#before) budget.debit(this.#before, this.#state, now);
      const waiters = tab ? [...this.queue] : [];
      outcomes = budget.serve(now, tab, waiters); // before the calls, or they would pass the queue
      ends = calls.map((call) => call(now));
      outcomes.push(...budget.serve(now, tab, waiters));
      state = budget.isNews ? budget.save(now) : undefined;
      return state;
    };
    const attempt = () =>
      transact<State>(FORMAT + this.#name, this.clock, (found) => {
        stored = found;
        mustAsk = isLast === undefined && !!stored && budget.isFarAhead(stored, this.clock.now());
        return mustAsk ? undefined : change(this.#lock);
      });
    let isShared = false;
    if (this.#retryAt <= this.clock.now()) {
      try {
        if (this.waiting > 0) await this.#takeLock();
        await attempt();
        if (mustAsk) {
          isLast = !(await this.#hasCompany());
          await attempt();
        }
        isShared = true;
        this.#failures = 0;
        this.#before = undefined;
        budget.isFresh = false;
        if (state) this.#tell(state);
      } catch (error) {
        this.#goAlone(error);
        stored = undefined;
      }
    }
    this.#isShared = isShared;
    if (!isShared) change(ALONE);
    this.#state = state ?? stored ?? this.#state;
    for (const [waiter, grant, reason] of outcomes) {
      const hasLeft = !waiter.end(reason, grant);
      if (hasLeft && grant) this.refund(waiter.cost).catch(() => {}); // unless the limiter has been closed
    }
    for (const end of ends) end();
    if (budget.version !== version) this.emit({ type: "change" });
  }

  /** Another tab has stored a state; or, with none, asks for ours, and reminds us that we are first. */
  #receive(state: State | undefined): void {
    if (!state) {
      if (this.#budget.isFresh || !this.#isShared) return;
      this.#tell(this.#state);
      if (this.waiting > 0) void this.serve();
      return;
    }
    this.#onMessage();
    if (this.#isBusy) {
      if (!this.#news || state[0] > this.#news[0]) this.#news = state; // each tab tells its own in order, not all theirs
    } else if (this.#isShared && state[0] > this.#budget.version) this.#adopt(state);
  }

  #tell(state?: State): void {
    if (!this.#isAway) this.#channel!.postMessage(state);
  }

  #adopt(state: State): void {
    try {
      this.#budget.load(state, this.clock.now());
    } catch (error) {
      // Another version of the page has a kind of limit that this one does not know.
      this.#goAlone(error);
      void this.serve();
      return;
    }
    this.#state = state;
    this.emit({ type: "change" });
    // Our waiters may have become impossible, or another tab may have removed our tickets.
    if (this.waiting > 0) {
      void this.serve();
      return;
    }
    void this.#watch();
    this.#setTimer();
  }

  /** Whether another tab answers. */
  #hasCompany(): Promise<boolean> {
    return new Promise((resolve) => {
      const cancel = this.clock.at(this.clock.now() + GRACE_MS, () => resolve(false));
      this.#onMessage = () => {
        cancel();
        resolve(true);
      };
      this.#tell();
    });
  }

  /** Removes the tab that is first from the queue as soon as it has left. */
  async #watch(): Promise<void> {
    const { first } = this.#budget;
    if (first === this.#watched) return;
    this.#unwatch();
    this.#watched = first;
    if (!first || first === this.#lock || !this.#isShared || this.#isAway) return;
    const forget = () => {
      if (this.#watched !== first) return;
      this.#watched = undefined;
      void this.#call(() => this.#budget.forget(first)).catch(() => {}); // only if closed
    };
    const watching = new AbortController();
    this.#unwatch = () => {
      this.#watched = undefined;
      watching.abort();
    };
    const { locks } = navigator;
    locks.request(first, { mode: "shared", signal: watching.signal }, forget).catch(() => {});
    await locks.query().catch(() => {}); // if the lock is free, `forget` has been called by now
  }

  /** Wakes when the first ticket can be admitted. If another tab should do that: reminds it, then removes it. */
  #setTimer(): void {
    this.cancelWake();
    if (this.#isAway) return;
    const { first, dueAt } = this.#budget;
    let wakeAt = this.#isShared ? Infinity : this.#retryAt;
    let wake: () => void = () => this.serve();
    if (first === (this.#isShared ? this.#lock : ALONE)) wakeAt = Math.min(wakeAt, dueAt);
    else if (first) {
      wakeAt = dueAt + GRACE_MS / 2;
      if (wakeAt <= this.clock.now()) wakeAt += GRACE_MS / 2;
      else {
        wake = () => {
          this.#tell();
          this.#setTimer();
        };
      }
    }
    if (wakeAt < Infinity) this.wakeAt(wakeAt, wake);
  }

  async #takeLock(): Promise<void> {
    if (this.#lock || this.#isAway) return;
    const lock = `tollgate:${Math.random()}`;
    await new Promise<void>((taken, failed) => {
      const turn = () =>
        new Promise<void>((release) => {
          this.#lock = lock;
          this.#release = () => {
            this.#lock = "";
            release();
          };
          taken();
        });
      navigator.locks.request(lock, turn).catch(failed);
    });
    if (this.#isAway) this.#release();
  }

  /** Lets others pass while this page cannot run. */
  #leave(): void {
    this.#isAway = true;
    this.#channel?.close();
    this.#release();
    this.#unwatch();
    this.cancelWake();
  }

  #return(): void {
    if (!this.#isAway) return;
    this.#isAway = false;
    this.#openChannel();
    void this.serve();
  }

  #openChannel(): void {
    this.#channel = new BroadcastChannel(`tollgate:${FORMAT}${this.#name}`);
    this.#channel.onmessage = ({ data }: MessageEvent<State | undefined>) => this.#receive(data);
  }

  #goAlone(why: unknown): void {
    if (!hasWarned) console.warn("tollgate: limits are for this tab alone:", why);
    hasWarned = true;
    this.#release();
    this.#before ??= this.#state;
    this.#state = [...this.#state.slice(0, -1), []] as unknown as State; // without the queue
    this.#retryAt = this.clock.now() + Math.min(1000 * 2 ** this.#failures++, LONGEST_BACKOFF_MS);
  }
}

/** One call, in a transaction. Returns how to answer it, once that has ended. */
type Call = (now: number) => () => void;

let hasWarned = false;

/** Prefix of names in storage and of channels. Versions of this package with another stored format share nothing. */
const FORMAT = "1:";
/** The name of this tab in the queue while it is alone. */
const ALONE = "alone";
const LONGEST_BACKOFF_MS = 60_000;
