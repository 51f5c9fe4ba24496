// Loads the WebAssembly module of leases, and converts requests and answers. Nothing is decided here.
import { type CoreSource, exportsOf } from "./core.js";

/** A request to the service. Costs are in the order of the limits. */
export interface LeaseRequest {
  /** Passed on with the answer. */
  readonly call: number;
  /** The tokens to lease; `undefined` for none. */
  readonly wanted: readonly number[] | undefined;
  readonly ended: readonly { readonly lease: string; readonly spent: readonly number[] }[];
}

/** The moment, and the same by the wall clock. */
type Times = readonly [now: number, wall: number];

/** The service's answer. Moments are by its clock. */
export interface LeaseAnswer {
  readonly lease: string | undefined;
  readonly from: number;
  readonly until: number;
  readonly now: number;
  /** Whether the cost was granted, if there was one. */
  readonly allowed: boolean | undefined;
  readonly retryAfterMs: number;
  readonly tokens: readonly number[];
}

/** The exports of src/js/leases.rs, which documents them. An address is a number. */
interface LeaseCore {
  readonly memory: { readonly buffer: ArrayBuffer };
  lease_numbers(): number;
  lease_keep(now: number): number;
  lease_forget(keeper: number): void;
  lease_restart(keeper: number, now: number): void;
  lease_consume(
    keeper: number,
    numbers: number,
    limits: number,
    leaseMs: number,
    now: number,
    wall: number,
    isNew: boolean,
    mayRenew: boolean,
  ): number;
  lease_remaining(keeper: number, limits: number, now: number): number;
  lease_ask(keeper: number, numbers: number, limits: number, leaseMs: number, now: number): void;
  lease_answered(
    keeper: number,
    numbers: number,
    call: number,
    limits: number,
    calledAt: number,
    answeredAt: number,
    wallCalledAt: number,
  ): number;
  lease_failed(keeper: number, call: number, leaseMs: number, now: number): void;
  lease_end(keeper: number, numbers: number, limits: number, leaseMs: number, now: number, wall: number): number;
  lease_close(keeper: number, numbers: number, limits: number): number;
}

/** Sets the module: its bytes or a `WebAssembly.Module`. Only the first call counts. */
export function initLeases(wasm: CoreSource | (() => CoreSource)): void {
  source ??= wasm;
}

/** The leases of one key. `leaseMs` is how long one lasts, and 0 while that is unknown. */
export class Keeper {
  readonly #address: number;

  constructor(now: number) {
    load();
    this.#address = core.lease_keep(now);
    registry?.register(this, this.#address);
  }

  /** Switches to other limits. */
  restart(now: number): void {
    core.lease_restart(this.#address, now);
  }

  /**
   * Grants or refuses from leased tokens and earlier refusals; `undefined` if the service must be asked. Without costs, because the limits
   * are not known yet, only counts a request that is new. With the decision may come what to send in the background, if nothing is under way.
   */
  consume(costs: readonly number[], leaseMs: number, [now, wall]: Times, isNew: boolean, mayRenew: boolean) {
    put(costs);
    const answer = core.lease_consume(this.#address, numbers, costs.length, leaseMs, now, wall, isNew, mayRenew);
    if (answer === 0) return undefined;
    const all = floats();
    const renewal = answer > 4 ? requested(costs.length) : undefined;
    return { allowed: (answer & 3) === 1, retryAt: all[0]!, remaining: all[1]!, renewal };
  }

  remaining(limits: number, now: number): number {
    return core.lease_remaining(this.#address, limits, now);
  }

  /** What to send with a request for the costs. */
  ask(costs: readonly number[], leaseMs: number, now: number): LeaseRequest {
    put(costs);
    core.lease_ask(this.#address, numbers, costs.length, leaseMs, now);
    return requested(costs.length);
  }

  /** Processes an answer. Returns how long a lease lasts, and after how many milliseconds to {@link end} the received one, if any. */
  answered(
    call: number,
    { lease, from, until, now, allowed, retryAfterMs, tokens }: LeaseAnswer,
    leaseMs: number,
    [calledAt, answeredAt, wallCalledAt]: readonly [number, number, number],
  ): { leaseMs: number; endAfterMs: number | undefined } {
    put([0, from, until, now, Number(allowed ?? -1), retryAfterMs, leaseMs, ...tokens]);
    integers()[0] = idOf(lease);
    const limits = tokens.length;
    const ms = core.lease_answered(this.#address, numbers, call, limits, calledAt, answeredAt, wallCalledAt);
    return { leaseMs: floats()[6]!, endAfterMs: ms < 0 ? undefined : ms };
  }

  failed(call: number, leaseMs: number, now: number): void {
    core.lease_failed(this.#address, call, leaseMs, now);
  }

  /** What to send about a lease that may be idle or over, in how many milliseconds to ask again, or nothing. */
  end(lease: string, limits: number, leaseMs: number, [now, wall]: Times): LeaseRequest | number | undefined {
    floats();
    integers()[0] = idOf(lease);
    const ms = core.lease_end(this.#address, numbers, limits, leaseMs, now, wall);
    return ms === 0 ? requested(limits) : ms > 0 ? ms : undefined;
  }

  /** Ends all leases: what to send to return what is left of them. */
  close(limits: number): LeaseRequest | undefined {
    return core.lease_close(this.#address, numbers, limits) ? requested(limits) : undefined;
  }
}

/** The request in the numbers. */
function requested(limits: number): LeaseRequest {
  const [, , call, wantsAny, count] = floats() as unknown as [number, number, number, number, number];
  const listOf = (at: number) => Array.from(floats().subarray(at, at + limits));
  const ended = Array.from({ length: count }, (_, i) => {
    const at = HEAD + limits + i * (1 + limits);
    return { lease: integers()[at]!.toString(16).padStart(ID_DIGITS, "0"), spent: listOf(at + 1) };
  });
  return { call, wanted: wantsAny ? listOf(HEAD) : undefined, ended };
}

const idOf = (lease: string | undefined) => BigInt(`0x${lease ?? 0}`);

function put(values: readonly number[]): void {
  const all = floats();
  for (let i = 0; i < values.length; i++) all[i] = values[i]!;
}

/** The numbers, and the same bits as integers. Memory that has grown is another. */
function floats(): Float64Array {
  if (asFloats.buffer !== core.memory.buffer) {
    asFloats = new Float64Array(core.memory.buffer, numbers, COUNT);
    asIntegers = new BigUint64Array(core.memory.buffer, numbers, COUNT);
  }
  return asFloats;
}

function integers(): BigUint64Array {
  floats();
  return asIntegers;
}

function load(): void {
  if (core) return;
  core = exportsOf(source) as LeaseCore;
  numbers = core.lease_numbers();
}

let source: CoreSource | (() => CoreSource) | undefined;
let core: LeaseCore;
let numbers: number;
let asFloats = new Float64Array();
let asIntegers = new BigUint64Array();

// Workers with a compatibility date before May 2025 have no registry; there memory is never reused.
const registry =
  globalThis.FinalizationRegistry && new FinalizationRegistry<number>((address) => core.lease_forget(address));

/** The numbers before the lists of a request: a decision, and three numbers. */
const HEAD = 5;
/** The same as in src/js/leases.rs. */
const COUNT = HEAD + 8 + 16 * 9;
/** A lease's id has 64 bits. */
const ID_DIGITS = 16;
