// The WebAssembly module: Tollgate's core. Here its memory is shared out; in bucket.ts it is used.
import { TollgateError } from "./errors.js";

/** The exports of src/js/exports.rs, which says what they mean. An address is a number. */
export interface Core {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  size(): number;
  make(
    bucket: number,
    max: number,
    kind: number,
    now: number,
    rate: number,
    periodMs: number,
    capacity: number,
    maxDebt: number,
    initial: number,
    offsetMs: number,
  ): number;
  consume(bucket: number, now: number, cost: number): number;
  decide(bucket: number, verb: number, now: number, cost: number, maxWaitMs: number, keep: boolean): number;
  get(bucket: number, which: number, now: number): number;
  restore(bucket: number, tokens: number, drops: number, at: number, keep: boolean): number;
}

/** The module: its bytes, a `WebAssembly.Module`, or a `WebAssembly.Instance`; no promise, and not what `instantiate` gives. */
export type CoreSource = object & { readonly then?: never; readonly instance?: never };

/**
 * Says where the WebAssembly module is. Whoever imports `tollgate` need not: it brings the module with it. Use this with
 * `tollgate/slim`, which does not, where the module is a file of its own (`tollgate/core.wasm`). Only the first call counts.
 *
 * ```js
 * init((await WebAssembly.instantiateStreaming(fetch("/core.wasm"))).instance);
 * ```
 */
export function init(wasm: CoreSource | (() => CoreSource)): void {
  source ??= wasm;
}

/** The module's exports, once somebody has called {@link start}. */
export let core: Core;

/** Compiles the module. Whoever makes something in it calls this first. */
export function start(): void {
  if (core) return;
  if (Object(source) !== source) throw new TollgateError("not_initialised", "call init(module) first");
  const wasm = typeof source === "function" ? (source as () => CoreSource)() : source!;
  core = instantiated(wasm).exports as unknown as Core;
}

/**
 * An address for one bucket, which is its owner's until that is collected, and behind it one for a number. Nobody
 * else takes memory of the module.
 */
export function allocate(owner: object): number {
  const step = core.size() + NUMBER_BYTES;
  if (free.length === 0) {
    const page = core.memory.grow(1) * PAGE_BYTES;
    for (let at = step; at <= PAGE_BYTES; at += step) free.push(page + at - step);
  }
  const address = free.pop()!;
  registry?.register(owner, address);
  return address;
}

function instantiated(wasm: CoreSource): WebAssembly.Instance {
  if ("exports" in wasm) return wasm as WebAssembly.Instance;
  return new WebAssembly.Instance(
    wasm instanceof WebAssembly.Module ? wasm : new WebAssembly.Module(wasm as BufferSource),
  );
}

let source: CoreSource | (() => CoreSource) | undefined;

const free: number[] = [];
// Workers of before May 2025 have none, and keep what they have made.
const registry = globalThis.FinalizationRegistry && new FinalizationRegistry<number>((address) => free.push(address));

/** What a memory grows by: 390 buckets, more than most have. */
const PAGE_BYTES = 65_536;
const NUMBER_BYTES = 8;
