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
  /** The last waiter of each priority, the highest first. */
  readonly #lasts: Place<Name>[] = [];

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
    return this.#waiter((this.#lasts.at(-2) ?? this.#end).next);
  }

  *[Symbol.iterator](): Generator<Waiter<Name>> {
    for (let place = this.#end.next; place !== this.#end; place = place.next) yield place as Waiter<Name>;
  }

  has(waiter: Waiter<Name>): boolean {
    return waiter.next !== waiter;
  }

  /** Adds a waiter, which is not in the list, behind those of its priority. */
  add(waiter: Waiter<Name>): void {
    const lasts = this.#lasts;
    const index = this.#indexOf(waiter);
    const isNew = lasts[index]?.priority !== waiter.priority;
    const previous = lasts[isNew ? index - 1 : index] ?? this.#end;
    lasts.splice(index, isNew ? 0 : 1, waiter);
    waiter.previous = previous;
    waiter.next = previous.next;
    previous.next = waiter.next.previous = waiter;
    this.size++;
  }

  /** Removes a waiter. Returns false if it was not there any more. */
  delete(waiter: Waiter<Name>): boolean {
    if (!this.has(waiter)) return false;
    const { priority, previous, next } = waiter;
    const index = this.#indexOf(waiter);
    if (this.#lasts[index] === waiter)
      this.#lasts.splice(index, 1, ...(previous.priority === priority ? [previous] : []));
    previous.next = next;
    next.previous = previous;
    waiter.previous = waiter.next = waiter;
    this.size--;
    return true;
  }

  #waiter(place: Place<Name>): Waiter<Name> | undefined {
    return place === this.#end ? undefined : (place as Waiter<Name>);
  }

  /** Where the last waiter of this priority is, or belongs. */
  #indexOf({ priority }: Place<Name>): number {
    let low = 0;
    for (let high = this.#lasts.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.#lasts[middle]!.priority > priority) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
