// Decisions of a server from tokens taken in advance.
import type { Grant, Refusal } from "./bucket.js";
import type { Cost } from "./budget.js";
import type {
  BudgetCost,
  Client,
  Degraded,
  Inspection,
  Key,
  Leased,
  PolicyName,
  PolicyNames,
  Problem,
} from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { checkWhole, TollgateError } from "./errors.js";
import { Keeper, type LeaseRequest } from "./lease-core.js";
import { networkOf } from "./network.js";

/** Options of a {@link LeasingLimiter}. */
export interface LeasingOptions<Name extends string = string> {
  /** A policy of the service that has a `lease`. */
  readonly policy: Name;
  /**
   * The most keys that are remembered. What is leased for one that is forgotten counts as spent. Each IPv6 address is a separate key here,
   * even if the policy counts a whole network as one. Default: 10 000.
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
 * Decides for the keys of one policy, mostly without a call: a busy key has a *lease*, tokens that the
 * service withholds from all others, and the limiter spends them. It takes as many as are spent in the time of a lease, renews them
 * before they are spent, and returns what is left halfway if there was no request in half of that time, when the lease ends, or when the limiter
 * is closed. A server of 10 000 decisions a second makes a few calls a second.
 *
 * It never grants more than the policy allows, whatever is lost: what this server does not return counts as spent three seconds
 * after the lease's end. So a server that crashes costs at most its leases.
 *
 * The client's token needs the scope `adjust`: the service trusts what the limiter reports as spent.
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
  /** Wall-clock time, which goes on while a machine sleeps, as does a test's clock. */
  readonly #wall: () => number;
  readonly #texts: Generations;
  readonly #others: Generations;
  readonly #calls = new Set<Promise<unknown>>();
  /** How long a lease lasts; 0 until there is one. */
  #leaseMs = 0;
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
   * Takes tokens of the key, or says when they will be available. Rejects with a {@link TollgateError}: as the client does, with
   * `not_granted` if the service answers with a problem, which is the `cause`, and with `closed`.
   */
  async consume(key: Key, cost: NonNullable<BudgetCost<P>["cost"]> = 1): Promise<LeasedGrant | LeasedRefusal> {
    const wanted = cost as Cost<string>;
    if (typeof wanted === "number") checkWhole("cost", wanted);
    else for (const tokens of Object.values(wanted)) checkWhole("cost", tokens);
    const entry = this.#entry(key);
    for (let hasWaited = false; ; hasWaited = true) {
      if (this.#isClosed) throw new TollgateError("closed", "the limiter has been closed");
      const decision = this.#decide(entry, wanted, !hasWaited);
      if (decision) return decision;
      if (!entry.leasing || hasWaited) return this.#ask(entry, wanted);
      await entry.leasing; // it may bring enough
    }
  }

  /** Returns what is left of all leases, and waits until the service has it. Later calls of {@link consume} reject. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#calls);
    for (const cancel of this.#timers) cancel();
    for (const entry of [...this.#texts.values(), ...this.#others.values()]) {
      this.#update(entry);
      this.#send(entry, entry.keeper.close(this.#limits));
    }
    await Promise.all(this.#calls);
  }

  /** @internal */
  get policy(): string {
    return this.#policy;
  }

  /**
   * How many tokens the service had for the key when it answered last, beside what it has leased.
   *
   * @internal
   */
  leftFor(key: Key): number {
    return this.#entry(key).left;
  }

  /**
   * The key's limits, as the service has had them within the last minute. Those of another key may differ, by an override.
   *
   * @internal
   */
  limitsFor(key: Key): Promise<Inspection> {
    const entry = this.#entry(key);
    const last = entry.limits;
    const now = this.#clock.now();
    if (last && now < entry.limitsUntil) return last;
    entry.limitsUntil = now + LIMITS_KNOWN_MS;
    const learning = this.#inspect(key);
    entry.limits = last ?? learning;
    learning.then(
      (inspection) => {
        // A policy that is off has none; soon it may have.
        entry.limits = inspection.limits.length > 0 ? learning : undefined;
      },
      () => {
        entry.limits = last;
      },
    );
    return entry.limits;
  }

  async #inspect(key: Key): Promise<Inspection> {
    const answer = await this.#client.inspect({ policy: this.#policy, key });
    if (answer.status !== 200) throw new TollgateError("not_granted", answer.detail, { cause: answer });
    return answer;
  }

  #entry(key: Key): Entry {
    const [keys, name] = typeof key === "string" ? [this.#texts, key] : [this.#others, nameOf(key)];
    return keys.get(name) ?? keys.add(name, this.#newEntry(key));
  }

  #newEntry(key: Key): Entry {
    const keeper = new Keeper(this.#clock.now());
    const version = this.#version;
    return { key, keeper, version, leasing: undefined, left: 0, limits: undefined, limitsUntil: -Infinity };
  }

  /** How many limits the policy has, as far as known. */
  get #limits(): number {
    return this.#names === undefined ? 0 : Math.max(1, this.#names.length);
  }

  /** The cost of each limit; none while their names are unknown, or if they differ: then the service says so. */
  #costs(cost: Cost<string>): number[] {
    if (this.#names === undefined) return [];
    if (typeof cost === "number") return this.#names.length === 0 ? [cost] : this.#names.map(() => cost);
    const costs = this.#names.map((name) => (cost as Record<string, number>)[name]);
    return costs.includes(undefined) ? [] : (costs as number[]);
  }

  /** The same in the service's form. */
  #written(tokens: readonly number[]): Cost<string> {
    if (!this.#names?.length) return tokens[0] ?? 0;
    return Object.fromEntries(this.#names.map((name, index) => [name, tokens[index] ?? 0]));
  }

  /** Grants or refuses without a call; `undefined` if the service must be asked. */
  #decide(entry: Entry, cost: Cost<string>, isNew: boolean): LeasedGrant | LeasedRefusal | undefined {
    this.#update(entry);
    const costs = this.#costs(cost);
    if (costs.length === 0 && this.#names !== undefined) return undefined; // of other limits
    const now = this.#clock.now();
    const mayRenew = !entry.leasing && !this.#isClosed;
    const decision = entry.keeper.consume(costs, this.#leaseMs, [now, this.#wall()], isNew, mayRenew);
    if (!decision) return undefined;
    const { allowed, retryAt, remaining, renewal } = decision;
    this.#send(entry, renewal);
    if (!allowed) return { allowed, retryAt, retryAfterMs: retryAt - now, remaining, isLocal: true };
    return { allowed, tokens: Math.max(...costs), readyAt: now, remaining, retryAfterMs: 0, isLocal: true };
  }

  /** Switches to the current limits: what was leased of others counts as spent. */
  #update(entry: Entry): void {
    if (entry.version === this.#version) return;
    entry.version = this.#version;
    entry.keeper.restart(this.#clock.now());
  }

  /** Asks the service for the cost, and for the next lease if there is to be one. */
  async #ask(entry: Entry, cost: Cost<string>): Promise<LeasedGrant | LeasedRefusal> {
    const costs = this.#costs(cost);
    // The leases of all limits end, even if the cost is for others.
    const known = costs.length > 0 ? costs : Array.from({ length: this.#limits }, () => 0);
    const request = entry.keeper.ask(known, this.#leaseMs, this.#clock.now());
    const answer = await this.#call(entry, request, cost);
    const now = this.#clock.now();
    const remaining = entry.keeper.remaining(this.#limits, now);
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

  /** Makes a call in the background, if there is one to make. What is not returned counts as spent, and the next request asks. */
  #send(entry: Entry, request: LeaseRequest | undefined): void {
    if (request) this.#call(entry, request).catch(() => {});
  }

  /** Makes a call, and processes its answer. While a request for a lease is in flight, others wait for it. */
  #call(entry: Entry, request: LeaseRequest, cost?: Cost<string>): Promise<Leased | Degraded | Problem> {
    const call = this.#answer(entry, request, cost);
    const settled = call.then(
      () => {},
      () => {},
    );
    if (request.wanted !== undefined) {
      entry.leasing = settled;
      void settled.then(() => {
        entry.leasing = undefined;
      });
    }
    this.#calls.add(settled);
    void settled.then(() => this.#calls.delete(settled));
    return call;
  }

  async #answer(entry: Entry, { call, wanted, ended }: LeaseRequest, cost: Cost<string> | undefined) {
    const { keeper, key } = entry;
    const [calledAt, wallCalledAt] = [this.#clock.now(), this.#wall()];
    let answer: Leased | Degraded | Problem | undefined;
    try {
      answer = await this.#client.lease({
        policy: this.#policy,
        key,
        ...(cost !== undefined && { cost }),
        // The service wants at least 1 of each limit.
        ...(wanted && { tokens: this.#written(wanted.map((tokens) => Math.max(1, tokens))) }),
        ...(ended.length > 0 && {
          returned: ended.map(({ lease, spent }) => ({ lease, spent: this.#written(spent) })),
        }),
      });
    } finally {
      if (answer?.status !== 200 || answer.degraded) keeper.failed(call, this.#leaseMs, this.#clock.now());
    }
    if (answer.status !== 200 || answer.degraded) return answer;
    const leased = answer as Leased;
    this.#learn(leased.tokens);
    this.#update(entry);
    const { lease, from = 0, until = 0, now, allowed, retry_after_ms: retryAfterMs = Infinity } = leased;
    const times = [calledAt, this.#clock.now(), wallCalledAt] as const;
    const tokens = this.#costs(leased.tokens);
    entry.left = Math.max(0, (leased.remaining ?? 0) - Math.max(...tokens)); // `remaining` includes this lease
    const known = keeper.answered(
      call,
      { lease, from, until, now, allowed, retryAfterMs, tokens },
      this.#leaseMs,
      times,
    );
    if (lease === undefined || known.endAfterMs === undefined) return answer;
    this.#leaseMs = known.leaseMs;
    this.#watch(entry, lease, known.endAfterMs);
    return answer;
  }

  /** Adopts the names of the limits. If they have changed, all leases are of others, and are left to end. */
  #learn(tokens: Cost<string>): void {
    const names = typeof tokens === "number" ? [] : Object.keys(tokens);
    if (this.#names && names.join() !== this.#names.join()) this.#version++;
    this.#names = names;
  }

  /** Checks after this many milliseconds whether a lease is idle or over, and returns what is left. */
  #watch(entry: Entry, lease: string, afterMs: number): void {
    const cancel = this.#clock.at(Math.ceil(this.#clock.now() + afterMs), () => {
      this.#timers.delete(cancel);
      this.#update(entry);
      const end = entry.keeper.end(lease, this.#limits, this.#leaseMs, [this.#clock.now(), this.#wall()]);
      if (typeof end === "number") this.#watch(entry, lease, end);
      else this.#send(entry, end);
    });
    this.#timers.add(cancel);
  }
}

interface Entry {
  readonly key: Key;
  readonly keeper: Keeper;
  /** The limits of the call. */
  version: number;
  /** Settles when the call that asks for a lease is over. */
  leasing: Promise<void> | undefined;
  /** What the service had at its last answer, beside all leases. */
  left: number;
  /** As far as known, and until when they are not asked for again. */
  limits: Promise<Inspection> | undefined;
  limitsUntil: number;
}

/** How long the numbers of a key's limits are assumed not to change. */
const LIMITS_KNOWN_MS = 60_000;

/**
 * The text under which an entry is kept if its key is not a text: the same for all spellings of an address. Of an IPv6 address all bits count,
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

/** Entries by key, in two generations: when the young one is full, the old one is forgotten. An entry that is used is young again. */
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
