// One or two policies with the same requests, as far as time has been played.
import { bisector } from "d3-array";
import type { Policy } from "./policy.ts";
import { Simulation } from "./simulation.ts";
import type { Ask } from "./trace.ts";

export class Play {
  readonly #policies: readonly Policy[];
  #simulations: readonly Simulation[] = [];
  readonly #asks: Ask[];
  #asked = 0;
  /** The latest moment that was played. */
  #played = 0;

  /** `acts` are requests by hand, beside the trace. */
  constructor(policies: readonly Policy[], trace: readonly Ask[], acts: readonly Ask[]) {
    this.#policies = policies;
    this.#asks = [...trace, ...acts].sort((a, b) => a.at - b.at);
    this.#begin();
  }

  get simulations(): readonly Simulation[] {
    return this.#simulations;
  }

  /** Plays all requests up to this moment. Later decisions stay known. */
  advance(to: number) {
    for (let ask = this.#asks[this.#asked]; ask && ask.at <= to; ask = this.#asks[this.#asked]) {
      for (const simulation of this.simulations) simulation.ask(ask);
      this.#asked += 1;
    }
    for (const simulation of this.simulations) simulation.expire(to);
    this.#played = Math.max(this.#played, to);
  }

  /** Adds a request. Decisions after its moment are forgotten, and made again. */
  act(ask: Ask) {
    this.advance(ask.at);
    this.#asks.splice(byMoment.right(this.#asks, ask.at), 0, ask);
    if (ask.at < this.#played) this.#begin();
    this.advance(ask.at);
  }

  /** The moment of the next request after this one, if any. */
  next(after: number): number | undefined {
    return this.#asks[byMoment.right(this.#asks, after)]?.at;
  }

  #begin() {
    this.#simulations = this.#policies.map((policy) => new Simulation(policy));
    this.#asked = 0;
    this.#played = 0;
  }
}

const byMoment = bisector(({ at }: Ask) => at);
