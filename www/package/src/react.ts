// The hook for React.
import { useCallback, useMemo, useSyncExternalStore } from "react";
import type { Cost } from "./budget.js";
import { watch, type Standing, type Watchable } from "./store.js";

/** What {@link useRateLimit} gives: how the limit stands, and the limiter's own `consume`. */
export interface RateLimit<Consumed> extends Standing {
  consume(cost?: Cost): Consumed;
}

/**
 * Shows how a limit stands, and renders again when that changes: when somebody consumes, and exactly at `readyAt`. On a
 * server, and until the page has taken over, it shows a limit that nobody has used: what a server sent cannot know better.
 *
 * ```jsx
 * const { ok, readyAt, consume } = useRateLimit(limiter, { cost: 2 });
 * <button disabled={!ok} onClick={() => consume().allowed && send()}>Send</button>
 * ```
 */
export function useRateLimit<Consumed>(
  limiter: Watchable & { consume(cost?: Cost): Consumed },
  { cost = 1 }: { readonly cost?: Cost } = {},
): RateLimit<Consumed> {
  const asked = JSON.stringify(cost); // an object is another one in each render
  const store = useMemo(() => watch(limiter, JSON.parse(asked) as Cost), [limiter, asked]);
  const unused = useMemo(() => ({ ok: true, remaining: tokensOf(limiter), readyAt: 0 }), [limiter]);
  const standing = useSyncExternalStore(store.subscribe, store.get, () => unused);
  const consume = useCallback(
    (other?: Cost) => limiter.consume(other ?? (JSON.parse(asked) as Cost)),
    [limiter, asked],
  );
  return useMemo(() => ({ ...standing, consume }), [standing, consume]);
}

/** How many tokens there are at first; 0 where only a server knows. */
function tokensOf({ limits }: Watchable): number {
  return limits ? Math.min(...limits.map(({ rate, capacity = rate, initial = capacity }) => initial)) : 0;
}
