// The types of `tollgate/worker`, beside Cloudflare's. Each mark must be an error.
import service, {
  acquire,
  type Decision,
  type Embedded,
  KeyObject,
  NotGrantedError,
  orThrow,
  type PolicySettings,
  rateLimited,
  SettingsError,
  Tollgate,
  tollgate,
} from "tollgate/worker";

export { KeyObject, Tollgate };

interface Env {
  KEYS: DurableObjectNamespace<KeyObject>;
  OTHER: DurableObjectNamespace<KeyObject>;
  TOLLGATE: Service<typeof Tollgate>;
}

export default {
  async fetch(request, env) {
    const decision = await tollgate(env).consume({ policy: "any", key: "alice" }, { idempotencyKey: "one" });
    if (decision.status === 429) {
      const retryAfterMs: number | undefined = decision.retry_after_ms;
      console.log(retryAfterMs, decision.headers.get("retry-after"));
      return decision.response();
    }
    // @ts-expect-error: only some answers have it
    decision.retry_after_ms.toFixed();
    const applied: Decision = decision;
    return applied.apply(await service.fetch(request, env));
  },
} satisfies ExportedHandler<Env>;

const policies = {
  api: { rate: 100, period: "1m", shards: 2 },
  llm: {
    limits: [{ name: "tokens", rate: 1, period: "1s", mode: "enforce" }],
    mode: "shadow",
    refusal_cache: "0s",
    lease: "2s",
    max_lease: 5,
    ban: { after: 5, within: "10m", for: "1m", grow: 3, max: "12h" },
    on_error: ["timeout"],
    notify: ["refused"],
    notify_every: "1h",
  },
} as const satisfies Record<string, PolicySettings>;

/** A policy with one budget for all needs no key; any other needs one. */
export async function oneForAll(env: Env) {
  const limits = tollgate(env, { policies: { provider: { rate: "500/s", key: [] }, api: "9/s" } });
  await limits.consume({ policy: "provider" });
  await limits.consume({ policy: "provider", key: [], cost: 2 });
  const reserved = await limits.consume({ policy: "provider", mode: "reserve" });
  if (reserved.allowed) await limits.settle({ policy: "provider", reservation: reserved.reservation });
  await limits.batch({ requests: [{ policy: "provider" }, { policy: "api", key: "alice" }] });
  await acquire(limits, { policy: "provider", key: [], maxWaitMs: 10 });
  await acquire(limits, { policy: "api", key: "alice" });
  // @ts-expect-error: it has no keys
  await limits.consume({ policy: "provider", key: 7 });
  // @ts-expect-error: a request has a key
  await limits.consume({ policy: "api" });
  // @ts-expect-error: in a batch, too
  await limits.batch({ requests: [{ policy: "api" }] });
  // @ts-expect-error: and to wait
  await acquire(limits, { policy: "api" });
  const one = { policy: "provider", key: () => [], tollgate: () => limits } as const;
  return rateLimited(one, async (_request: Request, _env: Env) => new Response("Hello"));
}

/** With `throws`, an answer is granted, and an error has the response. */
export async function thrown(env: Env, request: Request): Promise<Response> {
  try {
    const granted = await tollgate(env, { throws: true }).consume({ policy: "any", key: "alice" });
    const allowed: true = granted.allowed;
    const coded = await tollgate(env, { policies, throws: true }).peek({
      policy: "llm",
      key: "a",
      cost: { tokens: allowed ? 3 : 4 },
    });
    const { remaining } = orThrow(await env.TOLLGATE.consume({ policy: "api", key: "alice" }));
    console.log(coded.remaining, remaining);
    // @ts-expect-error: what is returned is granted
    console.log(granted.detail);
    return granted.apply(await service.fetch(request, env));
  } catch (error) {
    if (error instanceof NotGrantedError) return error.answer.response();
    throw error;
  }
}

export async function inCode(env: Env) {
  const names: Embedded<"api" | "llm"> = tollgate(env, { policies, keys: env.OTHER });
  await names.peek({ policy: "api", key: "alice" });
  const limits = tollgate(env, { policies, keys: env.OTHER });
  await limits.consume({ policy: "llm", key: "alice", cost: { tokens: 3 } });
  const { reservation } = await limits.consume({ policy: "api", key: "a", mode: "reserve" }).then((answer) => {
    if (answer.status !== 200) throw new Error(answer.detail);
    return answer;
  });
  await limits.settle({ policy: "api", key: "a", reservation, cost: 2 });
  // @ts-expect-error: there is no such policy
  await limits.consume({ policy: "typo", key: "alice" });
  // @ts-expect-error: neither in a batch
  await limits.batch({ requests: [{ policy: "typo", key: "alice" }] });
  // @ts-expect-error: a limit needs a period
  tollgate(env, { policies: { a: { rate: 1 } } });
  await limits.consume({ policy: "plan", key: "alice", limits: "100/1m" });
  await limits.peek({ policy: "plan", key: "a", limits: [{ name: "n", rate: 2.5, period: "1s" }], cost: { n: 1 } });
  // @ts-expect-error: a limit needs a period here too
  await limits.consume({ policy: "plan", key: "alice", limits: { rate: 1 } });
  const named = tollgate<"api" | "llm">(env);
  // @ts-expect-error: the names may be given where the policies are elsewhere
  await named.peek({ policy: "typo", key: "alice" });
  const known = tollgate<Policies>(env);
  await known.consume({ policy: "llm", key: "alice", cost: { requests: 1, tokens: 2 } });
  // @ts-expect-error: nor is there such a limit
  await known.consume({ policy: "llm", key: "alice", cost: { request: 1, tokens: 2 } });
  // @ts-expect-error: in code neither
  await limits.consume({ policy: "llm", key: "alice", cost: { token: 3 } });
  // @ts-expect-error: a request has a key
  await known.consume({ policy: "api" });
  const { remaining }: Pick<Decision, "apply"> & { readonly remaining?: number } = await acquire(known, {
    policy: "llm",
    key: "alice",
    cost: { requests: 1, tokens: 2 },
    maxWaitMs: 1000,
  });
  console.log(remaining);
  // @ts-expect-error: nor to wait for
  await acquire(known, { policy: "typo", key: "alice" });
  try {
    tollgate(env, { policies: { a: { rate: 1, period: "1x" } } });
  } catch (error) {
    if (error instanceof SettingsError) console.log(error.errors.join("\n"));
  }
}

/** As `npx tollgate types` writes it. */
interface Policies {
  api: never;
  llm: "requests" | "tokens";
}

export const inFront = rateLimited(
  { policy: "llm", cost: { requests: 1, tokens: 2 }, tollgate: (env) => tollgate<Policies>(env) },
  async (_request: Request, _env: Env) => new Response("Hello"),
);
export const misspelt = rateLimited(
  // @ts-expect-error: there is no such policy
  { policy: "typo", tollgate: (env) => tollgate<Policies>(env) },
  async (_request: Request, _env: Env) => new Response("Hello"),
);

export async function byRpc(env: Env): Promise<string | undefined> {
  const granted = await acquire(env.TOLLGATE, { policy: "api", key: "alice" });
  console.log(granted.headers.ratelimit);
  const answer = await env.TOLLGATE.consume({ policy: "api", key: "alice" });
  if (answer.status === 429) return answer.headers["retry-after"];
  // @ts-expect-error: an answer by RPC is plain values
  answer.response();
  return undefined;
}
