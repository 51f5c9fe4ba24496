// The hook for React.
import { useCallback, useMemo, useSyncExternalStore } from "react";
import type { Cost } from "./budget.js";
import { type Standing, type Watchable, watch } from "./store.js";

/** What {@link useRateLimit} returns: the state of the limit, and the limiter's own `consume`. */
export interface RateLimit<Consumed> extends Standing {
  consume(cost?: Cost): Consumed;
}

/**
 * Returns the state of a limit, and renders again when that changes: when tokens are taken or given back, and exactly
 * at `readyAt`. It does not poll. On a server, and during hydration, it shows the limit as unused, so that both render
 * the same.
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
  const costText = JSON.stringify(cost); // a cost by names is a new object in each render
  const store = useMemo(() => watch(limiter, JSON.parse(costText) as Cost), [limiter, costText]);
  const unused = useMemo(() => ({ ok: true, remaining: initialTokens(limiter), readyAt: 0 }), [limiter]);
  const standing = useSyncExternalStore(store.subscribe, store.get, () => unused);
  const consume = useCallback(
    (other?: Cost) => limiter.consume(other ?? (JSON.parse(costText) as Cost)),
    [limiter, costText],
  );
  return useMemo(() => ({ ...standing, consume }), [standing, consume]);
}

/** How many tokens an unused limit has; 0 where only a server knows. */
function initialTokens({ limits }: Watchable): number {
  return limits ? Math.min(...limits.map(({ rate, capacity = rate, initial = capacity }) => initial)) : 0;
}
