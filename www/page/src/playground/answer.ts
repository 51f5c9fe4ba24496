// The service's HTTP answer to an event: the words and headers of docs/http.md, with the package's numbers. A
// test compares it with the service's own answers.
import type { Refusal } from "tollgate";
import { amountOf } from "../levels/amount.ts";
import { type Event, mayWait, START } from "../levels/track.ts";
import type { Simulation } from "./simulation.ts";

export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Readonly<Record<string, unknown>>;
}

/** The answer at the moment of a decision; for giving back or closing, only if the number of tokens is known. */
export function answerOf(simulation: Simulation, event: Event): Answer {
  const { policy } = simulation;
  const now = START + event.at;
  const details = policy.limits.map((limit, i) => {
    const { remaining, owed, fullAt, alone, tokenAt, largest } = simulation.standing(i, event);
    const capacity = limit.capacity ?? limit.rate;
    const refusal = alone.allowed ? undefined : alone;
    const retryAt = refusal && Number.isFinite(refusal.retryAt) ? refusal.retryAt : undefined;
    const readyAt = mayWait(event.verb) && alone.allowed ? alone.readyAt : undefined;
    const cost = amountOf(event.cost, limit.name);
    const isBooked = event.verb === "charge" || event.verb === "settle";
    const unpaid = isBooked ? cost - event.tokens![i]! : 0;
    const full = limit.name === undefined ? policy.name : `${policy.name}/${limit.name}`;
    const fields = {
      allowed: !refusal,
      cost,
      ...(event.tokens && { tokens: event.tokens[i] }),
      ...(unpaid > 0 && { unpaid }),
      limit: capacity,
      remaining,
      ...(owed > 0 && { owed }),
      near_limit: remaining * 5 < capacity,
      reset_at: Number.isFinite(fullAt) ? fullAt : null,
      ...(readyAt !== undefined && { ready_at: readyAt }),
      ...(retryAt !== undefined && { retry_at: retryAt, retry_after_ms: retryAt - now }),
    };
    return { limit, full, fields, retryAt, readyAt, refusal, tokenAt, largest, level: remaining - owed, capacity };
  });
  const tooLarge = details.find(({ fields, largest }) => fields.cost > largest);
  if (tooLarge) {
    const { full, fields, largest } = tooLarge;
    const detail = `policy ${full} can never grant ${fields.cost} tokens at once; at most ${largest}`;
    return {
      status: 400,
      headers: {},
      body: {
        type: "urn:problem-type:tollgate:cost-too-large",
        title: "Cost too large",
        status: 400,
        detail,
        max_cost: largest,
      },
    };
  }
  const readyAt = Math.max(...details.map(({ readyAt = 0 }) => readyAt));
  const top = details.reduce((most, next) => (outweighs(most, next) ? most : next));
  const { cost, tokens, unpaid, limit, remaining, owed, reset_at, ...rest } = top.fields;
  const verdict = {
    allowed: event.decision.allowed,
    policy: policy.name,
    cost,
    ...(tokens !== undefined && { tokens }),
    ...(unpaid && { unpaid }),
    limit,
    remaining,
    ...(owed && { owed }),
    near_limit: details.some(({ fields }) => fields.near_limit),
    now,
    reset_at,
    ...(event.decision.allowed && readyAt >= now && { ready_at: readyAt }),
    ...(rest.retry_at !== undefined && { retry_at: rest.retry_at, retry_after_ms: rest.retry_after_ms }),
    ...(event.verb === "reserve" &&
      event.decision.allowed && {
        reservation: RESERVATION,
        expires_at: event.decision.readyAt + policy.reservationTtlMs,
      }),
    ...(policy.limits.some(({ name }) => name !== undefined) && {
      limits: details.map(({ limit, fields }) => ({ name: limit.name, ...fields })),
    }),
  };
  const after = top.retryAt === undefined ? undefined : seconds(top.retryAt - now);
  const headers = {
    "RateLimit-Policy": details.map(({ full, limit }) => `"${full}"${quota(limit)}`).join(", "),
    RateLimit: details
      .map(({ full, fields, tokenAt, retryAt }) => {
        const at = Math.min(tokenAt, retryAt ?? Infinity);
        const t = Number.isFinite(at) ? `;t=${Math.min(seconds(at - now), after ?? Infinity)}` : "";
        return `"${full}";r=${fields.remaining}${t}`;
      })
      .join(", "),
  };
  if (event.decision.allowed) return { status: 200, headers, body: verdict };
  const when = after === undefined ? "this budget never refills" : `retry in ${rest.retry_after_ms} ms`;
  const detail = owed
    ? `policy ${top.full} owes ${owed} tokens and the cost is ${cost}; ${when}`
    : `policy ${top.full} has ${remaining} of ${limit} tokens left and the cost is ${cost}; ${when}`;
  return {
    status: 429,
    headers: { ...headers, ...(after !== undefined && { "Retry-After": String(after) }) },
    body: {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota exceeded",
      status: 429,
      detail,
      "violated-policies": details.flatMap(({ full, refusal }) => (refusal ? [full] : [])),
      ...verdict,
    },
  };
}

/** Stands for the id that the service would give. */
export const RESERVATION = "0123456789abc";

type Standing = { refusal: Refusal | undefined; retryAt: number | undefined; level: number; capacity: number };

/** Whether the first limit decides: it refuses, for longer, or has the smaller share left. */
function outweighs(one: Standing, other: Standing): boolean {
  const rank = ({ refusal, retryAt }: Standing) => (refusal ? (retryAt ?? Infinity) : -1);
  if (rank(one) !== rank(other)) return rank(one) > rank(other);
  return one.level * other.capacity <= other.level * one.capacity;
}

function quota({ kind, rate, periodMs, capacity = rate }: Simulation["policy"]["limits"][number]): string {
  if (rate === 0) return `;q=${capacity};tollgate-capacity=${capacity}`;
  const added = kind === "fixed_window" ? Math.min(rate, capacity) : rate;
  const window = seconds(periodMs);
  return `;q=${Math.floor((added * window * 1000) / periodMs)};w=${window};tollgate-capacity=${capacity}`;
}

const seconds = (ms: number) => Math.max(1, Math.ceil(ms / 1000));
