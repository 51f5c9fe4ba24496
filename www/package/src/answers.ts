// The service's answers for limiters of this process, written by its own Rust: src/answers/mod.rs. Nothing is decided here.
import { wasm } from "./answers-wasm.js";
import type { Decision, Limit, Snapshot } from "./bucket.js";
import type { Cost } from "./budget.js";
import { exportsOf } from "./core.js";
import { TollgateError } from "./errors.js";
import { type Exchange, exchanged } from "./exchange.js";

/** An answer as sent by HTTP, without CORS. Names of headers are in lower case. */
export interface Written {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** The exports of src/answers/mod.rs, which documents them. */
interface Exports extends Exchange {
  readonly answer_policy: Answering;
  readonly answer_decided: Answering;
  readonly answer_bad_request: Answering;
  readonly answer_unavailable: Answering;
  readonly answer_no_room: Answering;
}

/**
 * Replaces the question by its answer, and returns the length of that. `flag` is whether the key is banned, or whether the service was late;
 * some do not read it.
 */
type Answering = (flag: boolean) => number;

/** Answers for the limits of one policy. */
export class Answers {
  readonly #exports = exportsOf(() => {
    compiled ??= new WebAssembly.Module(wasm());
    return compiled;
  }) as Exports;

  #names: readonly (string | undefined)[] = [];

  /** Sets the policy's name and limits. Throws a {@link TollgateError} if no policy can have them. */
  setLimits(policy: string, limits: readonly Limit[]): void {
    this.#names = limits.map(({ name }) => name);
    const settings =
      limits.length === 1 && limits[0]!.name === undefined ? settingsOf(limits[0]!) : { limits: limits.map(named) };
    const errors = this.#answer("answer_policy", JSON.stringify({ [policy]: settings }));
    if (errors) throw new TollgateError("policy_unknown", `the limiter's limits cannot be in headers: ${errors}`);
  }

  /** The answer to a request to consume, with what each limit says and its state after that. A banned key was refused because of that. */
  decided(
    cost: Cost<string>,
    now: number,
    limits: readonly { readonly decision: Decision; readonly snapshot: Snapshot }[],
    isBanned = false,
  ): Written {
    const numbers = limits.flatMap(({ decision, snapshot: { tokens, drops, at, returns } }, i) => [
      typeof cost === "number" ? cost : cost[this.#names[i]!]!,
      ...numbersOf(decision),
      tokens,
      drops,
      returns ? (returns.at(-1)?.[0] ?? now) : at, // when a rolling window is full again
    ]);
    return this.#written("answer_decided", [now, ...numbers].join(" "), isBanned);
  }

  /** The answer to a wrong request. */
  badRequest(detail: string): Written {
    return this.#written("answer_bad_request", detail);
  }

  /** The answer if the service did not answer, or not in time. */
  unavailable(isLate: boolean): Written {
    return this.#written("answer_unavailable", "", isLate);
  }

  /** The answer to a new key for which there is no room for this time, or ever. */
  noRoom(retryAfterMs: number): Written {
    return this.#written("answer_no_room", retryAfterMs < Infinity ? String(retryAfterMs) : "");
  }

  #written(name: Name, text: string, flag = false): Written {
    return JSON.parse(this.#answer(name, text, flag));
  }

  #answer(name: Name, text: string, flag = false): string {
    return exchanged(this.#exports, text, () => this.#exports[name](flag));
  }
}

type Name = Exclude<keyof Exports, keyof Exchange>;

/** The same for all. */
let compiled: WebAssembly.Module | undefined;

/** A limit as the service reads it. */
function settingsOf({ kind, rate, periodMs, capacity = rate, maxDebt = 0, offsetMs = 0 }: Limit): object {
  const settings = { kind, rate, period: `${periodMs}ms`, capacity, max_debt: maxDebt };
  if (kind === "fixed_window") return { ...settings, offset: `${offsetMs % periodMs}ms` };
  const [word, grains] = (kind as string | undefined)?.split(" ") ?? [];
  if (word === "rolling_window") return { kind: word, rate, period: settings.period, grains: Number(grains) };
  if ((kind as string) === "first_use_window") return { ...settings, kind: "fixed_window", offset: "first_use" };
  return settings;
}

/** A limit as the service reads it, with a name, which every one of several has there. */
function named(limit: Limit, index: number): object {
  return { name: limit.name ?? `limit${index + 1}`, ...settingsOf(limit) };
}

/** A decision in the numbers of src/answers/mod.rs. */
function numbersOf(decision: Decision): [kind: number, first: number, second: number] {
  if (decision.allowed) return [0, decision.tokens, decision.readyAt];
  return decision.retryAt < Infinity ? [1, decision.retryAt, 0] : [2, decision.maxCost ?? 0, 0];
}
