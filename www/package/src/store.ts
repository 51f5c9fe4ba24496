// The state of a limit for a user interface, with any framework.
import type { Decision, Limit } from "./bucket.js";
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";

/** Anything that can be watched: a `Limiter`, a `SharedLimiter` or a `Twin`. */
export interface Watchable<Name extends string = string> {
  readonly clock: Clock;
  /** Absent where only a server knows them. */
  readonly limits?: readonly Limit<Name>[];
  peek(cost?: Cost<Name>): Decision;
  remaining(): number;
  fullAt(): number;
  on(listener: () => void): () => void;
}

/** The state of a limit. The same object until it changes. */
export interface Standing {
  /** Whether the cost would be granted now. */
  readonly ok: boolean;
  /** Whole tokens, at the last change. */
  readonly remaining: number;
  /** When the cost will be granted if nothing else is taken: Unix milliseconds, `Infinity` for never, 0 while `ok`. */
  readonly readyAt: number;
}

/** A store for React's `useSyncExternalStore`, Svelte and others. Its functions do not use `this`. */
export interface Store {
  get(): Standing;
  /** Calls `listener` whenever {@link Store.get} returns something new. Returns a function that unsubscribes it. */
  subscribe(listener: () => void): () => void;
}

/**
 * Watches whether `cost` would be granted. While it has listeners it wakes at the moment `readyAt`, and when all limits
 * are full again; in between nothing runs.
 *
 * ```js
 * const store = watch(limiter);
 * store.subscribe(() => { button.disabled = !store.get().ok; });
 * ```
 */
export function watch<Name extends string = never>(limiter: Watchable<Name>, cost?: Cost<Name>): Store {
  const listeners = new Set<() => void>();
  let standing: Standing | undefined;
  let off = () => {};
  let cancel = () => {};

  const read = (): Standing => {
    const decision = limiter.peek(cost);
    const ok = decision.allowed;
    const remaining = limiter.remaining();
    const readyAt = ok ? 0 : decision.retryAt;
    if (standing?.ok === ok && standing.remaining === remaining && standing.readyAt === readyAt) return standing;
    standing = { ok, remaining, readyAt };
    return standing;
  };
  const update = () => {
    const before = standing;
    const { ok, readyAt } = read();
    cancel();
    const wakeAt = ok ? limiter.fullAt() : readyAt;
    cancel = wakeAt > limiter.clock.now() && wakeAt < Infinity ? limiter.clock.at(wakeAt, update) : () => {};
    if (standing !== before) for (const listener of listeners) listener();
  };
  return {
    // While there are listeners, `standing` is up to date; otherwise it may have changed with time.
    get: () => (listeners.size > 0 ? standing! : read()),
    subscribe(listener) {
      const own = () => listener();
      if (listeners.size === 0) off = limiter.on(update);
      update();
      listeners.add(own);
      return () => {
        if (!listeners.delete(own) || listeners.size > 0) return;
        off();
        cancel();
      };
    },
  };
}
