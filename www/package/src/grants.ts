// Keeps a grant fresh, for a client in a page.
import { type Clock, systemClock } from "./clock.js";
import { TollgateError } from "./errors.js";

export { TollgateError, type TollgateErrorCode, type TollgateErrorDetails } from "./errors.js";

/** Options of {@link renewing}. */
export interface RenewingOptions {
  /** Default: {@link systemClock}. */
  readonly clock?: Clock;
}

/**
 * Returns a function for `token` of a client. It asks `fetchGrant` for a grant, a JWT from your backend, and keeps it
 * until shortly before it ends (`exp`): by a tenth of its time, at most 30 seconds. All calls in the meantime wait for the
 * same grant. After a failure, or 10 seconds without an answer, the next call asks again; a grant that has not ended is
 * used meanwhile. One that has ended by this clock is used once.
 *
 * Rejects with what `fetchGrant` throws, or with the code `grant_malformed`. No error contains the grant.
 *
 * ```js
 * const token = renewing(async () => (await fetch("/grant", { method: "POST" })).text());
 * const client = new Client({ url: "https://tollgate.example.com", token });
 * ```
 */
export function renewing(
  fetchGrant: () => string | Promise<string>,
  { clock = systemClock }: RenewingOptions = {},
): () => Promise<string> {
  let kept: { readonly grant: string; readonly renewAt: number; readonly endsAt: number } | undefined;
  let asking: Promise<string> | undefined;
  let askedAt = 0;
  /** Grants asked for, and the latest of them that is kept: one that comes late replaces no later one. */
  let [asks, latest] = [0, 0];

  const ask = async () => {
    const number = ++asks;
    const grant = await fetchGrant();
    const endsAt = endOf(grant);
    const leftMs = endsAt - clock.now();
    if (number > latest) {
      latest = number;
      kept = { grant, renewAt: endsAt - Math.min(leftMs / 10, MOST_AHEAD_MS), endsAt };
    }
    return grant;
  };

  return async () => {
    const now = clock.now();
    if (kept && now < kept.renewAt) return kept.grant;
    if (!asking || now - askedAt >= PATIENCE_MS) {
      askedAt = now;
      const mine = ask().finally(() => {
        if (asking === mine) asking = undefined;
      });
      asking = mine;
    }
    let cancel = () => {};
    const soon = new Promise<undefined>((resolve) => {
      if (kept) cancel = clock.at(Math.min(now + WAIT_MS, kept.endsAt), () => resolve(undefined));
    });
    try {
      return (await Promise.race([asking, soon])) ?? usable() ?? (await asking);
    } catch (error) {
      const grant = usable();
      if (grant !== undefined) return grant;
      throw error;
    } finally {
      cancel();
    }
  };

  function usable(): string | undefined {
    return kept && clock.now() < kept.endsAt ? kept.grant : undefined;
  }
}

/** The moment at which a JWT ends. */
function endOf(grant: string): number {
  const parts = typeof grant === "string" ? grant.split(".") : [];
  if (parts.length !== 3) throw malformed("it must be a JWT: three parts with dots between them");
  let claims: { readonly exp?: unknown } | null;
  try {
    claims = JSON.parse(atob(parts[1]!.replaceAll("-", "+").replaceAll("_", "/")));
  } catch {
    throw malformed("its second part must be JSON in base64url"); // without the cause, which would quote it
  }
  const exp = claims?.exp;
  if (typeof exp !== "number" || !Number.isFinite(exp)) throw malformed("its `exp` must be a number, in seconds");
  return exp * 1000;
}

const malformed = (message: string) => new TollgateError("grant_malformed", `malformed grant: ${message}`);

const MOST_AHEAD_MS = 30_000;
const PATIENCE_MS = 10_000;
/** How long a call waits for a new grant while it could use the old one: a client's patience is longer. */
const WAIT_MS = 2_000;
