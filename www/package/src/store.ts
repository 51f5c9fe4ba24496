// The state of a limit for a user interface, with any framework.
import type { Decision, Limit } from "./bucket.js";
import type { Cost } from "./budget.js";
import type { Clock } from "./clock.js";
import { tell } from "./events.js";

/** Anything that can be watched: a `Limiter`, a `SharedLimiter` or a `Twin`. */
export interface Watchable<Name extends string = string> {
  readonly clock: Clock;
  /** Absent if only a server knows them. */
  readonly limits?: readonly Limit<Name>[];
  peek(cost?: Cost<Name>): Decision;
  remaining(): number;
  /** The next moment at which there is one more; `Infinity` if none comes. */
  nextTokenAt(): number;
  on(listener: () => void): () => void;
}

/** The state of a limit. The same object until it changes. */
export interface Standing {
  /** Whether the cost would be granted now. */
  readonly ok: boolean;
  /** Whole tokens. */
  readonly remaining: number;
  /** When the cost will be granted if nothing else is taken: Unix milliseconds, `Infinity` for never, 0 while `ok`. */
  readonly readyAt: number;
}

/** A store for React's `useSyncExternalStore`, Svelte and others. Its functions do not use `this`. */
export interface Store<State = Standing> {
  get(): State;
  /** Calls `listener` whenever {@link Store.get} returns something new. Returns a function that unsubscribes it. */
  subscribe(listener: () => void): () => void;
}

/**
 * Watches whether `cost` would be granted. While it has listeners it wakes with each whole token and at the moment
 * `readyAt`; in between nothing runs.
 *
 * ```js
 * const store = watch(limiter);
 * store.subscribe(() => { button.disabled = !store.get().ok; });
 * ```
 */
export function watch<Name extends string = never>(limiter: Watchable<Name>, cost?: Cost<Name>): Store {
  let last: Standing | undefined;
  let dueAt = Infinity;
  let notBefore = 0;
  return follow(limiter, (now) => {
    const readyAt = readyAtOf(limiter, cost);
    const remaining = limiter.remaining();
    const ok = readyAt === 0;
    if (last?.remaining !== remaining || last.readyAt !== readyAt) last = { ok, remaining, readyAt };
    if (now >= dueAt) notBefore = now + FRAME_MS;
    dueAt = Math.max(limiter.nextTokenAt(), Math.min(notBefore, now + FRAME_MS));
    return [last, ok ? dueAt : Math.min(readyAt, dueAt)];
  });
}

/**
 * Counts down the whole seconds until `cost` will be granted: 0 when it would be, `Infinity` for never. While it has
 * listeners it wakes once for each second that is left.
 */
export function countdown<Name extends string = never>(limiter: Watchable<Name>, cost?: Cost<Name>): Store<number> {
  return follow(limiter, (now) => {
    const readyAt = readyAtOf(limiter, cost);
    const seconds = Math.max(0, Math.ceil((readyAt - now) / 1000));
    return [seconds, seconds > 0 ? readyAt - 1000 * (seconds - 1) : Infinity];
  });
}

/** A store of what `look` returns, which is called again when the limiter changes and at `wakeAt`. */
function follow<State>(
  limiter: Pick<Watchable, "clock" | "on">,
  look: (now: number) => readonly [state: State, wakeAt: number],
): Store<State> {
  const listeners = new Set<() => void>();
  const { clock } = limiter;
  let state: State;
  let wakeAt = Infinity;
  let off = () => {};
  let cancel = () => {};

  const update = () => {
    const before = state;
    [state, wakeAt] = look(clock.now());
    cancel();
    // Always, even if the moment has passed since the look: the clock wakes at once then.
    cancel = wakeAt < Infinity ? clock.at(wakeAt, update) : () => {};
    if (state !== before) tell(listeners, undefined);
  };
  return {
    get: () => {
      const now = clock.now();
      // While there are listeners, `state` is up to date, unless the timer is late, as after a machine has slept.
      if (listeners.size > 0 && now < wakeAt) return state;
      queueMicrotask(() => {
        if (listeners.size > 0) update();
      });
      return look(now)[0];
    },
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

/** When the cost will be granted; 0 if now. */
function readyAtOf<Name extends string>(limiter: Watchable<Name>, cost: Cost<Name> | undefined): number {
  const decision = limiter.peek(cost);
  return decision.allowed ? 0 : decision.retryAt;
}

/** Tokens that come faster are reported together: a screen shows no more. */
const FRAME_MS = 16;
