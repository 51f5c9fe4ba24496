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
  /** When it will be admitted, as far as was foreseen. */
  at: number | undefined;
  /** Removes it from the queue and resolves the call. */
  admit(grant: Grant): unknown;
  /** Removes it from the queue and rejects the call. */
  drop(reason: unknown): void;
}

/** A linked list, which also knows the last waiter of each priority: a waiter joins and leaves in O(log n). */
export class Waiters<Name extends string = never> {
  size = 0;
  /** Before the first waiter and behind the last. */
  readonly #end: Place<Name>;
  /** The priorities of the waiters, the highest first, and the last waiter of each. */
  readonly #priorities: number[] = [];
  readonly #lasts = new Map<number, Place<Name>>();

  constructor() {
    const end = { priority: NaN } as Place<Name>;
    this.#end = end.previous = end.next = end;
  }

  get first(): Waiter<Name> | undefined {
    return this.#waiter(this.#end.next);
  }

  get last(): Waiter<Name> | undefined {
    return this.#waiter(this.#end.previous);
  }

  /** The oldest of the lowest priority. */
  get oldest(): Waiter<Name> | undefined {
    return this.#waiter((this.#lasts.get(this.#priorities.at(-2)!) ?? this.#end).next);
  }

  *[Symbol.iterator](): Generator<Waiter<Name>> {
    for (let place = this.#end.next; place !== this.#end; place = place.next) yield place as Waiter<Name>;
  }

  has(waiter: Waiter<Name>): boolean {
    return waiter.next !== waiter;
  }

  /** Adds a waiter, which is not in the list, behind those of its priority. */
  add(waiter: Waiter<Name>): void {
    const { priority } = waiter;
    const index = this.#indexOf(priority);
    if (this.#priorities[index] !== priority) this.#priorities.splice(index, 0, priority);
    const previous = this.#lasts.get(priority) ?? this.#lasts.get(this.#priorities[index - 1]!) ?? this.#end;
    this.#lasts.set(priority, waiter);
    waiter.previous = previous;
    waiter.next = previous.next;
    previous.next = waiter.next.previous = waiter;
    this.size++;
  }

  /** Removes a waiter. Returns false if it was not there any more. */
  delete(waiter: Waiter<Name>): boolean {
    if (!this.has(waiter)) return false;
    const { priority, previous, next } = waiter;
    if (this.#lasts.get(priority) === waiter) {
      if (previous.priority === priority) this.#lasts.set(priority, previous);
      else {
        this.#lasts.delete(priority);
        this.#priorities.splice(this.#indexOf(priority), 1);
      }
    }
    previous.next = next;
    next.previous = previous;
    waiter.previous = waiter.next = waiter;
    this.size--;
    return true;
  }

  #waiter(place: Place<Name>): Waiter<Name> | undefined {
    return place === this.#end ? undefined : (place as Waiter<Name>);
  }

  /** Where the priority is in the list, or belongs. */
  #indexOf(priority: number): number {
    let low = 0;
    for (let high = this.#priorities.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.#priorities[middle]! > priority) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
