// The calls that wait, in order: by priority, and within one by arrival.
import type { Grant } from "./bucket.js";
import type { Cost } from "./budget.js";

/** A place in the order. */
interface Place<Name extends string> {
  readonly priority: number;
  previous: Place<Name>;
  next: Place<Name>;
}

/** One `acquire` call. */
export interface Waiter<Name extends string = never> extends Place<Name> {
  readonly cost: Cost<Name>;
  readonly signal: AbortSignal | null | undefined;
  /** The last moment at which it may be admitted. */
  readonly deadline: number;
  /** When it will be admitted, by the last forecast. */
  at: number | undefined;
  /**
   * Removes it from the queue, and resolves the call with `grant` or, without one, rejects it with `reason`. Returns false
   * if it had left already.
   */
  end(reason: unknown, grant?: Grant): boolean;
}

/** A ring for each priority: a waiter joins and leaves in O(log n). */
export class Waiters<Name extends string = never> {
  size = 0;
  /** The highest priority first. Each ring begins and ends with a place of its own, and has at least one waiter. */
  readonly #rings: Place<Name>[] = [];

  get first(): Waiter<Name> | undefined {
    return this.#rings[0]?.next as Waiter<Name> | undefined;
  }

  get last(): Waiter<Name> | undefined {
    return this.#rings.at(-1)?.previous as Waiter<Name> | undefined;
  }

  /** The oldest of the lowest priority. */
  get oldest(): Waiter<Name> | undefined {
    return this.#rings.at(-1)?.next as Waiter<Name> | undefined;
  }

  *[Symbol.iterator](): Generator<Waiter<Name>> {
    for (const ring of this.#rings)
      for (let place = ring.next; place !== ring; place = place.next) yield place as Waiter<Name>;
  }

  has(waiter: Waiter<Name>): boolean {
    return waiter.next !== waiter;
  }

  /** Adds a waiter, which is not in the list, behind those of its priority. */
  add(waiter: Waiter<Name>): void {
    const { priority } = waiter;
    const index = this.#indexOf(priority);
    let ring = this.#rings[index];
    if (ring?.priority !== priority) {
      ring = { priority } as Place<Name>;
      ring.previous = ring.next = ring;
      this.#rings.splice(index, 0, ring);
    }
    waiter.previous = ring.previous;
    waiter.next = ring;
    ring.previous = ring.previous.next = waiter;
    this.size++;
  }

  /** Removes a waiter. Returns false if it had left already. */
  delete(waiter: Waiter<Name>): boolean {
    if (!this.has(waiter)) return false;
    const { priority, previous, next } = waiter;
    previous.next = next;
    next.previous = previous;
    waiter.next = waiter;
    if (previous === next) this.#rings.splice(this.#indexOf(priority), 1); // it was the only one
    this.size--;
    return true;
  }

  /** Where the ring of this priority is, or belongs. */
  #indexOf(priority: number): number {
    let low = 0;
    for (let high = this.#rings.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.#rings[middle]!.priority > priority) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
