"use client";
// The hook for React.
import { useMemo, useSyncExternalStore } from "react";
import type { Cost } from "./budget.js";
import { type Standing, type Watchable, watch } from "./store.js";

/**
 * Returns the state of a limit, and renders again when that changes: when tokens are taken or given back, as each comes
 * back, and exactly at `readyAt`. It does not poll. On a server, and during hydration, it shows the limit as unused, so
 * that both render the same.
 *
 * ```jsx
 * const { ok, readyAt } = useRateLimit(limiter, { cost: 2 });
 * <button disabled={!ok} onClick={() => limiter.tryConsume(2) && send()}>Send</button>
 * ```
 */
export function useRateLimit<Name extends string = never>(
  limiter: Watchable<Name>,
  { cost = 1 }: { readonly cost?: Cost<Name> } = {},
): Standing {
  const costText = JSON.stringify(cost); // a cost by names is a new object in each render
  const store = useMemo(() => watch(limiter, JSON.parse(costText) as Cost<Name>), [limiter, costText]);
  const unused = useMemo(() => ({ ok: true, remaining: initialTokens(limiter), readyAt: 0 }), [limiter]);
  return useSyncExternalStore(store.subscribe, store.get, () => unused);
}

/** How many tokens an unused limit has; 0 if only a server knows. */
function initialTokens({ limits }: Watchable): number {
  return limits ? Math.min(...limits.map(({ rate, capacity = rate, initial = capacity }) => initial)) : 0;
}
