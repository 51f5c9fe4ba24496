// A model of the service's leases, and a network to it, for limiters with their own clocks.
import { LeasingLimiter } from "../../build/package/leases.js";
import { FakeClock } from "../../build/package/testing.js";

/** One key of a token bucket: `rate` tokens a second, up to `capacity`. Levels are thousandths of a token. */
export class Service {
  #clock;
  #rate;
  #capacity;
  #leaseMs;
  #horizonMs;
  #level;
  #at;
  #leases = new Map();
  #ids = 0;
  /** Called with each cost that it grants. */
  granted;

  constructor(clock, { rate, capacity, leaseMs, horizonMs }, granted) {
    Object.assign(this, { granted });
    this.#clock = clock;
    [this.#rate, this.#capacity, this.#leaseMs, this.#horizonMs] = [rate, capacity * 1_000, leaseMs, horizonMs];
    [this.#level, this.#at] = [this.#capacity, clock.now()];
  }

  /** What is left beside all leases. */
  get remaining() {
    this.#advance();
    return Math.floor(this.#free(this.#at) / 1_000);
  }

  lease({ cost, tokens = 0, returned = [] }) {
    const now = this.#advance();
    for (const { lease, spent } of returned) {
      const { tokens } = this.#leases.get(lease) ?? { tokens: 0 };
      this.#leases.delete(lease);
      this.#level -= Math.min(spent, tokens) * 1_000;
    }
    const answer = { status: 200, policy: "api", now, tokens: 0 };
    const asked = (cost ?? (tokens ? 1 : 0)) * 1_000;
    const isThere = this.#free(now) >= asked;
    if (cost !== undefined) answer.allowed = isThere;
    if (isThere && cost) {
      this.#level -= asked;
      this.granted(cost);
    }
    const spare = (by) => Math.min(tokens, Math.ceil(Math.floor(this.#free(by) / 1_000) / 2));
    const given = Math.max(spare(now) || spare(now + this.#horizonMs), 0);
    const from = this.#when(given * 1_000);
    if (!isThere) answer.retry_at = this.#when(asked);
    if (given > 0 && (isThere || given * 1_000 >= asked)) {
      const lease = String(++this.#ids).padStart(16, "0");
      const until = from + this.#leaseMs;
      this.#leases.set(lease, { tokens: given, until: until + 3_000 });
      Object.assign(answer, { lease, tokens: given, from, until });
      if (!isThere) answer.retry_at = Math.max(answer.retry_at, from);
    }
    if (answer.retry_at !== undefined) answer.retry_after_ms = answer.retry_at - now;
    return answer;
  }

  /** When this much is free, if nothing else happens: at the latest when all leases are over. */
  #when(level) {
    const missing = level - this.#free(this.#at);
    if (missing <= 0) return this.#at;
    const at = this.#at + Math.ceil(missing / this.#rate);
    if (this.#free(at) >= level) return at;
    return Math.max(at, ...[...this.#leases.values()].map(({ until }) => until)) + Math.ceil(level / this.#rate);
  }

  #free(at) {
    const level = Math.min(this.#capacity, this.#level + (at - this.#at) * this.#rate);
    return [...this.#leases.values()].reduce((free, { tokens }) => free - tokens * 1_000, level);
  }

  /** Advances to now: leases that are over are spent. */
  #advance() {
    const now = this.#clock.now();
    const over = [...this.#leases].filter(([, { until }]) => until <= now).sort(([, a], [, b]) => a.until - b.until);
    for (const [lease, { tokens, until }] of over) {
      this.#refill(until);
      this.#level -= tokens * 1_000;
      this.#leases.delete(lease);
    }
    this.#refill(now);
    return now;
  }

  #refill(at) {
    this.#level = Math.min(this.#capacity, this.#level + (at - this.#at) * this.#rate);
    this.#at = at;
  }
}

/** One bucket that learns of every grant at once: throws if there is not enough. */
export class Reference {
  #clock;
  #rate;
  #capacity;
  #level;
  #at;

  constructor(clock, { rate, capacity }) {
    [this.#clock, this.#rate, this.#capacity] = [clock, rate, capacity * 1_000];
    [this.#level, this.#at] = [this.#capacity, clock.now()];
  }

  take(cost) {
    const now = this.#clock.now();
    this.#level = Math.min(this.#capacity, this.#level + (now - this.#at) * this.#rate) - cost * 1_000;
    this.#at = now;
    if (this.#level < 0) throw new Error(`${-this.#level} thousandths too many at ${now - new FakeClock().now()}`);
  }
}

/** A limiter whose clock is `ahead`, behind a network: `fate(clock)` is how long a message takes, or `undefined` if it is lost. */
export class Server {
  /** How far its clock is ahead: it may grow. */
  ahead;
  calls = 0;

  constructor(world, service, { ahead = 0, fate = () => 0, isTwice = () => false, timeoutMs = 2_000 } = {}) {
    this.ahead = ahead;
    const clock = {
      now: () => world.now() + this.ahead,
      at: (moment, wake) => world.at(moment - this.ahead, wake),
    };
    const after = (ms, work) => (ms === undefined ? undefined : world.at(world.now() + ms, work));
    const lease = (request) =>
      new Promise((resolve, reject) => {
        this.calls++;
        const copy = structuredClone(request);
        after(timeoutMs, () => reject(new Error("timeout")));
        const arrive = () => {
          const answer = service.lease(copy);
          after(fate(), () => resolve(answer));
        };
        after(fate(), arrive);
        // A replay takes nothing: its cost is that of the first.
        if (isTwice()) after(fate(), () => service.lease({ returned: copy.returned, tokens: copy.tokens }));
      });
    this.limiter = new LeasingLimiter({ lease }, { policy: "api", clock });
  }
}
