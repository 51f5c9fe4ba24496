// What a user interface shows of a limit, for any framework.
import type { Decision, Limit } from "./bucket.js";
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";

/** What can be watched: a `Limiter`, a `SharedLimiter`, a `Twin`. */
export interface Watchable {
  readonly clock: Clock;
  /** Where they are known. */
  readonly limits?: readonly Limit[];
  peek(cost?: Cost): Decision;
  remaining(): number;
  fullAt(): number;
  on(listener: () => void): () => void;
}

/** How a limit stands. The same object until it stands otherwise. */
export interface Standing {
  /** Whether the cost would be granted now. */
  readonly ok: boolean;
  /** Whole tokens, as of the last change. */
  readonly remaining: number;
  /** When it will be granted, if nobody else asks: Unix milliseconds, `Infinity` for never, and 0 while `ok`. */
  readonly readyAt: number;
}

/** A store as React's `useSyncExternalStore`, Svelte and others take it. Its functions need no `this`. */
export interface Store {
  get(): Standing;
  /** Calls `listener` whenever {@link Store.get} gives something else. Returns what ends that. */
  subscribe(listener: () => void): () => void;
}

/**
 * Watches whether `cost` would be granted. While somebody listens it wakes at the moment `readyAt`, and when all is
 * full again; between them nothing runs.
 *
 * ```js
 * const store = watch(limiter);
 * store.subscribe(() => { button.disabled = !store.get().ok; });
 * ```
 */
export function watch(limiter: Watchable, cost?: Cost): Store {
  const listeners = new Set<() => void>();
  let standing: Standing | undefined;
  let off = () => {};
  let cancel = () => {};

  const look = (): Standing => {
    const decision = limiter.peek(cost);
    const ok = decision.allowed;
    const remaining = limiter.remaining();
    const readyAt = ok ? 0 : decision.retryAt;
    if (standing?.ok === ok && standing.remaining === remaining && standing.readyAt === readyAt) return standing;
    return (standing = { ok, remaining, readyAt });
  };
  const update = () => {
    const before = standing;
    const { ok, readyAt } = look();
    cancel();
    const wakeAt = ok ? limiter.fullAt() : readyAt;
    cancel = wakeAt > limiter.clock.now() && wakeAt < Infinity ? limiter.clock.at(wakeAt, update) : () => {};
    if (standing !== before) for (const listener of listeners) listener();
  };
  return {
    // Whoever listens is told of every change; for others it may have changed with the time.
    get: () => (listeners.size > 0 ? standing! : look()),
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
