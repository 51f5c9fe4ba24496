// Decisions of a server from tokens that it has taken in advance.
import type { Grant, Refusal } from "./bucket.js";
import type { Cost } from "./budget.js";
import type { BudgetCost, Client, Degraded, Key, Leased, PolicyName, PolicyNames, Problem } from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import { networkOf } from "./network.js";

/** Of what a {@link LeasingLimiter} takes its tokens. */
export interface LeasingOptions<Name extends string = string> {
  /** A policy of the service that has a `lease`. */
  readonly policy: Name;
  /**
   * The most keys that are remembered. What is leased for one that is forgotten counts as spent. Each IPv6 address is a key of its own here,
   * also where the policy counts a whole network as one. Default: 10 000.
   */
  readonly maxKeys?: number;
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
}

/** Granted; `remaining` is what this server can grant for the key without asking. */
export interface LeasedGrant extends Grant {
  /** Whether it was decided without a call. */
  readonly isLocal: boolean;
  /** The service could not decide, and the policy lets requests pass in that case. */
  readonly degraded?: Degraded["degraded"];
}

/** Refused. Moments are by the local clock. */
export interface LeasedRefusal extends Refusal {
  readonly isLocal: boolean;
}

/**
 * Decides for the keys of one policy, mostly without asking: a key that is asked for often has a *lease*, tokens that the
 * service keeps from everybody else, and the limiter spends them. It takes as many as are spent in the time of a lease, renews them
 * before they are spent, and returns what is left halfway if there was no request in half of that time, when the lease ends, or when the limiter
 * is closed. A server of 10 000 decisions a second makes a few calls a second.
 *
 * Never is more granted than the policy allows, whatever is lost: what this server does not return counts as spent three seconds
 * after the lease's end. So a server that crashes costs at most its leases.
 *
 * The client's token needs the scope `adjust`: the service believes what the limiter says that it has spent.
 *
 * ```js
 * const limiter = new LeasingLimiter(client, { policy: "api" });
 * const decision = await limiter.consume("alice");
 * if (!decision.allowed) return tooManyRequests(decision.retryAfterMs);
 * // when the server stops:
 * await limiter.close();
 * ```
 */
export class LeasingLimiter<P extends PolicyNames = string, Name extends PolicyName<P> = PolicyName<P>> {
  readonly #client: Client;
  readonly #policy: string;
  readonly #clock: Clock;
  /** The time of the wall, which goes on while a machine sleeps. A test's clock does, too. */
  readonly #wall: () => number;
  readonly #texts: Generations;
  readonly #others: Generations;
  readonly #calls = new Set<Promise<unknown>>();
  /** How long a lease lasts; a guess until there is one. */
  #leaseMs = 1_000;
  /** The names of the limits; `undefined` until an answer has them, and empty if the only one has none. */
  #names: readonly string[] | undefined;
  /** How often these have changed. */
  #version = 0;
  readonly #timers = new Set<() => void>();
  #isClosed = false;

  constructor(client: Client<P>, { policy, maxKeys = 10_000, clock = systemClock }: LeasingOptions<Name>) {
    this.#client = client as unknown as Client;
    this.#policy = policy;
    this.#clock = clock;
    this.#wall = clock === systemClock ? Date.now : () => clock.now();
    checkWhole("maxKeys", maxKeys, 2);
    this.#texts = new Generations(maxKeys);
    this.#others = new Generations(maxKeys);
  }

  /**
   * Takes tokens of the key, or says when they can be had. Rejects with a {@link TollgateError}: as the client does, with
   * `not_granted` if the service answers with a problem, which is the `cause`, and with `closed`.
   */
  async consume(key: Key, cost: NonNullable<BudgetCost<P>["cost"]> = 1): Promise<LeasedGrant | LeasedRefusal> {
    const wanted = cost as Cost<string>;
    if (typeof wanted === "number") checkWhole("cost", wanted);
    else for (const tokens of Object.values(wanted)) checkWhole("cost", tokens);
    const entry = this.#entry(key);
    let now = this.#clock.now();
    add(entry.demand, this.#costs(wanted), now, this.#leaseMs);
    for (let hasWaited = false; ; hasWaited = true) {
      if (this.#isClosed) throw new TollgateError("closed", "the limiter has been closed");
      const decision = this.#decide(entry, wanted, now);
      if (decision) {
        const renewal = this.#request(entry, now, false);
        if (renewal) this.#call(entry, { tokens: renewal }).catch(() => {}); // the next consume asks
        return decision;
      }
      // Without a renewal: the next lease could have the tokens that are waited for.
      const refusal = this.#repeated(entry, wanted, now);
      if (refusal) return refusal;
      if (!entry.leasing || hasWaited) return this.#ask(entry, wanted);
      await entry.leasing; // it may bring enough
      now = this.#clock.now();
    }
  }

  /** Returns what is left of all leases, and waits until the service has it. Later calls of {@link consume} reject. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#calls);
    for (const cancel of this.#timers) cancel();
    for (const entry of [...this.#texts.values(), ...this.#others.values()]) {
      this.#update(entry);
      for (const lease of entry.open.splice(0)) this.#end(entry, lease);
      this.#return(entry);
    }
    await Promise.all(this.#calls);
  }

  #entry(key: Key): Entry {
    const [keys, name] = typeof key === "string" ? [this.#texts, key] : [this.#others, nameOf(key)];
    return keys.get(name) ?? keys.add(name, newEntry(key, this.#clock.now()));
  }

  /** The cost of each limit; none while their names are not known, or if they are others: then the service says so. */
  #costs(cost: Cost<string>): number[] {
    if (this.#names === undefined) return [];
    if (typeof cost === "number") return this.#names.length === 0 ? [cost] : this.#names.map(() => cost);
    const costs = this.#names.map((name) => (cost as Record<string, number>)[name]);
    return costs.includes(undefined) ? [] : (costs as number[]);
  }

  /** The same as the service writes them. */
  #written(tokens: readonly number[]): Cost<string> {
    if (!this.#names?.length) return tokens[0] ?? 0;
    return Object.fromEntries(this.#names.map((name, index) => [name, tokens[index] ?? 0]));
  }

  /** Grants or refuses by what is leased; `undefined` if that is not enough. */
  #decide(entry: Entry, cost: Cost<string>, now: number): LeasedGrant | LeasedRefusal | undefined {
    this.#advance(entry, now);
    const costs = this.#costs(cost);
    if (costs.length === 0) return undefined;
    const { open } = entry;
    let at: number | undefined;
    for (let index = 0; index < open.length && at === undefined; index++)
      if (isCovered(entry, costs, Math.max(open[index]!.from, now))) at = Math.max(open[index]!.from, now);
    if (at === undefined) return undefined;
    if (at <= now) {
      for (let limit = 0; limit < costs.length; limit++) spend(open, limit, costs[limit]!, now);
      entry.refused = undefined; // it would pass later now
    }
    const remaining = leastLeft(entry, costs.length, now);
    if (at > now) return { allowed: false, retryAt: at, retryAfterMs: at - now, remaining, isLocal: true };
    const tokens = costs.length === 1 ? costs[0]! : Math.max(...costs);
    return { allowed: true, tokens, readyAt: now, remaining, retryAfterMs: 0, isLocal: true };
  }

  /** Refuses what the service has refused lately, and nothing was granted since. */
  #repeated(entry: Entry, cost: Cost<string>, now: number): LeasedRefusal | undefined {
    const costs = this.#costs(cost);
    const { refused } = entry;
    if (!refused || now >= refused.until || costs.length === 0) return undefined;
    if (!costs.every((cost, limit) => cost === refused.costs[limit])) return undefined;
    const { retryAt } = refused;
    const remaining = leastLeft(entry, costs.length, now);
    return { allowed: false, retryAt, retryAfterMs: retryAt - now, remaining, isLocal: true };
  }

  /** Goes on to the limits as they are: what was leased of others counts as spent. */
  #update(entry: Entry): void {
    if (entry.version === this.#version) return;
    Object.assign(entry, newEntry(entry.key, this.#clock.now()), { version: this.#version, leasing: entry.leasing });
  }

  /** Ends the leases that are over or spent. */
  #advance(entry: Entry, now: number): void {
    this.#update(entry);
    const wall = this.#wall();
    for (let index = entry.open.length - 1; index >= 0; index--) {
      const lease = entry.open[index]!;
      // A machine may have slept, and a wall clock may have been set: the one that has gone further counts.
      if (now >= lease.until || wall >= lease.wallUntil || lease.left.every(isZero))
        this.#end(entry, entry.open.splice(index, 1)[0]!);
    }
  }

  #end(entry: Entry, { lease, left, spent }: OpenLease): void {
    if (entry.ended.length >= MAX_ENDED) entry.ended.shift();
    entry.ended.push({ lease, spent: this.#written(spent), hasRest: left.some((left) => left > 0) });
  }

  /** How many tokens to ask for, beside a request or in the background; `undefined` for none. */
  #request(entry: Entry, now: number, isAsked: boolean): Cost<string> | undefined {
    const { demand, given, open } = entry;
    if (entry.leasing || entry.asksAgainAt > now || this.#isClosed) return undefined;
    if (Math.max(demand.asked, demand.askedBefore) < MIN_ASKED) return undefined;
    const soon = now + this.#leaseMs / 4;
    let wanted: number[] | undefined;
    for (let limit = 0; limit < demand.tokens.length; limit++) {
      // As much as in the last period, or already in this one.
      const most = Math.max(demand.tokens[limit]!, demand.tokensBefore[limit] ?? 0);
      let lasting = 0;
      for (const lease of open) if (lease.until > soon) lasting += lease.left[limit]!;
      // While a quarter is left of what can be had, nothing is asked for in the background.
      if (most <= lasting || (!isAsked && lasting >= Math.ceil(Math.min(most, given[limit] ?? most) / 4))) continue;
      wanted ??= demand.tokens.map(() => 1);
      wanted[limit] = most - lasting;
    }
    return wanted && this.#written(wanted);
  }

  /** Asks the service for the cost, and for the next lease if there is to be one. */
  async #ask(entry: Entry, cost: Cost<string>): Promise<LeasedGrant | LeasedRefusal> {
    // What is left would be withheld from this request, too.
    for (const lease of entry.open.splice(0)) this.#end(entry, lease);
    const tokens = this.#request(entry, this.#clock.now(), true);
    const answer = await this.#call(entry, { cost, ...(tokens !== undefined && { tokens }) });
    const now = this.#clock.now();
    const remaining =
      this.#names === undefined ? 0 : Math.min(...this.#costs(0).map((_, limit) => left(entry, limit, now)));
    if (answer.status === 200) {
      const degraded = answer.degraded && { degraded: answer.degraded };
      if (answer.allowed) {
        const taken = Math.max(...(typeof cost === "number" ? [cost] : Object.values(cost)));
        return { allowed: true, tokens: taken, readyAt: now, remaining, retryAfterMs: 0, isLocal: false, ...degraded };
      }
      const { retry_after_ms: retryAfterMs = Infinity } = answer as Leased;
      return { allowed: false, retryAt: now + retryAfterMs, retryAfterMs, remaining, isLocal: false };
    }
    if (answer.max_cost === undefined) throw new TollgateError("not_granted", answer.detail, { cause: answer });
    const never = { retryAt: Infinity, retryAfterMs: Infinity, maxCost: answer.max_cost };
    return { allowed: false, ...never, remaining, isLocal: false };
  }

  /** Makes a call, and takes over its answer. While one is on its way that asks for a lease, others wait for it. */
  #call(entry: Entry, wanted: { cost?: Cost<string>; tokens?: Cost<string> }): Promise<Leased | Degraded | Problem> {
    const call = this.#answer(entry, wanted);
    const settled = call.then(
      () => {},
      () => {},
    );
    if (wanted.tokens !== undefined) {
      entry.leasing = settled;
      void settled.then(() => {
        entry.leasing = undefined;
      });
    }
    this.#calls.add(settled);
    void settled.then(() => this.#calls.delete(settled));
    return call;
  }

  async #answer(entry: Entry, wanted: { cost?: Cost<string>; tokens?: Cost<string> }) {
    this.#update(entry);
    const ended = [...entry.ended];
    const [calledAt, wallCalledAt] = [this.#clock.now(), this.#wall()];
    // Unless an answer says so sooner.
    if (wanted.tokens !== undefined) entry.asksAgainAt = calledAt + this.#leaseMs / 2;
    const returned = ended.map(({ lease, spent }) => ({ lease, spent }));
    const answer = await this.#client.lease({
      policy: this.#policy,
      key: entry.key,
      ...wanted,
      ...(returned.length > 0 && { returned }),
    });
    if (answer.status !== 200 || answer.degraded) return answer;
    const leased = answer as Leased;
    entry.ended = entry.ended.filter((one) => !ended.includes(one));
    this.#learn(leased.tokens);
    this.#update(entry);
    const now = this.#clock.now();
    const { lease, from, until, retry_after_ms } = leased;
    if (leased.allowed) entry.refused = undefined;
    if (leased.allowed === false && retry_after_ms !== undefined && wanted.cost !== undefined) {
      const costs = this.#costs(wanted.cost);
      entry.refused = { costs, retryAt: now + retry_after_ms, until: now + Math.min(retry_after_ms, REFUSAL_MS) };
    }
    if (lease === undefined || from === undefined || until === undefined) {
      const pauseMs = Math.max(this.#leaseMs / 4, Math.min(retry_after_ms ?? 0, REFUSAL_MS));
      if (wanted.tokens !== undefined) entry.asksAgainAt = Math.min(entry.asksAgainAt, now + pauseMs);
      return answer;
    }
    this.#leaseMs = Math.max(1, until - from);
    entry.asksAgainAt = now;
    entry.given = this.#costs(leased.tokens);
    const lengthMs = until - leased.now;
    const open: OpenLease = {
      lease,
      // What is there may be spent at once; what is to come, so long after the answer has come.
      from: from > leased.now ? now + from - leased.now : -Infinity,
      until: calledAt + lengthMs,
      wallUntil: wallCalledAt + lengthMs,
      left: [...entry.given],
      spent: entry.given.map(() => 0),
    };
    if (open.from >= open.until || now >= open.until) this.#end(entry, open);
    else {
      entry.open.push(open);
      entry.open.sort((a, b) => a.from - b.from);
    }
    this.#watch(entry, lease, now + Math.max(0, open.until - now) / 2);
    return answer;
  }

  /** Takes over the names of the limits. If they have changed, all leases are of others, and are left to end. */
  #learn(tokens: Cost<string>): void {
    const names = typeof tokens === "number" ? [] : Object.keys(tokens);
    if (this.#names && names.join() !== this.#names.join()) this.#version++;
    this.#names = names;
  }

  /** Looks at `moment` whether a lease is idle or over, and returns what is left. */
  #watch(entry: Entry, id: string, moment: number): void {
    const cancel = this.#clock.at(Math.ceil(moment), () => {
      this.#timers.delete(cancel);
      const now = this.#clock.now();
      this.#advance(entry, now);
      const index = entry.open.findIndex(({ lease }) => lease === id);
      if (index >= 0) {
        const { until } = entry.open[index]!;
        if (now - entry.demand.latest < this.#leaseMs / 2) return this.#watch(entry, id, until);
        this.#end(entry, entry.open.splice(index, 1)[0]!);
      }
      this.#return(entry);
    });
    this.#timers.add(cancel);
  }

  /** Returns what is left of leases that have ended. */
  #return(entry: Entry): void {
    if (entry.ended.some(({ hasRest }) => hasRest)) this.#call(entry, {}).catch(() => {}); // then it counts as spent
  }
}

interface Entry {
  readonly key: Key;
  demand: Demand;
  /** Which limits it is about. */
  version: number;
  /** Those that can be spent from first, first. */
  open: OpenLease[];
  /** Leases that have ended, until the service has heard so. */
  ended: { readonly lease: string; readonly spent: Cost<string>; readonly hasRest: boolean }[];
  /** The tokens of the latest lease. */
  given: readonly number[];
  /** Until when no lease is asked for. */
  asksAgainAt: number;
  /** Settles when the call that asks for a lease is over. */
  leasing: Promise<void> | undefined;
  /** What the service has refused last, when it would pass, and until when that is believed. */
  refused: { readonly costs: readonly number[]; readonly retryAt: number; readonly until: number } | undefined;
}

interface OpenLease {
  readonly lease: string;
  readonly from: number;
  readonly until: number;
  readonly wallUntil: number;
  readonly left: number[];
  readonly spent: number[];
}

/** What was asked for, in the time of a lease that has begun and in the one before. */
interface Demand {
  since: number;
  asked: number;
  tokens: number[];
  askedBefore: number;
  tokensBefore: number[];
  latest: number;
}

/**
 * What the entry of a key that is not a text is kept under: the same for all spellings of an address. Of an IPv6 address all bits count,
 * because only the service knows the policy's `ipv6_prefix`: addresses in one entry share its leases, so they must share a budget.
 */
function nameOf(key: Exclude<Key, string>): string {
  const ip: unknown = (key as { readonly ip?: unknown } | null | undefined)?.ip;
  if (typeof ip !== "string") return JSON.stringify(key);
  try {
    return JSON.stringify({ ...key, ip: networkOf(ip, 128) });
  } catch {
    return JSON.stringify(key); // the service rejects it
  }
}

function newEntry(key: Key, now: number): Entry {
  const demand = { since: now, asked: 0, tokens: [], askedBefore: 0, tokensBefore: [], latest: now };
  const none = { leasing: undefined, refused: undefined };
  return { key, version: 0, demand, open: [], ended: [], given: [], asksAgainAt: -Infinity, ...none };
}

function add(demand: Demand, costs: readonly number[], now: number, periodMs: number): void {
  const elapsedMs = now - demand.since;
  if (elapsedMs >= periodMs) {
    const isNext = elapsedMs < 2 * periodMs;
    demand.askedBefore = isNext ? demand.asked : 0;
    demand.tokensBefore = isNext ? demand.tokens : [];
    [demand.since, demand.asked, demand.tokens] = [now, 0, []];
  }
  demand.latest = now;
  demand.asked++;
  for (let limit = 0; limit < costs.length; limit++) demand.tokens[limit] = (demand.tokens[limit] ?? 0) + costs[limit]!;
}

/** Whether all of the costs may be spent by then. */
function isCovered(entry: Entry, costs: readonly number[], by: number): boolean {
  for (let limit = 0; limit < costs.length; limit++) if (left(entry, limit, by) < costs[limit]!) return false;
  return true;
}

/** Spends from the first leases first. There is enough. */
function spend(open: readonly OpenLease[], limit: number, cost: number, now: number): void {
  let owed = cost;
  for (const lease of open) {
    if (owed === 0 || lease.from > now) return;
    const tokens = Math.min(owed, lease.left[limit]!);
    lease.left[limit]! -= tokens;
    lease.spent[limit]! += tokens;
    owed -= tokens;
  }
}

const isZero = (tokens: number) => tokens === 0;

/** What is left of a limit that may be spent by then. */
function left(entry: Entry, limit: number, by: number): number {
  let sum = 0;
  for (const lease of entry.open) if (lease.from <= by && by < lease.until) sum += lease.left[limit]!;
  return sum;
}

/** The same of the limit that has least, of so many. */
function leastLeft(entry: Entry, limits: number, by: number): number {
  let least = Infinity;
  for (let limit = 0; limit < limits; limit++) least = Math.min(least, left(entry, limit, by));
  return least;
}

/** Entries by their keys, in two generations: when the young one is full, the old one is forgotten. What is asked for is young again. */
class Generations {
  readonly #size: number;
  #young = new Map<string, Entry>();
  #old = new Map<string, Entry>();

  constructor(most: number) {
    this.#size = Math.floor(most / 2);
  }

  get(name: string): Entry | undefined {
    const young = this.#young.get(name);
    if (young) return young;
    const old = this.#old.get(name);
    return old && this.add(name, old);
  }

  add(name: string, entry: Entry): Entry {
    if (this.#young.size >= this.#size) [this.#old, this.#young] = [this.#young, new Map()];
    this.#old.delete(name);
    this.#young.set(name, entry);
    return entry;
  }

  values(): Entry[] {
    return [...this.#young.values(), ...this.#old.values()];
  }
}

/** Rarer requests are asked one by one: a lease costs the service a row. More would keep a server that waits for its answers at them. */
const MIN_ASKED = 2;
/** So many ended leases are remembered until the service has heard of them: as many as a request may have. */
const MAX_ENDED = 16;
/** How long a refusal is believed: others may give tokens back. As long as the service believes one by default. */
const REFUSAL_MS = 1_000;
