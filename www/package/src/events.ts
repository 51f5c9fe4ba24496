// Telling others what happened.

/** Somebody who tells. */
export class Events<Event> {
  readonly #listeners = new Set<(event: Event) => void>();

  /** Calls `listener` whenever something happens. Returns what ends that. */
  on(listener: (event: Event) => void): () => void {
    const own = (event: Event) => listener(event); // so that one listener may listen twice
    this.#listeners.add(own);
    return () => this.#listeners.delete(own);
  }

  protected emit(event: Event): void {
    for (const listener of this.#listeners) {
      try {
        listener(event);
      } catch (error) {
        void Promise.reject(error); // told as unhandled: whoever listens cannot stop what goes on
      }
    }
  }
}
