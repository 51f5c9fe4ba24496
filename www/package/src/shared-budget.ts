// The state that tabs share, and what a tab may do to it. Time and the stored state are arguments; nothing here waits.
import {
  Bucket,
  type DecideOptions,
  type Decision,
  type Grant,
  LAST_MOMENT,
  type Limit,
  type Snapshot,
} from "./bucket.js";
import { Budget, type Cost } from "./budget.js";
import { carry } from "./carry.js";
import { isChange, later, postpone } from "./limiter.js";
import { reasonOf, waitTooLong } from "./queue.js";
import type { Waiter } from "./waiters.js";

/** The state that is stored, and sent to other tabs. */
export type State = readonly [
  /** How many times it has been written. */
  version: number,
  /** How many times the tabs' common clock was set back. */
  epoch: number,
  /** When it was written, by the common clock. */
  at: number,
  /** The limits of the tab opened last, which has the newest version. */
  limits: readonly Limit[],
  snapshots: readonly Snapshot[],
  pausedUntil: number,
  /** The first moment at which the first ticket could be admitted. */
  dueAt: number,
  queue: readonly Ticket[],
];

/** The place of one `acquire` call in the queue of all tabs. `tab` is the name of a lock that the tab holds. */
type Ticket = readonly [tab: string, cost: Cost<string>, deadline: number];

/** The outcome of a waiter: admitted, or dropped for a reason. */
export type Outcome<Name extends string> = readonly [waiter: Waiter<Name>, grant: Grant | undefined, reason?: unknown];

/**
 * One budget and one queue for all tabs. Each tab has its own copy. It {@link load}s the stored state in a transaction,
 * changes it and, if it {@link isNews}, stores what {@link save} returns. Between transactions the copy only looks.
 *
 * A tab admits its own tickets only, when they are first. A ticket that has not been admitted {@link GRACE_MS} after it
 * could have been belongs to a tab that is suspended; the next tab to come along removes all tickets of that tab. When
 * it wakes up it joins the queue again, at the end.
 */
export class SharedBudget<Name extends string> {
  /** How far the tabs' common clock is ahead of this tab's. */
  aheadMs = 0;
  /** Whether this tab has not stored anything yet, and so not put its own limits in force. */
  isFresh = true;
  /** Whether anything has changed since the last {@link load}. */
  isNews = false;
  /** How many times the state has been written. */
  version = 0;
  pausedUntil = 0;
  /** When the first ticket can be admitted. */
  dueAt = 0;
  /** The limits of this tab. */
  readonly #own: Budget<Name>;
  /** The budget itself, with the limits in force. */
  budget: Budget<string>;
  #epoch = 0;
  #queue: readonly Ticket[] = [];

  constructor(limits: Limit<Name> | readonly Limit<Name>[]) {
    this.#own = new Budget(0, limits);
    this.budget = this.#own as Budget<never> as Budget<string>;
  }

  /** Starts the budget of this tab, and returns its state. */
  begin(now: number): State {
    this.#own.begin(now);
    return this.save(now);
  }

  /** The limits in force: those of the tab that was opened last. */
  get limits(): readonly Limit[] {
    return this.budget.limits;
  }

  /** The tab whose ticket is first in the queue. */
  get first(): string | undefined {
    return this.#queue[0]?.[0];
  }

  /** How far the clock of `state` is ahead. If by more than a minute, it or ours is wrong. */
  isFarAhead([, , at]: State, now: number): boolean {
    return this.isFresh && at - now > STEP_MS;
  }

  /**
   * Continues from `state`. If no living tab can have stored it, its clock may have been wrong and
   * corrected since: then it is continued from `now`, with nothing credited for the time between.
   */
  load(state: State, now: number, isAlone = false): void {
    const [version, epoch, at, limits, snapshots, pausedUntil, dueAt, queue] = state;
    const setBackMs = isAlone && this.isFarAhead(state, now) ? at - now : 0;
    const aheadMs = epoch > this.#epoch && !this.isFresh ? at - now : Math.max(0, at - now);
    now = Math.max(now, at) - setBackMs;
    if (!isEqual(limits, this.limits)) this.budget = new Budget(now, limits);
    this.budget.restore(snapshots);
    // Follow the clock that is furthest ahead: by a slower one, tokens refilled there would be refilled here
    // again. If all tabs have been set back, follow back.
    if (!setBackMs) this.aheadMs += aheadMs;
    this.isNews = this.isFresh;
    this.version = version;
    this.#epoch = epoch + Number(setBackMs > 0);
    this.pausedUntil = pausedUntil - setBackMs;
    this.dueAt = dueAt;
    this.#queue = setBackMs ? [] : queue;
    if (setBackMs) this.budget.restore(this.budget.save(now)); // a large step back: continues with the same tokens
    if (this.isFresh && !isEqual(limits, this.#own.limits)) this.#carryOver(now);
  }

  /** The state at `now`, to store. */
  save(now: number): State {
    const { limits } = this;
    const snapshots = this.budget.save(now);
    return [++this.version, this.#epoch, now, limits, snapshots, this.pausedUntil, this.dueAt, this.#queue];
  }

  /**
   * Takes from all tabs what this one took on its own, while its state went from `before` to `after`. Nothing, if the
   * limits have changed since.
   */
  debit(before: State, after: State, now: number): void {
    if (![before, after].every(([, , , limits]) => isEqual(limits, this.limits))) return;
    const budget = this.budget;
    const stored = budget.save(now);
    const [was, is] = [before, after].map(([, , , , snapshots]) => {
      budget.restore(snapshots);
      return budget.save(now);
    });
    for (const [i, snapshot] of stored.entries()) {
      const bucket = budget.buckets[i]!;
      const taken = Math.max(0, was![i]!.tokens - is![i]!.tokens);
      const isRolling = snapshot.returns !== undefined;
      bucket.restore(isRolling ? snapshot : { ...snapshot, tokens: snapshot.tokens - taken });
      // A rolling window also keeps when it was taken, and has no debt.
      if (isRolling) bucket.decide(now, { verb: "charge", cost: taken });
    }
    this.isNews = true;
  }

  /** Throws if this tab's own limits do not allow such options. Returns what they would answer at most. */
  check(now: number, options: DecideOptions<Name>): Decision {
    return this.#own.peek(now, options);
  }

  /** Decides, or with `peek` only looks. See {@link Limiter.decide}. */
  decide(now: number, options: DecideOptions<Name>, method: "decide" | "peek" = "decide"): Decision {
    const fitted = { ...options, cost: this.#fit(options.cost) };
    const changes = isChange(options.verb);
    if (changes || (!this.first && this.pausedUntil <= now)) {
      const decision = this.budget[method](now, fitted);
      this.isNews ||= method === "decide" && (changes || decision.allowed);
      if (options.verb === "reset") this.pausedUntil = 0;
      return decision;
    }
    const remaining = this.budget.remaining(now);
    return this.#play(now, (moment) => postpone(now, this.budget.peek(moment, fitted), moment, remaining));
  }

  /** Admits nothing before `moment`, which may shorten a pause. */
  pause(moment: number): void {
    this.pausedUntil = moment;
    this.isNews = true;
  }

  /** Removes all tickets of a tab, which has left. */
  forget(tab: string | undefined): void {
    this.#setQueue(this.#queue.filter(([owner]) => owner !== tab));
  }

  /**
   * Queues this tab's waiters in order, and removes and returns those that need not wait any longer. A tab without
   * a name is about to leave, so its waiters are not queued.
   */
  serve(now: number, tab: string, waiters: Waiter<Name>[]): Outcome<Name>[] {
    // The tickets of this tab are places, each for the next of its waiters.
    const left = [...waiters];
    const toTicket = ({ cost, deadline }: Waiter<Name>): Ticket => [tab, this.#fit(cost), deadline];
    const queue = this.#queue.flatMap((ticket) => (ticket[0] === tab ? left.splice(0, 1).map(toTicket) : [ticket]));
    this.#setQueue([...queue, ...left.map(toTicket)]);
    while (this.first && this.first !== tab && now >= this.dueAt + GRACE_MS) {
      this.forget(this.first);
      this.#setDue(now, true);
    }
    const outcomes: Outcome<Name>[] = [];
    if (waiters.some(({ deadline }) => deadline < Infinity)) {
      let place = 0;
      const moments = this.#play(now, (_, moments) => moments);
      this.#setQueue(
        this.#queue.filter(([owner, , deadline], i) => {
          const retryAt = moments[i]!;
          if (owner !== tab) return true;
          if (retryAt <= Math.max(deadline, now)) return ++place;
          outcomes.push([...waiters.splice(place, 1), undefined, waitTooLong(retryAt)] as unknown as Outcome<Name>);
          return false;
        }),
      );
    }
    for (; this.first === tab; this.#setQueue(this.#queue.slice(1))) {
      const decision = this.#ask(now);
      const reason = reasonOf(decision);
      if (!decision.allowed && !reason) break;
      const grant = decision.allowed ? (this.budget.decide(now, this.#first()) as Grant) : undefined;
      outcomes.push([waiters.shift()!, grant, reason]);
    }
    this.#setDue(now, this.first === tab);
    return outcomes;
  }

  /**
   * Plays the queue ahead, as if nothing else were taken, calls `end` at the moment when it is empty, with the moments
   * at which each ticket would be admitted, and puts the budget back. A ticket that misses its deadline takes nothing.
   */
  #play<Result>(now: number, end: (moment: number, moments: number[]) => Result): Result {
    const state = this.budget.save(now);
    let moment = Math.max(now, this.pausedUntil);
    try {
      const moments = this.#queue.map(([, cost, deadline]) => {
        const options = { cost: this.#fit(cost) };
        const decision = this.budget.peek(moment, options);
        const at = decision.allowed ? moment : decision.retryAt;
        if (at > Math.min(Math.max(deadline, now), LAST_MOMENT)) return at;
        moment = at;
        this.budget.decide(moment, options);
        return at;
      });
      return end(moment, moments);
    } finally {
      this.budget.restore(state);
    }
  }

  /** Sets {@link dueAt}. If another tab is still first, looking does not restart its time. */
  #setDue(now: number, isNew: boolean): void {
    if (!this.first) return;
    const decision = this.#ask(now);
    const dueAt = Math.min(
      decision.allowed || decision.maxCost !== undefined ? now : decision.retryAt,
      this.#queue[0]![2],
    );
    this.dueAt = isNew || dueAt > now ? dueAt : Math.min(dueAt, this.dueAt);
  }

  /** The answer to the first ticket. */
  #ask(now: number): Decision {
    const moment = Math.max(now, this.pausedUntil);
    const decision = this.budget.peek(moment, this.#first());
    return decision.allowed && moment > now ? later(moment) : decision;
  }

  #first(): DecideOptions<string> {
    return { cost: this.#fit(this.#queue[0]![1]) };
  }

  #setQueue(queue: readonly Ticket[]): void {
    this.isNews ||= !isEqual(queue, this.#queue);
    this.#queue = queue;
  }

  /**
   * A cost may come from another version of the page: limits that this one does not know cost nothing. A copy, because a
   * framework's proxy could not be stored.
   */
  #fit(cost: Cost<string> = 1): Cost<string> {
    if (typeof cost === "number") return cost;
    return Object.fromEntries(this.limits.map(({ name }) => [name, cost[name!] ?? 0]));
  }

  /**
   * Puts this tab's own limits in force. Each keeps the tokens of the old limit of the same name (without a name: the
   * same position) and kind, or starts anew.
   */
  #carryOver(now: number): void {
    const { limits: old, budget: before } = this;
    const { limits, buckets } = this.#own;
    this.budget = this.#own as Budget<never> as Budget<string>;
    this.#own.begin(now);
    for (const [i, { name }] of limits.entries()) {
      const other = before.buckets[name ? old.findIndex((limit) => limit.name === name) : i];
      if (other) carry(Bucket.addressOf(buckets[i]!), Bucket.addressOf(other), now);
    }
  }
}

const isEqual = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** More than the time between two tabs' readings of their clocks; the core tolerates a step back of the same length. */
const STEP_MS = 60_000;
/** How long a tab may take to admit its first waiter. Halfway it is reminded: in the background its timers may be late. */
export const GRACE_MS = 1000;
