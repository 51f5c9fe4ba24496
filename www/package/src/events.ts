// A minimal event emitter.

export class Emitter<Event> {
  readonly #listeners = new Set<(event: Event) => void>();

  /** Calls `listener` for every event. Returns a function that removes it. */
  on(listener: (event: Event) => void): () => void {
    const own = (event: Event) => listener(event); // so that the same function can be added twice
    this.#listeners.add(own);
    return () => this.#listeners.delete(own);
  }

  protected emit(event: Event): void {
    tell(this.#listeners, event);
  }
}

/** Calls the listeners of now, but none that has been removed meanwhile. */
export function tell<Event>(listeners: ReadonlySet<(event: Event) => void>, event: Event): void {
  for (const listener of [...listeners]) {
    try {
      if (listeners.has(listener)) listener(event);
    } catch (error) {
      void Promise.reject(error); // reported as an unhandled rejection, which stops no other listener
    }
  }
}
