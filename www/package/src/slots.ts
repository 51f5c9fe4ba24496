// A queue of numbered places by moment: a binary heap in typed arrays.

/** Places with a number, each free or in use until a moment. The arrays grow as places are used. */
export class Slots {
  /** How many are in use. */
  size = 0;
  /** The places in use as a heap, the earliest first; behind them the free ones. */
  #order = new Uint32Array(0);
  /** The moment of each place. */
  #at = new Float64Array(0);
  readonly #most: number;

  /** At most `most` are used at once. */
  constructor(most: number) {
    this.#most = most;
  }

  /** The capacity without growing. */
  get capacity(): number {
    return this.#order.length;
  }

  /** The place that comes first. */
  get first(): number {
    return this.#order[0]!;
  }

  /** Its moment; `Infinity` if none is in use. */
  get firstAt(): number {
    return this.size > 0 ? this.#at[this.first]! : Infinity;
  }

  /** Takes a free place, until `at`. */
  add(at: number): number {
    if (this.size === this.capacity) this.#grow();
    const slot = this.#order[this.size]!;
    this.#at[slot] = at;
    this.#rise(this.size++, slot);
    return slot;
  }

  /** Frees the first. */
  removeFirst(): void {
    const { first } = this;
    const last = this.#order[--this.size]!;
    this.#order[this.size] = first;
    if (this.size > 0) this.#sink(0, last);
  }

  /** Moves the first to another moment, no earlier than its own. */
  moveFirst(at: number): void {
    const { first } = this;
    this.#at[first] = at;
    this.#sink(0, first);
  }

  /** Gives all in use another moment. */
  moveAll(momentOf: (slot: number) => number): void {
    for (let place = 0; place < this.size; place++) {
      const slot = this.#order[place]!;
      this.#at[slot] = momentOf(slot);
    }
    for (let place = (this.size >> 1) - 1; place >= 0; place--) this.#sink(place, this.#order[place]!);
  }

  #grow(): void {
    const before = this.#order.length;
    const after = Math.min(Math.max(FEWEST, 2 * before), this.#most);
    const [order, at] = [new Uint32Array(after), new Float64Array(after)];
    order.set(this.#order);
    at.set(this.#at);
    for (let slot = before; slot < after; slot++) order[slot] = slot;
    this.#order = order;
    this.#at = at;
  }

  /** Puts `slot` at `place`, or earlier as its moment requires. */
  #rise(place: number, slot: number): void {
    const moment = this.#at[slot]!;
    while (place > 0) {
      const above = (place - 1) >> 1;
      const other = this.#order[above]!;
      if (this.#at[other]! <= moment) break;
      this.#order[place] = other;
      place = above;
    }
    this.#order[place] = slot;
  }

  /** Puts `slot` at `place`, or later as its moment requires. */
  #sink(place: number, slot: number): void {
    const moment = this.#at[slot]!;
    for (;;) {
      let below = 2 * place + 1;
      if (below >= this.size) break;
      if (below + 1 < this.size && this.#at[this.#order[below + 1]!]! < this.#at[this.#order[below]!]!) below++;
      const other = this.#order[below]!;
      if (this.#at[other]! >= moment) break;
      this.#order[place] = other;
      place = below;
    }
    this.#order[place] = slot;
  }
}

/** Initial number of places. */
const FEWEST = 64;
