// One or two policies that are asked the same, as far as time has been played.
import { bisector } from "d3-array";
import type { Policy } from "./policy.ts";
import { Simulation } from "./simulation.ts";
import type { Ask } from "./trace.ts";

export class Play {
  readonly simulations: readonly Simulation[];
  readonly #asks: Ask[];
  #asked = 0;

  /** `acts` are what was asked by hand, among the trace. */
  constructor(policies: readonly Policy[], trace: readonly Ask[], acts: readonly Ask[]) {
    this.simulations = policies.map((policy) => new Simulation(policy));
    this.#asks = [...trace, ...acts].sort((a, b) => a.at - b.at);
  }

  /** Asks all that is asked until this moment. What was decided later stays known. */
  advance(to: number) {
    for (let ask = this.#asks[this.#asked]; ask && ask.at <= to; ask = this.#asks[this.#asked]) {
      for (const simulation of this.simulations) simulation.ask(ask);
      this.#asked += 1;
    }
    for (const simulation of this.simulations) simulation.expire(to);
  }

  /** Asks one thing more, and forgets what was decided after its moment: it is decided anew. */
  act(ask: Ask) {
    this.advance(ask.at);
    const place = byMoment.right(this.#asks, ask.at);
    this.#asks.splice(place, 0, ask);
    for (const simulation of this.simulations) simulation.rewind(ask.at);
    this.#asked = place;
    this.advance(ask.at);
  }

  /** The moment of the next request after this one; nothing if none is left. */
  next(after: number): number | undefined {
    return this.#asks[byMoment.right(this.#asks, after)]?.at;
  }
}

const byMoment = bisector(({ at }: Ask) => at);
